"""The calibration error of probabilities, and the temperature that reduces it."""

import math
from typing import Dict, List, NamedTuple, Tuple

import numpy as np

from ernie_pair.pairs.targets.metrics import cross_entropies

BINS = 15
LAST_BITS = 1e-6  # of a score, by which it may differ when it is computed again
SMALLEST, LARGEST = 0.05, 20.0  # temperatures beyond these say nothing: the classes are separated, or noise


class Bin(NamedTuple):
    """Rows of similar probability: how many, their mean probability, and the observed share of the event."""

    rows: int
    probability: float
    observed: float


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the temperature of the lowest log loss of logits [N, C] on labels int64 [N].

    It lies between SMALLEST and LARGEST. Temperature scaling: Guo et al. 2017.
    """
    from scipy.optimize import minimize_scalar

    exact = logits.astype(np.float64)

    def loss(log_temperature: float) -> float:
        return float(np.mean(cross_entropies(exact / math.exp(log_temperature), labels)))

    bounds = (math.log(SMALLEST), math.log(LARGEST))
    return math.exp(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-9}).x)


def is_at_the_end(temperature: float) -> bool:
    """Return whether a fitted temperature is at the end of its range, where it says nothing."""
    return not SMALLEST * 1.01 < temperature < LARGEST / 1.01


def confidences_and_hits(probabilities: np.ndarray, labels: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Return the stated probability of every row, float64 [N], and whether it came true, bool [N].

    ``probabilities`` float64 [N, C]. Of two classes: the probability of class 1, and whether it is the label.
    Of more: that of the most probable class, and whether that is the label.
    """
    if probabilities.shape[1] == 2:
        return probabilities[:, 1], labels == 1
    return top_label(probabilities, labels)


def equal_mass_bins(stated: np.ndarray, true: np.ndarray) -> List[Bin]:
    """Return at most BINS bins by rising ``stated`` [N], of as many rows each as equal values allow."""
    ranks = np.searchsorted(np.sort(stated), stated, side="left")
    return _bins_of(stated, true, ranks * BINS // len(stated))


def top_label(probabilities: np.ndarray, labels: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Return the probability of the likeliest class of each row, and whether that is its label, [N] each."""
    return probabilities.max(axis=1), labels == probabilities.argmax(axis=1)


def equal_width_bins(stated: np.ndarray, true: np.ndarray) -> List[Bin]:
    """Return the bins that hold rows, of BINS bins (0, 1/BINS], (1/BINS, 2/BINS] and so on."""
    return _bins_of(stated, true, np.maximum(np.ceil(stated * BINS).astype(int) - 1, 0))


def _bins_of(stated: np.ndarray, true: np.ndarray, places: np.ndarray) -> List[Bin]:
    return [
        Bin(int(inside.sum()), float(stated[inside].mean()), float(true[inside].mean()))
        for inside in (places == place for place in np.unique(places))
    ]


def calibration_error(bins: List[Bin]) -> float:
    """Return the expected calibration error (ECE): the mean |probability - observed| of the bins, by rows."""
    return sum(b.rows * abs(b.probability - b.observed) for b in bins) / sum(b.rows for b in bins)


class Curve(NamedTuple):
    """Precision, recall, F1 and accuracy of every threshold: one entry per distinct probability, rising.

    A row is called 1 from that probability on. ``rows`` is int64, the others are float64, [K] each.
    """

    probabilities: np.ndarray
    rows: np.ndarray  # called 1
    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    accuracy: np.ndarray


def threshold_curve(scores: np.ndarray, labels: np.ndarray) -> Curve:
    """Return precision, recall, F1 and accuracy of every threshold.

    ``scores`` float64 [N]: the probability of class 1; ``labels`` int64 [N] hold both classes.
    """
    from sklearn.metrics import precision_recall_curve

    precision, recall, probabilities = precision_recall_curve(labels, scores)
    precision, recall = precision[:-1], recall[:-1]  # the last pair belongs to no row called 1
    rows = len(scores) - np.searchsorted(np.sort(scores), probabilities, side="left")
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-300)
    hits, positives = np.rint(precision * rows), int(labels.sum())
    accuracy = (2 * hits - rows + len(labels) - positives) / len(labels)
    return Curve(probabilities, rows, precision, recall, f1, accuracy)


def best_f1(curve: Curve) -> Dict[str, object]:
    """Return the threshold of the best F1 and what it reaches; of equal ones, the highest threshold."""
    return _choice(curve, len(curve.f1) - 1 - int(curve.f1[::-1].argmax()))


def best_accuracy(curve: Curve) -> Dict[str, object]:
    """Return the threshold of the best accuracy and what it reaches; of equal ones, that nearest to 0.5."""
    best = np.flatnonzero(curve.accuracy == curve.accuracy.max())
    return _choice(curve, int(best[np.abs(curve.probabilities[best] - 0.5).argmin()]))


def at_precision(curve: Curve, asked: float, is_share: bool = True) -> Dict[str, object]:
    """Return the lowest threshold that reaches the precision ``asked``, or the nearest where none does.

    ``is_share``: the scores are probabilities, so that those below the lowest of the curve begin at 0.
    """
    enough = np.flatnonzero(curve.precision >= asked)
    place = enough[0] if len(enough) else curve.precision.argmax()
    return {"asked": asked, "reached": bool(len(enough)), **_choice(curve, int(place), is_share)}


def precision_interval(right: int, rows: int) -> List[float]:
    """Return the 95 % interval of a precision, exact (Clopper and Pearson 1934); ``rows`` were called 1."""
    from scipy.stats import binomtest

    return [float(end) for end in binomtest(right, rows).proportion_ci(0.95)]


def measure_at(threshold: float, scores: np.ndarray, labels: np.ndarray) -> Dict[str, object]:
    """Return rows called 1, precision, recall, f1 and accuracy of a threshold that is given.

    ``scores`` float64 [N]: the probability of class 1; ``labels`` int64 [N].
    """
    called = scores >= threshold
    hits, positives = int(np.sum(called & (labels == 1))), int(np.sum(labels == 1))
    return {
        "threshold": threshold,
        "rows": int(called.sum()),
        "precision": hits / max(int(called.sum()), 1),
        "recall": hits / max(positives, 1),
        "f1": 2 * hits / max(int(called.sum()) + positives, 1),
        "accuracy": float(np.mean(called == (labels == 1))),
    }


def _choice(curve: Curve, place: int, is_share: bool = True) -> Dict[str, object]:
    """Return a threshold halfway to the next lower value, where no last bit moves a row, and its figures."""
    at = float(curve.probabilities[place])
    lowest = 0.0 if is_share else at - LAST_BITS * max(1.0, abs(at))
    below = float(curve.probabilities[place - 1]) if place else lowest
    halfway = (at + below) / 2
    _, *figures = curve._fields
    reached = {name: getattr(curve, name)[place].item() for name in figures}
    return {"threshold": halfway if halfway > below else at, **reached}
