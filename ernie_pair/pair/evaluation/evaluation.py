"""What is measured of the answers of a model on one file, as one dictionary that JSON can hold."""

import math
from typing import Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from ernie_pair.pair.config import EvaluateConfig
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.evaluation.calibration import (
    BINS,
    Bin,
    calibration_error,
    equal_mass_bins,
    said_and_true,
)
from ernie_pair.pair.evaluation.intervals import intervals
from ernie_pair.pair.evaluation.slices import slice_table
from ernie_pair.pair.evaluation.thresholds import Curve, at_precision, best_f1, threshold_curve
from ernie_pair.pair.metrics import measure
from ernie_pair.pair_scores import probabilities


class Fitted(NamedTuple):
    """A temperature, the file whose labels it was fitted on, and its rows where they are known."""

    temperature: float
    fitted_on: str
    rows: Optional[int]


class Answers(NamedTuple):
    """The rows of a file and what a model says of them.

    ``names`` are those of the C classes; ``logits`` float32 [N, C], ``swapped`` those of (B, A) where they
    were asked for; ``in_use`` is the temperature of the probabilities that a prediction would show,
    ``fitted`` the one to be judged.
    """

    pairs: Pairs
    names: Tuple[str, ...]
    logits: np.ndarray
    swapped: Optional[np.ndarray]
    in_use: float
    fitted: Fitted

    @property
    def num_classes(self) -> int:
        return self.logits.shape[1]

    @property
    def labels(self) -> np.ndarray:
        return self.pairs.labels

    @property
    def guesses(self) -> np.ndarray:
        return self.logits.argmax(axis=1)

    @property
    def shown(self) -> np.ndarray:
        """The probabilities of a prediction, float64 [N, C]."""
        return probabilities(self.logits, self.in_use)

    def curve(self) -> Optional[Curve]:
        """Of two classes where both occur."""
        if self.num_classes != 2 or len(np.unique(self.labels)) < 2:
            return None
        return threshold_curve(self.shown[:, 1], self.labels)

    def bins(self, temperature: float) -> List[Bin]:
        return equal_mass_bins(*said_and_true(probabilities(self.logits, temperature), self.labels))


def evaluation_of(answers: Answers, config: EvaluateConfig) -> Dict[str, object]:
    """The metrics, rows, and a section for each further question; what is undefined is None."""
    labels, logits = answers.labels, answers.logits
    curve = answers.curve()
    sections = {
        "rows": len(labels),
        "model": config.model_path,
        "input_file": config.input_file,
        "input_sha256": answers.pairs.sha256,
        "classes": list(answers.names),
        "confusion": _confusion(answers),
        "calibration": _calibration(answers),
        "slices": slice_table(
            answers.pairs.left, answers.pairs.right, labels, answers.guesses, answers.num_classes
        ),
    }
    if config.bootstrap:
        sections["intervals"] = intervals(logits, labels, config.bootstrap, config.seed)
    if curve is not None:
        chosen = {"best_f1": best_f1(curve), "at_precision": at_precision(curve, config.at_precision)}
        sections["thresholds"] = {"temperature": answers.in_use, **chosen}
    if answers.swapped is not None:
        sections["swap"] = _swap(answers)
    metrics = measure(logits, labels)
    return {**{n: value if math.isfinite(value) else None for n, value in metrics.items()}, **sections}


def _confusion(answers: Answers) -> List[List[int]]:
    """Rows by label, columns by what was predicted."""
    size = answers.num_classes
    cells = answers.labels * size + answers.guesses
    return np.bincount(cells, minlength=size * size).reshape(size, size).tolist()


def _calibration(answers: Answers) -> Dict[str, object]:
    temperature = answers.fitted.temperature
    return {
        **answers.fitted._asdict(),
        "bins": BINS,
        "ece": calibration_error(answers.bins(1.0)),
        "ece_calibrated": calibration_error(answers.bins(temperature)),
        "loss_calibrated": measure(answers.logits.astype(np.float64) / temperature, answers.labels)["loss"],
    }


def _swap(answers: Answers) -> Dict[str, float]:
    """``mean_difference``: half the sum of |p(A, B) - p(B, A)| over the classes; of two, that of class 1."""
    differences = np.abs(answers.shown - probabilities(answers.swapped, answers.in_use)).sum(axis=1) / 2
    guesses = answers.swapped.argmax(axis=1)
    return {
        "flip_rate": float(np.mean(guesses != answers.guesses)),
        "mean_difference": float(differences.mean()),
        "accuracy_swapped": float(np.mean(guesses == answers.labels)),
    }
