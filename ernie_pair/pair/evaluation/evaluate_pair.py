"""A trained model measured on labelled pairs."""

import json
import logging
from pathlib import Path
from typing import Dict

import numpy as np

from data_tools.errors import InputError
from ernie_pair.pair.config import EvaluateConfig
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.evaluation.calibration import fit_temperature
from ernie_pair.pair.evaluation.evaluation import Answers, Fitted, evaluation_of
from ernie_pair.pair.evaluation.report import write_report
from ernie_pair.pair.metrics import METRICS
from ernie_pair.pair.result_file import publish_file
from ernie_pair.pair.trained import Trained
from ernie_pair.temperature import CALIBRATION, read_temperature, write_temperature

logger = logging.getLogger(__name__)


def evaluate_pair(config: EvaluateConfig) -> None:
    """Write what ``evaluation_of`` tells as JSON, print the metrics, write the report where one is asked for.

    The numbers are the same for any number of processes, to the last digit. Raises InputError.
    """
    if config.report and Path(config.report).is_file():
        raise InputError(f"--report {config.report} is a file; give the name of a folder")
    trained = Trained(config)
    answers = _ask(trained, config)
    if trained.world.is_first:
        evaluation = evaluation_of(answers, config)
        if config.save_temperature:
            write_temperature(Path(config.model_path), *answers.fitted)
        publish_file(Path(config.output_file), json.dumps(evaluation, indent=2, ensure_ascii=False) + "\n")
        if config.report:
            write_report(Path(config.report), evaluation, answers, config.worst_rows)
        _tell(evaluation, config)
    trained.peers.barrier()


def _ask(trained: Trained, config: EvaluateConfig) -> Answers:
    pairs = trained.read(config.input_file, labelled=True)
    others = trained.read(config.calibrate_on, labelled=True) if config.calibrate_on else None
    saved = read_temperature(Path(config.model_path))
    logits = trained.logits(pairs)
    if others is not None:
        fitted = _fit(trained.logits(others), others, config.calibrate_on)
    elif saved != 1.0 and not config.save_temperature:
        fitted = Fitted(saved, f"{config.model_path}/{CALIBRATION}", None)
    else:
        fitted = _fit(logits, pairs, config.input_file)
    in_use = fitted.temperature if config.save_temperature else saved
    swapped = trained.logits(Pairs(pairs.right, pairs.left, *pairs[2:])) if config.swap else None
    return Answers(pairs, trained.labels.names, logits, swapped, in_use, fitted)


def _fit(logits: np.ndarray, pairs: Pairs, path: str) -> Fitted:
    return Fitted(fit_temperature(logits, pairs.labels), path, len(pairs))


def _tell(evaluation: Dict[str, object], config: EvaluateConfig) -> None:
    """The metrics on stdout, the rest as lines for a reader."""
    calibration = evaluation["calibration"]
    logger.info(
        "calibration error %.4f; %.4f with the temperature %.4g of %s",
        *(calibration[name] for name in ("ece", "ece_calibrated", "temperature", "fitted_on")),
    )
    if "thresholds" in evaluation:
        best, asked = (evaluation["thresholds"][name] for name in ("best_f1", "at_precision"))
        logger.info("the best F1, %.4f, is that of the threshold %.4f", best["f1"], best["threshold"])
        reached = "is reached from" if asked["reached"] else "is not reached; nearest comes"
        at = "precision %.4f %s the threshold %.4f: precision %.4f, recall %.4f, %d rows"
        named = (asked[name] for name in ("threshold", "precision", "recall", "rows"))
        logger.info(at, asked["asked"], reached, *named)
    if "swap" in evaluation:
        flipped = evaluation["swap"]["flip_rate"]
        logger.info("%.2f %% of the pairs change class when their texts change places", 100 * flipped)
    if config.report:
        logger.info("report: %s", Path(config.report) / "report.html")
    print(json.dumps({name: evaluation[name] for name in (*METRICS, "rows")}))
