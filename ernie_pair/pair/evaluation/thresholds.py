"""The threshold on the probability of class 1: precision, recall and F1 of every choice."""

from typing import Dict, NamedTuple

import numpy as np


class Curve(NamedTuple):
    """Precision, recall and F1 of every threshold: one entry per distinct probability, rising.

    A row is called 1 from that probability on. ``rows`` is int64, the others are float64, [K] each.
    """

    probabilities: np.ndarray
    rows: np.ndarray  # called 1
    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray


def threshold_curve(scores: np.ndarray, labels: np.ndarray) -> Curve:
    """Return precision, recall and F1 of every threshold.

    ``scores`` float64 [N]: the probability of class 1; ``labels`` int64 [N] hold both classes.
    """
    from sklearn.metrics import precision_recall_curve

    precision, recall, probabilities = precision_recall_curve(labels, scores)
    precision, recall = precision[:-1], recall[:-1]  # the last pair belongs to no row called 1
    rows = len(scores) - np.searchsorted(np.sort(scores), probabilities, side="left")
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-300)
    return Curve(probabilities, rows, precision, recall, f1)


def best_f1(curve: Curve) -> Dict[str, object]:
    """Return the threshold of the best F1 and what it reaches; of equal ones, the highest threshold."""
    return _choice(curve, len(curve.f1) - 1 - int(curve.f1[::-1].argmax()))


def at_precision(curve: Curve, asked: float) -> Dict[str, object]:
    """Return the lowest threshold that reaches the precision ``asked``, or the nearest where none does."""
    enough = np.flatnonzero(curve.precision >= asked)
    found = {"asked": asked, "reached": bool(len(enough))}
    if len(enough):
        return {**found, **_choice(curve, int(enough[0]))}
    return {**found, **_choice(curve, int(curve.precision.argmax()))}


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


def _choice(curve: Curve, place: int) -> Dict[str, object]:
    """Return a threshold and what it reaches.

    It lies halfway to the next lower probability: a last bit more or less moves no row.
    """
    at = float(curve.probabilities[place])
    below = float(curve.probabilities[place - 1]) if place else 0.0
    halfway = (at + below) / 2
    return {
        "threshold": halfway if halfway > below else at,
        "rows": int(curve.rows[place]),
        "precision": float(curve.precision[place]),
        "recall": float(curve.recall[place]),
        "f1": float(curve.f1[place]),
    }
