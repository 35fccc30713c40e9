"""How the logits of a trained model become a decision: calibration.json in the model's folder.

    {"temperature": 1.37, "fitted_on": "dev.tsv", "fitted_on_sha256": "5f0c...", "rows": 8802,
     "threshold": 0.912, "tuned_on": "dev.tsv", "tuned_on_sha256": "5f0c...", "tuned_rows": 8802,
     "tuned_for": "precision 0.95", "symmetric": "average",
     "measured": {"on": "test.tsv", "sha256": "97b1...", "rows": 8802, "metrics": {"accuracy": [0.87, null]},
                  "baseline": 0.84, "verdict": "it is better than counting shared characters: ..."}}

The temperature divides the logits before the softmax: no class and no ranking changes by it, only how
sure the model is. The threshold, of two classes, is the probability from which on a pair is of class 1,
in place of the likelier class; it holds for the probabilities of this temperature. Both were found with
the pairs scored as ``symmetric`` says, see `pair_symmetry`, and hold for no other way. Of an embedding model
``threshold`` is the similarity from which on two texts match, by vectors of ``fingerprint`` alone.
``measured`` is what the model reached with both, on other pairs: a value and its interval of each metric, and
what that is worth beside the accuracy of shared characters. Any key may be absent.
"""

import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import published
from ernie_pair.core.files.json_file import is_number, is_texts, is_whole_number, read_json_object
from ernie_pair.models.spec import json_bytes

SYMMETRIES = ("none", "average")

Score = Callable[[Sequence[str], Sequence[str]], np.ndarray]
CALIBRATION = "calibration.json"
SMALLEST, LARGEST = 1e-6, 1e6  # nothing was fitted to a temperature beyond these
logger = logging.getLogger(__name__)

HINT = (
    "remove it, or make it again: ernie-pair evaluate --calibrate_on FILE --save_temperature true "
    "--save_threshold true"
)


def score_pairs(score: Score, left: Sequence[str], right: Sequence[str], symmetric: str) -> np.ndarray:
    """Return the logits float32 [N, C] that ``score`` gives the pairs, as ``symmetric`` says."""
    if symmetric == "none":
        return score(left, right)
    return mean_of_orders(score(*both_orders(left, right)))


def both_orders(left: Sequence[str], right: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Return left and right texts of 2N pairs: each pair with its smaller text first, then all exchanged."""
    smaller, larger = list(map(min, left, right)), list(map(max, left, right))
    return smaller + larger, larger + smaller


def mean_of_orders(logits: np.ndarray) -> np.ndarray:
    """Return the mean of the two orders: logits float32 [2N, C] of ``both_orders`` to float32 [N, C]."""
    smaller_first, larger_first = np.split(logits, 2)
    return (smaller_first + larger_first) / 2


@dataclass(frozen=True)
class Calibration:
    """The content of calibration.json; ``threshold`` is None where the likelier class is the answer."""

    temperature: float = 1.0
    fitted_on: str = ""
    fitted_on_sha256: str = ""
    rows: Optional[int] = None
    threshold: Optional[float] = None
    tuned_on: str = ""
    tuned_on_sha256: str = ""
    tuned_rows: Optional[int] = None
    tuned_for: str = ""
    symmetric: str = "none"
    measured: Dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""

    @property
    def is_tuned(self) -> bool:
        """Return whether it holds anything that was found on pairs."""
        return self.temperature != 1.0 or self.threshold is not None

    def chosen_symmetry(self, asked: str, where: str) -> str:
        """Return how to score pairs, auto: as tuned. Raises InputError if ``where`` was tuned otherwise."""
        if asked in ("auto", self.symmetric):
            return self.symmetric
        if asked not in SYMMETRIES:
            raise InputError(
                f"--symmetric {asked} is not one of auto, {', '.join(SYMMETRIES)}; use one of them"
            )
        if self.is_tuned:
            raise InputError(
                f"--symmetric {asked}: the temperature and threshold of {where} were tuned with --symmetric "
                f"{self.symmetric}; leave the flag out, or tune again: ernie-pair evaluate --symmetric "
                f"{asked} --calibrate_on FILE --save_temperature true --save_threshold true"
            )
        return asked


def read_calibration(folder: Path, num_classes: int) -> Calibration:
    """Return the calibration of a model, the default without a file. Raises InputError for a wrong one."""
    path = folder / CALIBRATION
    if not path.exists():
        return Calibration()
    found = read_json_object(path, HINT)
    c = Calibration(**{key: found[key] for key in Calibration.__dataclass_fields__ if key in found})
    texts = [c.fitted_on, c.fitted_on_sha256, c.tuned_on, c.tuned_on_sha256, c.tuned_for]
    counts = [rows for rows in (c.rows, c.tuned_rows) if rows is not None]
    is_one = c.temperature == 1.0
    reasons = {
        f"no temperature from {SMALLEST:g} to {LARGEST:g}": is_temperature(c.temperature),
        "a temperature, which a model without classes cannot have,": num_classes > 1 or is_one,
        "a threshold that is not between 0 and 1": c.threshold is None or is_threshold(c.threshold),
        f"a threshold, which {num_classes} classes cannot have,": c.threshold is None or num_classes == 2,
        f"a symmetric that is not one of {', '.join(SYMMETRIES)}": c.symmetric in SYMMETRIES,
        "a file name or hash that is not a text": is_texts(texts),
        "a row count that is not a whole number": all(is_whole_number(rows, 0) for rows in counts),
        "a measured that is not an object": isinstance(c.measured, dict),
    }
    for reason, is_sound in reasons.items():
        if not is_sound:
            raise InputError(f"{path}: {reason} in it; {HINT}")
    return c


def read_match_threshold(folder: Path, fingerprint: str) -> Optional[float]:
    """Return from which similarity on texts match, by vectors of this ``fingerprint``; None: it is not saved.

    Raises InputError for a wrong file.
    """
    path = folder / CALIBRATION
    found = read_json_object(path, HINT) if path.exists() else {}
    if "fingerprint" not in found:
        return None
    if not is_number(found.get("threshold")):
        raise InputError(f"{path}: a threshold that is not a number in it; remove it")
    if found["fingerprint"] == fingerprint:
        return found["threshold"]
    logger.warning("%s is of other vectors (another length or other weights), and is not used", path)
    return None


def is_temperature(value: Any) -> bool:
    """Return whether ``value`` is a number that logits can be divided by."""
    return is_number(value, SMALLEST, LARGEST)


def is_threshold(value: object) -> bool:
    """Return whether ``value`` is a number from 0 to 1."""
    return is_number(value, 0, 1)


def write_calibration(folder: Path, calibration: Calibration) -> None:
    """Write calibration.json. Raises OSError, leaving what was there before."""
    with published(folder / CALIBRATION) as (draft,):
        draft.write_bytes(calibration_bytes(calibration))


def calibration_bytes(calibration: Calibration) -> bytes:
    """Return the content of a calibration.json."""
    return json_bytes(
        {name: value for name, value in asdict(calibration).items() if value not in ("", None, {})}
    )


def describe_decision(threshold: Optional[float], is_saved: bool, symmetric: str) -> str:
    """Return a line on how classes are chosen."""
    chosen, source = "its most probable class", "the model's own threshold" if is_saved else "--threshold"
    if threshold is not None:
        chosen = f"class 1 if its probability is {threshold:.4f} or more ({source})"
    order = "in their given order" if symmetric == "none" else "in both orders, of which the mean counts"
    return f"each pair gets {chosen}; its two texts are scored {order}"
