"""Metrics of scores against the labels of a file, and how far they may be off because the rows are few."""

from typing import Dict, List, Optional, Tuple

import numpy as np

from data_tools.files.errors import InputError
from ernie_pair.inference.scores import scores_of

# What `measure_scores` returns; every one is a number that may choose the best model of a run.
REGRESSION_METRICS = ("loss", "pearson", "spearman", "mse", "mae")
CORRELATIONS = ("pearson", "spearman")

Range = Optional[Tuple[float, float]]


def measure_scores(outputs: np.ndarray, labels: np.ndarray, label_range: Range = None) -> Dict[str, float]:
    """Return the REGRESSION_METRICS of outputs [N, 1] on labels float64 [N], in that order.

    loss is the mean squared error of the outputs as training sees them, mse and mae are those of the scores
    that are shown, see ``scores_of``, and so are the correlations. These are 0 where all scores are equal,
    and nan where all labels are.
    """
    return CountedScores(outputs, labels, label_range).measure(np.ones(len(labels), dtype=np.int64))


class CountedScores:
    """The REGRESSION_METRICS of a file in which row i occurs counts[i] times; see ``measure_scores``."""

    def __init__(self, outputs: np.ndarray, labels: np.ndarray, label_range: Range):
        scores, labels = scores_of(outputs, label_range), labels.astype(np.float64)
        self.scores, self.labels = scores, labels
        self.squares = (outputs[:, 0].astype(np.float64) - labels) ** 2
        self.errors = np.abs(scores - labels)
        self.ranks_of_scores, self.ranks_of_labels = _Ranks(scores), _Ranks(labels)

    def measure(self, counts: np.ndarray) -> Dict[str, float]:
        """Return the metrics of the file in which row i occurs counts[i] times; ``counts`` int64 [N]."""
        total = counts.sum()
        ranks = self.ranks_of_scores.measure(counts), self.ranks_of_labels.measure(counts)
        values = {
            "loss": self.squares @ counts / total,
            "pearson": correlation(self.scores, self.labels, counts),
            "spearman": correlation(*ranks, counts),
            "mse": (self.errors**2) @ counts / total,
            "mae": self.errors @ counts / total,
        }
        return {name: float(value) for name, value in values.items()}


class _Ranks:
    """The ranks of values, equal ones sharing the mean of theirs."""

    def __init__(self, values: np.ndarray):
        self.order = np.argsort(values, kind="stable")
        ordered = values[self.order]
        starts = np.append(True, ordered[1:] != ordered[:-1])
        self.group, self.firsts = np.cumsum(starts) - 1, np.flatnonzero(starts)

    def measure(self, counts: np.ndarray) -> np.ndarray:
        """Return the rank of each value, float64 [N], where value i occurs counts[i] times."""
        sizes = np.add.reduceat(counts[self.order], self.firsts)
        middle = np.cumsum(sizes) - (sizes - 1) / 2
        ranks = np.empty(len(counts))
        ranks[self.order] = middle[self.group]
        return ranks


def correlation(found: np.ndarray, wanted: np.ndarray, counts: np.ndarray) -> float:
    """Return Pearson's correlation of two columns float64 [N] in which row i occurs counts[i] times.

    It is 0 where all of ``found`` are equal, and nan where all of ``wanted`` are.
    """
    total, is_there = counts.sum(), counts > 0
    if np.ptp(wanted[is_there]) == 0:
        return np.nan
    if np.ptp(found[is_there]) == 0:
        return 0.0
    found, wanted = (column - column @ counts / total for column in (found, wanted))
    spreads = np.sqrt((found**2) @ counts) * np.sqrt((wanted**2) @ counts)
    return float(np.clip((found * wanted) @ counts / spreads, -1.0, 1.0)) if spreads else 0.0


def refuse_equal_labels(metric: str, labels: np.ndarray, where: str) -> None:
    """Raise InputError when ``metric`` has no value on these labels float64 [N], whatever the scores."""
    if metric in CORRELATIONS and len(np.unique(labels)) < 2:
        raise InputError(
            f"{where} has a single label, {labels[0]:g}, so {metric} is undefined on it; take a file with "
            "several, or another metric"
        )


def error_bins(scores: np.ndarray, labels: np.ndarray, bins: int = 10) -> List[Dict[str, float]]:
    """Return how good the scores are by label: at most ``bins`` parts of the labels' range that hold rows.

    A dictionary per part: low and high label, rows, mean label, mean score, mae.
    """
    edges = np.linspace(labels.min(), labels.max(), bins + 1)
    places = np.clip(np.searchsorted(edges, labels, side="right") - 1, 0, bins - 1)
    found = []
    for place in np.unique(places):
        inside = places == place
        found.append(
            {
                "low": float(edges[place]),
                "high": float(edges[place + 1]),
                "rows": int(inside.sum()),
                "mean_label": float(labels[inside].mean()),
                "mean_score": float(scores[inside].mean()),
                "mae": float(np.abs(scores[inside] - labels[inside]).mean()),
            }
        )
    return found
