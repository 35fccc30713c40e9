"""The probability above which predictions of a class are correct often enough, with confidence.

The lower bound of Clopper and Pearson for a share of hits, one-sided, is taken of STEPS parts of the rows
that are predicted so, the surest first. The doubt is divided by STEPS (Bonferroni), so that the bound holds
for the part that is chosen, though it was chosen by looking.
"""

from typing import List, NamedTuple, Optional

import numpy as np

STEPS = 20


class PreciseThreshold(NamedTuple):
    """A threshold for the predictions of a class, and what it reaches on the rows it was chosen on.

    ``threshold`` is None where none is precise enough; then the rest tells of the best bound. ``rows`` are at
    or above it, of ``predicted`` rows that are predicted so at all; ``bound`` lies below the true precision
    with the confidence that was asked for.
    """

    threshold: Optional[float]
    rows: int
    predicted: int
    precision: float
    bound: float


def precise_thresholds(
    probabilities: np.ndarray, labels: np.ndarray, precision: float, confidence: float
) -> List[PreciseThreshold]:
    """Return a threshold per class: the lowest whose bound is ``precision`` or more.

    ``probabilities`` float64 [N, C], ``labels`` int64 [N].
    """
    predictions = probabilities.argmax(axis=1)
    found = []
    for label in range(probabilities.shape[1]):
        rows = predictions == label
        found.append(_threshold(probabilities[rows, label], labels[rows] == label, precision, confidence))
    return found


def _threshold(scores: np.ndarray, hits: np.ndarray, precision: float, confidence: float) -> PreciseThreshold:
    """Return the threshold of a class: ``scores`` float64 [N] of its predictions, ``hits`` bool [N]."""
    order = np.argsort(-scores, kind="stable")
    scores, right = scores[order], np.cumsum(hits[order])
    best = PreciseThreshold(None, 0, len(scores), 0.0, 0.0)
    for step in range(STEPS, 0, -1):
        count = round(len(scores) * step / STEPS)
        if not count:
            break
        count = int(
            np.searchsorted(-scores, -scores[count - 1], side="right")
        )  # rows of one score go together
        bound = lower_bound(int(right[count - 1]), count, 1 - (1 - confidence) / STEPS)
        reached = PreciseThreshold(None, count, len(scores), float(right[count - 1] / count), bound)
        if bound >= precision:
            return reached._replace(threshold=float(scores[count - 1]))
        best = max(best, reached, key=lambda one: one.bound)
    return best


def lower_bound(hits: int, rows: int, confidence: float) -> float:
    """Return the one-sided lower bound (Clopper, Pearson) of the share that ``hits`` of ``rows`` show."""
    from scipy.stats import beta

    return float(beta.ppf(1 - confidence, hits, rows - hits + 1)) if hits else 0.0
