"""All measurements of the predictions of a model on one file, as one dictionary that JSON can hold."""

import math
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from data_tools.files.standard_streams import as_asked
from ernie_pair.inference.softmax import probabilities
from ernie_pair.model_files.temperature import Calibration
from ernie_pair.pair.config.ask_config import EvaluateConfig
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.evaluation.calibration import (
    BINS,
    Bin,
    calibration_error,
    confidences_and_hits,
    equal_mass_bins,
    equal_width_bins,
    is_at_the_end,
    top_label,
)
from ernie_pair.pair.evaluation.intervals import intervals
from ernie_pair.pair.evaluation.robustness_table import Bearing, robustness_table
from ernie_pair.pair.evaluation.slices import slice_table
from ernie_pair.pair.evaluation.thresholds import Curve, at_precision, best_f1, measure_at, threshold_curve
from ernie_pair.pair.metrics import find_single_class, measure
from ernie_pair.pair.targets.bootstrap import bootstrap_intervals
from ernie_pair.pair.targets.class_table import class_averages, class_table

ECE_OF_TWO = f"{BINS} equal-mass bins by the probability of class 1"
ECE_OF_MORE = f"{BINS} equal-mass bins by the probability of the predicted class"
ECE_TOP_LABEL = f"{BINS} equal-width bins by the probability of the predicted class"


class Fitted(NamedTuple):
    """A temperature, the file whose labels it was fitted on, its rows and its hash where they are known."""

    temperature: float
    fitted_on: str
    rows: Optional[int]
    fitted_on_sha256: str = ""


class Scored(NamedTuple):
    """Labelled pairs and the logits float32 [N, C] of a model on them."""

    pairs: Pairs
    logits: np.ndarray

    def curve(self, temperature: float) -> Optional[Curve]:
        """Return precision and recall of every threshold; None unless two classes exist and both occur."""
        labels = self.pairs.known_labels
        if self.logits.shape[1] != 2 or len(np.unique(labels)) < 2:
            return None
        return threshold_curve(probabilities(self.logits, temperature)[:, 1], labels)


class Answers(NamedTuple):
    """The rows of a file and what a model says of them.

    ``names`` are those of the C classes; ``logits`` float32 [N, C], ``swapped`` those of (B, A) where they
    were asked for; ``in_use`` is the temperature of the probabilities that a prediction would show,
    ``fitted`` the one to be judged. ``symmetric`` says how pairs were scored; thresholds are chosen on
    ``tuning``, None: on the rows themselves; ``saved`` is what the model's folder holds for these scores;
    ``bearing`` is of changed pairs, where they were asked for.
    """

    pairs: Pairs
    names: Tuple[str, ...]
    logits: np.ndarray
    swapped: Optional[np.ndarray]
    in_use: float
    fitted: Fitted
    symmetric: str = "none"
    tuning: Optional[Scored] = None
    saved: Calibration = Calibration()
    bearing: Optional[Bearing] = None

    @property
    def num_classes(self) -> int:
        """Return the number of classes C."""
        return self.logits.shape[1]

    @property
    def labels(self) -> np.ndarray:
        """Return the labels of the rows, int64 [N]."""
        return self.pairs.known_labels

    @property
    def predictions(self) -> np.ndarray:
        """Return the predictions: the most probable class of each row, int64 [N]."""
        return self.logits.argmax(axis=1)

    @property
    def shown(self) -> np.ndarray:
        """Return the probabilities that a prediction would show, float64 [N, C]."""
        return probabilities(self.logits, self.in_use)

    def curve(self) -> Optional[Curve]:
        """Return precision and recall of every threshold, at the temperature in use.

        None unless two classes exist and both occur.
        """
        return Scored(self.pairs, self.logits).curve(self.in_use)

    def bins(self, temperature: float) -> List[Bin]:
        """Return the equal-mass bins of the probabilities at ``temperature``, see ``equal_mass_bins``."""
        return equal_mass_bins(*confidences_and_hits(probabilities(self.logits, temperature), self.labels))

    def top_label_error(self, temperature: float) -> float:
        """Return the expected calibration error as papers give it, see ECE_TOP_LABEL."""
        return calibration_error(
            equal_width_bins(*top_label(probabilities(self.logits, temperature), self.labels))
        )


def evaluation_of(answers: Answers, config: EvaluateConfig) -> Dict[str, object]:
    """Return the metrics, facts about the rows, and a section for each further question.

    The dictionary can be written as JSON; what is undefined is None.
    """
    labels, logits = answers.labels, answers.logits
    thresholds, single = thresholds_of(answers, config.at_precision), find_single_class(logits, labels)
    confusion = _confusion(answers)
    sections = {
        "rows": len(labels),
        "model": config.model_path,
        "input_file": as_asked(config.input_file),
        "input_sha256": answers.pairs.sha256,
        "classes": list(answers.names),
        "symmetric": answers.symmetric,
        "single_class": None if single is None else answers.names[single],
        "confusion": confusion.tolist(),
        "per_class": class_table(confusion, answers.names),
        "averages": class_averages(confusion),
        "calibration": _calibration(answers),
        "slices": slice_table(
            answers.pairs.left, answers.pairs.right, labels, answers.predictions, answers.num_classes
        ),
    }
    if config.bootstrap:
        sections["intervals"] = intervals(logits, labels, config.bootstrap, config.seed)
        of_classes = class_intervals(answers.labels, answers.predictions, answers.num_classes, config)
        for row, interval in zip(sections["per_class"], of_classes):
            row["f1_interval"] = interval
    if thresholds is not None:
        sections["thresholds"] = thresholds
    if answers.swapped is not None:
        sections["swap"] = _swap(answers, answers.swapped)
    if answers.bearing is not None:
        table = robustness_table(answers.bearing, config.bootstrap, config.seed)
        sections["robustness"] = {"seed": config.seed, "kinds": table}
    metrics = measure(logits, labels)
    return {**{n: value if math.isfinite(value) else None for n, value in metrics.items()}, **sections}


