"""How far probabilities are from what happens, and the temperature that brings them nearer."""

import logging
import math
from typing import List, NamedTuple, Tuple

import numpy as np

from ernie_pair.pair.metrics import cross_entropies

BINS = 15
SMALLEST, LARGEST = 0.05, 20.0  # temperatures beyond these say nothing: the classes are separated, or noise

logger = logging.getLogger(__name__)


class Bin(NamedTuple):
    """Rows of like probability: how many, what was said of them on average, and what came true."""

    rows: int
    said: float
    true: float


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """The temperature of the lowest log loss on these rows, between SMALLEST and LARGEST."""
    from scipy.optimize import minimize_scalar

    exact = logits.astype(np.float64)

    def loss(log_temperature: float) -> float:
        return float(np.mean(cross_entropies(exact / math.exp(log_temperature), labels)))

    bounds = (math.log(SMALLEST), math.log(LARGEST))
    fitted = math.exp(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-9}).x)
    if not SMALLEST * 1.01 < fitted < LARGEST / 1.01:
        logger.warning("the temperature %.3g is at the end of its range; fit it on more rows", fitted)
    return fitted


def said_and_true(probabilities: np.ndarray, labels: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """What is said of every row, and whether it came true, [N] each.

    Of two classes: the probability of class 1, and whether it is the label. Of more: that of the
    likeliest class, and whether that is the label.
    """
    if probabilities.shape[1] == 2:
        return probabilities[:, 1], labels == 1
    return probabilities.max(axis=1), labels == probabilities.argmax(axis=1)


def equal_mass_bins(said: np.ndarray, true: np.ndarray) -> List[Bin]:
    """At most BINS bins by rising ``said``, of as many rows each as ties allow: equal ones share a bin."""
    ranks = np.searchsorted(np.sort(said), said, side="left")
    places = ranks * BINS // len(said)
    return [
        Bin(int(inside.sum()), float(said[inside].mean()), float(true[inside].mean()))
        for inside in (places == place for place in np.unique(places))
    ]


def calibration_error(bins: List[Bin]) -> float:
    """ECE: the mean over the rows of |said - true| of their bin."""
    return sum(b.rows * abs(b.said - b.true) for b in bins) / sum(b.rows for b in bins)
