"""The share of common characters as a classifier: the baseline of every model."""

from pathlib import Path
from typing import Dict

import numpy as np

from ernie_pair.models.labels import parse_label_map
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_records import Columns
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.score.evaluation.evaluation import overlap


def read_pairs(path: Path) -> Pairs:
    """Return the labelled pairs of a file, whose classes are 0 and 1."""
    return PairSource("test_file", str(path), "test", parse_label_map("0=0,1=1"), Columns()).read()


def overlap_figures(train: Path, test: Path, choose: Path, metric: str) -> Dict[str, float]:
    """Return accuracy and auc of `overlap` on ``test``; its threshold is the most accurate on ``train``.

    chosen: its ``metric``, one of these, on ``choose``, the pairs by which models are chosen.
    """
    trained, asked, held_out = map(read_pairs, (train, test, choose))
    threshold = _most_accurate(_shares(trained), trained.known_labels)
    return {**_metrics_of(asked, threshold), "chosen": _metrics_of(held_out, threshold)[metric]}


def seen_figures(train: Path, test: Path) -> Dict[str, float]:
    """Return the shares of the pairs of ``test`` of which one text or both, or both, occur in ``train``."""
    texts, asked = read_pairs(train), read_pairs(test)
    known = {*texts.left, *texts.right}
    counts = np.array([(a in known) + (b in known) for a, b in zip(asked.left, asked.right)])
    return {"any": float(np.mean(counts > 0)), "both": float(np.mean(counts == 2))}


def _metrics_of(pairs: Pairs, threshold: float) -> Dict[str, float]:
    from sklearn.metrics import roc_auc_score

    shares, is_positive = _shares(pairs), pairs.known_labels == 1
    accuracy = np.mean((shares >= threshold) == is_positive)
    return {"accuracy": float(accuracy), "auc": float(roc_auc_score(is_positive, shares))}


def _shares(pairs: Pairs) -> np.ndarray:
    return np.array([overlap(a, b) for a, b in zip(pairs.left, pairs.right)])


def _most_accurate(shares: np.ndarray, labels: np.ndarray) -> float:
    """Return the lowest threshold of the highest accuracy."""
    tried = np.unique(shares)
    return float(tried[np.argmax([np.mean((shares >= each) == (labels == 1)) for each in tried])])
