"""The metrics of resamples of a file, from what is known of each row; equal to `metrics.measure`."""

from typing import Dict, List, Optional

import numpy as np

from ernie_pair.pairs.targets.metrics import METRICS, bootstrap_intervals, cross_entropies, log_odds


class CountedRows:
    """The METRICS of a file in which row i occurs counts[i] times; as ``measure`` of that file, but fast.

    ``logits`` float32 [N, C], ``labels`` int64 [N]; ``predictions``: as in ``measure``.
    """

    def __init__(self, logits: np.ndarray, labels: np.ndarray, predictions: Optional[np.ndarray] = None):
        self.num_classes, self.num_rows = logits.shape[1], len(labels)
        self.losses = cross_entropies(logits, labels)
        predicted = logits.argmax(axis=1) if predictions is None else predictions
        self.cells = labels * self.num_classes + predicted
        measured = [1] if self.num_classes == 2 else range(self.num_classes)
        odds = log_odds(logits)
        self.rankings = [_Ranking(odds[:, label], labels == label) for label in measured]

    def measure(self, counts: np.ndarray) -> Dict[str, float]:
        """Return the METRICS of the file in which row i occurs counts[i] times; ``counts`` int64 [N]."""
        size = self.num_classes
        table = np.bincount(self.cells, counts, size * size).reshape(size, size)
        ranked = np.mean([ranking.measure(counts) for ranking in self.rankings], axis=0)
        values = {"loss": self.losses @ counts / counts.sum(), **_of_table(table)}
        values.update(zip(("auc", "average_precision"), ranked))
        return {name: float(values[name]) for name in METRICS}


class _Ranking:
    """Rows by falling score; rows of one score stand together."""

    def __init__(self, scores: np.ndarray, is_positive: np.ndarray):
        self.order = np.argsort(-scores, kind="stable")
        self.is_positive = is_positive[self.order]
        ordered = scores[self.order]
        self.ends = np.append(np.flatnonzero(np.diff(ordered)), len(scores) - 1)

    def measure(self, counts: np.ndarray) -> List[float]:
        """Return AUC and average precision for ``counts`` [N]; nan without a positive or a negative."""
        counts = counts[self.order]
        above = np.cumsum(counts)[self.ends].astype(np.float64)
        hits = np.cumsum(counts * self.is_positive)[self.ends].astype(np.float64)
        positives, negatives = hits[-1], above[-1] - hits[-1]
        if not positives or not negatives:
            return [np.nan, np.nan]
        new_hits = np.diff(hits, prepend=0)
        new_misses = np.diff(above - hits, prepend=0)
        area = (new_misses * (hits - new_hits / 2)).sum() / (positives * negatives)
        return [area, (new_hits * hits / np.maximum(above, 1)).sum() / positives]


def _of_table(table: np.ndarray) -> Dict[str, float]:
    """Return the metrics that follow from the confusion matrix [label, prediction]."""
    hits, labelled, guessed = np.diag(table), table.sum(axis=1), table.sum(axis=0)
    total = table.sum()
    precision, recall = hits / np.maximum(guessed, 1), hits / np.maximum(labelled, 1)
    f1 = 2 * hits / np.maximum(labelled + guessed, 1)
    counted = np.array([False, True]) if len(table) == 2 else labelled + guessed > 0
    spread = np.sqrt((total**2 - guessed @ guessed) * (total**2 - labelled @ labelled))
    unspread = 0.0 if (labelled > 0).sum() > 1 else np.nan
    return {
        "accuracy": hits.sum() / total,
        "precision": precision[counted].mean(),
        "recall": recall[counted].mean(),
        "f1": f1[counted].mean(),
        "mcc": (hits.sum() * total - labelled @ guessed) / spread if spread else unspread,
    }


def intervals(
    logits: np.ndarray, labels: np.ndarray, samples: int, seed: int, predictions: Optional[np.ndarray] = None
) -> Dict[str, List[float]]:
    """Return {metric: [low, high]}, the percentile bootstrap of ``samples`` resamples of the rows.

    ``logits`` float32 [N, C], ``labels`` int64 [N]; ``predictions``: as in ``measure``. A metric that has no
    value on any resample is left out.
    """
    rows = CountedRows(logits, labels, predictions)
    return bootstrap_intervals(rows.measure, METRICS, rows.num_rows, samples, seed)
