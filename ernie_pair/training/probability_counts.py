"""Counts of the probabilities of class 1 in an event of an evaluation, and what VisualDL draws of them."""

from typing import Any, Dict, List, Optional

import numpy as np

NAME = "probability_counts"
PARTS, BARS = 100, 20  # thresholds of a curve, at most 127 in VisualDL; bars of a histogram
MOST_ROWS = 1_000_000  # of a histogram; of more, every second, third, ... is drawn
LARGEST = 1 << 40


def count_probabilities(probabilities: np.ndarray, labels: np.ndarray) -> List[List[int]]:
    """Return the counts of probabilities of class 1, float64 [N], by labels int64 [N]; NaN is ignored."""
    finite = np.isfinite(probabilities)
    parts = np.minimum((probabilities[finite] * PARTS).astype(np.int64), PARTS - 1)
    known = labels[finite]
    return [np.bincount(parts[known == label], minlength=PARTS).tolist() for label in (0, 1)]


def parse_counts(content: object) -> Optional[np.ndarray]:
    """Return the counts of an event, int64 [2, PARTS]; None if it has no valid ones."""
    sound = (
        isinstance(content, list)
        and len(content) == 2
        and all(isinstance(row, list) and len(row) == PARTS for row in content)
        and all(type(count) is int and 0 <= count < LARGEST for row in content for count in row)
    )
    return np.array(content, dtype=np.int64) if sound else None


def curve_of(counts: np.ndarray) -> Dict[str, List]:
    """Return the precision-recall curve of counts [2, PARTS] at the lower ends of the parts.

    If nothing is predicted as class 1, the precision is 1, as in scikit-learn.
    """
    fp, tp = (row[::-1].cumsum()[::-1] for row in counts)
    tn, fn = fp[0] - fp, tp[0] - tp
    precision = np.where(tp + fp, tp / np.maximum(tp + fp, 1), 1.0)
    recall = tp / max(int(tp[0]), 1)
    content = {"tp": tp, "fp": fp, "tn": tn, "fn": fn, "precision": precision, "recall": recall}
    return {name: values.tolist() for name, values in content.items()}


def draw_counts(writer: Any, group: str, counts: np.ndarray, step: int) -> None:
    """Draw a step with a `LogWriter` of VisualDL: a histogram of each label, and the curve."""
    from unittest.mock import patch

    from visualdl.component import base_component

    bars = counts.reshape(2, BARS, -1).sum(axis=2)
    bars //= 1 + bars.sum() // MOST_ROWS
    edges = np.linspace(0, 1, BARS + 1)
    for label, rows in enumerate(bars):
        values = np.repeat((edges[:-1] + edges[1:]) / 2, rows)
        writer.add_histogram(f"{group}/probability of 1, label {label}", values, step, buckets=edges)
    # VisualDL 2.5.3 computes the curve itself, with np.float, which NumPy 1.24 removed.
    with patch.object(base_component, "compute_curve", return_value=curve_of(counts)):
        writer.add_pr_curve(f"{group}/class 1", [], [], step)