def class_intervals(
    labels: np.ndarray, predictions: np.ndarray, num_classes: int, config: EvaluateConfig
) -> List[Optional[List[float]]]:
    """Return the interval of the F1 of each class, see ``bootstrap_intervals``."""
    names = list(map(str, range(num_classes)))
    cells = labels * num_classes + predictions

    def measure_classes(counts: np.ndarray) -> Dict[str, float]:
        table = np.bincount(cells, counts, num_classes**2).reshape(num_classes, num_classes)
        return {row["class"]: row["f1"] for row in class_table(table, names)}

    found = bootstrap_intervals(measure_classes, names, len(labels), config.bootstrap, config.seed)
    return [found.get(name) for name in names]


def thresholds_of(answers: Answers, precision: float) -> Optional[Dict[str, Any]]:
    """Return the thresholds of the best F1 and of an asked precision, and the file they are chosen on.

    Return None where there are none to choose. Where that file is another than the judged one, ``judged``
    holds what each does on the judged rows; ``saved`` is the threshold of the model's folder there.
    """
    tuning = answers.tuning or Scored(answers.pairs, answers.logits)
    curve = tuning.curve(answers.in_use)
    if curve is None:
        return None
    is_judged = tuning.pairs.sha256 == answers.pairs.sha256
    found: Dict[str, Any] = {
        "temperature": answers.in_use,
        "tuned_on": tuning.pairs.path,
        "tuned_on_sha256": tuning.pairs.sha256,
        "tuned_rows": len(tuning.pairs),
        "is_judged_file": is_judged,
        "best_f1": best_f1(curve),
        "at_precision": at_precision(curve, precision),
    }
    for name in () if is_judged else ("best_f1", "at_precision"):
        found[name]["judged"] = _judged(answers, found[name]["threshold"])
    if answers.saved.threshold is not None:
        found["saved"] = _saved(answers, answers.saved.threshold)
    return found


def _saved(answers: Answers, threshold: float) -> Dict[str, object]:
    saved = answers.saved
    return {
        **_judged(answers, threshold),
        "tuned_on": saved.tuned_on,
        "tuned_on_sha256": saved.tuned_on_sha256,
        "tuned_for": saved.tuned_for,
        "is_judged_file": saved.tuned_on_sha256 == answers.pairs.sha256,
    }


def _judged(answers: Answers, threshold: float) -> Dict[str, object]:
    return measure_at(threshold, answers.shown[:, 1], answers.labels)


def _confusion(answers: Answers) -> np.ndarray:
    """Return the confusion matrix, int64 [C, C]: counts by label, then by prediction."""
    size = answers.num_classes
    cells = answers.labels * size + answers.predictions
    return np.bincount(cells, minlength=size * size).reshape(size, size)


def _calibration(answers: Answers) -> Dict[str, object]:
    fitted = answers.fitted
    temperature = fitted.temperature
    return {
        **fitted._asdict(),
        "is_judged_file": fitted.fitted_on_sha256 == answers.pairs.sha256,
        "at_end_of_range": is_at_the_end(temperature),
        "bins": BINS,
        "ece_method": ECE_OF_TWO if answers.num_classes == 2 else ECE_OF_MORE,
        "ece": calibration_error(answers.bins(1.0)),
        "ece_calibrated": calibration_error(answers.bins(temperature)),
        "ece_top_label_method": ECE_TOP_LABEL,
        "ece_top_label": answers.top_label_error(1.0),
        "ece_top_label_calibrated": answers.top_label_error(temperature),
        "loss_calibrated": measure(answers.logits.astype(np.float64) / temperature, answers.labels)["loss"],
    }


def _swap(answers: Answers, swapped: np.ndarray) -> Dict[str, float]:
    """Return what changes when the two texts change places.

    ``mean_difference``: half the sum of |p(A, B) - p(B, A)| over the classes; of two, that of class 1.
    ``accuracy_both_orders``: of the mean of the logits, as --symmetric average takes it.
    """
    differences = np.abs(answers.shown - probabilities(swapped, answers.in_use)).sum(axis=1) / 2
    predictions, both = swapped.argmax(axis=1), (answers.logits + swapped).argmax(axis=1)
    return {
        "flip_rate": float(np.mean(predictions != answers.predictions)),
        "mean_difference": float(differences.mean()),
        "accuracy_swapped": float(np.mean(predictions == answers.labels)),
        "accuracy_both_orders": float(np.mean(both == answers.labels)),
    }
