"""What an evaluation finds for later predictions, and when it may be saved."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Optional

from data_tools.files.errors import InputError
from ernie_pair.models.temperature import Calibration, read_calibration
from ernie_pair.pair.config.ask_config import EvaluateConfig
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.score.evaluation.calibration import is_at_the_end
from ernie_pair.score.evaluation.evaluation import Fitted

_WRITTEN = "; the evaluation is written, nothing is saved"


def refuse_unsavable(config: EvaluateConfig, saved: Calibration, num_classes: int) -> None:
    """Raise InputError, before the work, when the flags ask to save what would not fit together."""
    if config.save_threshold and num_classes != 2:
        raise InputError(
            f"--save_threshold true is for two classes, {config.model_path} has {num_classes}; leave it out"
        )
    if config.save_temperature and saved.threshold is not None and not config.save_threshold:
        raise InputError(
            f"--save_temperature true: the threshold {saved.threshold:.4f} of {config.model_path} is for "
            "probabilities of another temperature; pass --save_threshold true as well"
        )


def refuse_judged_file(config: EvaluateConfig, judged: Pairs, calibrating: Pairs) -> None:
    """Raise InputError when a temperature to be saved would be fitted on the very pairs that are judged."""
    if config.save_temperature and calibrating.sha256 == judged.sha256:
        raise InputError(
            f"--calibrate_on {config.calibrate_on} holds the pairs of --input_file itself: a temperature "
            "fitted on what is judged is not saved; give other labelled pairs"
        )


def refuse_one_class(flag: str, pairs: Pairs, num_classes: int) -> None:
    """Raise InputError when thresholds of two classes cannot be chosen on ``pairs``."""
    absent = sorted({0, 1} - set(pairs.known_labels.tolist()))
    if num_classes == 2 and absent:
        raise InputError(
            f"--{flag} {pairs.path} has no pair of class {absent[0]}, so no threshold can be chosen on it; "
            "give a file that has both classes"
        )


def with_temperature(saved: Calibration, fitted: Fitted, config: EvaluateConfig) -> Calibration:
    """Return ``saved`` with the fitted temperature, where it is asked for and says something."""
    if not config.save_temperature or is_at_the_end(fitted.temperature):
        return saved
    return replace(saved, **fitted._asdict())


def with_threshold(
    calibration: Calibration, thresholds: Optional[Dict[str, Any]], config: EvaluateConfig
) -> Calibration:
    """Return ``calibration`` with the threshold of --at_precision, where --save_threshold asks for it."""
    if not config.save_threshold:
        return calibration
    assert thresholds is not None  # of two classes, see `refuse_unsavable`, that both occur
    return with_asked_precision(calibration, thresholds, "--save_threshold true")


def why_unsaved(
    fitted: Optional[Dict[str, Any]], thresholds: Optional[Dict[str, Any]], config: EvaluateConfig
) -> str:
    """Return why nothing of an evaluation is saved; '' where it is, or where nothing is to be.

    ``fitted``: the fields of `Fitted`; ``thresholds``: of `thresholds_of`.
    """
    if config.save_temperature and fitted is not None and is_at_the_end(fitted["temperature"]):
        return (
            f"--save_temperature true: the temperature {fitted['temperature']:.3g} fitted on the "
            f"{fitted['rows']} rows of {fitted['fitted_on']} is at the end of its range and therefore "
            f"meaningless{_WRITTEN}; give more rows, which the model has not learned, with --calibrate_on"
        )
    if config.save_threshold and thresholds is not None:
        return _unreached(thresholds, "--save_threshold true", _WRITTEN)
    return ""


def is_kept(evaluation: Dict[str, Any], config: EvaluateConfig) -> bool:
    """Return whether the model's folder holds what ``evaluation``, the content of its file, was to save.

    Raises InputError for a damaged calibration.
    """
    if not (config.save_temperature or config.save_threshold):
        return True
    saved = read_calibration(Path(config.model_path), len(evaluation["classes"]))
    if config.save_temperature and saved.temperature != evaluation["calibration"]["temperature"]:
        return False
    found = evaluation.get("thresholds", {}).get("at_precision", {}).get("threshold")
    return not config.save_threshold or saved.threshold == found


def with_asked_precision(calibration: Calibration, thresholds: Dict[str, Any], flag: str) -> Calibration:
    """Return ``calibration`` with the threshold of --at_precision, of what `thresholds_of` has found.

    ``flag`` asks for it. Raises InputError when that precision is not reached.
    """
    chosen, fault = thresholds["at_precision"], _unreached(thresholds, flag)
    if fault:
        raise InputError(fault)
    return replace(
        calibration,
        threshold=chosen["threshold"],
        tuned_for=f"precision {chosen['asked']:g}",
        **{name: thresholds[name] for name in ("tuned_on", "tuned_on_sha256", "tuned_rows")},
    )


def _unreached(thresholds: Dict[str, Any], flag: str, result: str = "") -> str:
    chosen = thresholds["at_precision"]
    if chosen["reached"]:
        return ""
    return (
        f"{flag}: no threshold reaches precision {chosen['asked']} on {thresholds['tuned_on']} (the nearest "
        f"is {chosen['precision']:.4f}){result}; ask for less with --at_precision"
    )
