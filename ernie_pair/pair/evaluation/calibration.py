"""The calibration error of probabilities, and the temperature that reduces it."""

import math
from typing import List, NamedTuple, Tuple

import numpy as np

from ernie_pair.pair.metrics import cross_entropies

BINS = 15
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


def equal_mass_bins(said: np.ndarray, true: np.ndarray) -> List[Bin]:
    """Return at most BINS bins by rising ``said`` [N], of as many rows each as ties allow.

    Equal values share a bin.
    """
    ranks = np.searchsorted(np.sort(said), said, side="left")
    places = ranks * BINS // len(said)
    return [
        Bin(int(inside.sum()), float(said[inside].mean()), float(true[inside].mean()))
        for inside in (places == place for place in np.unique(places))
    ]


def top_label(probabilities: np.ndarray, labels: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Return the probability of the likeliest class of each row, and whether that is its label, [N] each."""
    return probabilities.max(axis=1), labels == probabilities.argmax(axis=1)


def equal_width_bins(said: np.ndarray, true: np.ndarray) -> List[Bin]:
    """Return the bins that hold rows, of BINS bins (0, 1/BINS], (1/BINS, 2/BINS] and so on."""
    places = np.maximum(np.ceil(said * BINS).astype(int) - 1, 0)
    return [
        Bin(int(inside.sum()), float(said[inside].mean()), float(true[inside].mean()))
        for inside in (places == place for place in np.unique(places))
    ]


def calibration_error(bins: List[Bin]) -> float:
    """Return the expected calibration error (ECE): the mean |probability - observed| of the bins, by rows."""
    return sum(b.rows * abs(b.probability - b.observed) for b in bins) / sum(b.rows for b in bins)
