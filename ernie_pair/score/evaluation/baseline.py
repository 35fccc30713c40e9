"""The baseline of every model of pairs: to count the characters that two texts share."""

from typing import Dict, Tuple

import numpy as np

from ernie_pair.models.labels import RANKING, Labels
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.shared_characters import overlap
from ernie_pair.pair.targets.metrics import CORRELATIONS, LOWER_IS_BETTER, RANKING_METRICS, measure_of


def shares_of(pairs: Pairs) -> np.ndarray:
    """Return the ``overlap`` of each pair, float64 [N]."""
    return np.array([overlap(a, b) for a, b in zip(pairs.left, pairs.right)])


def metrics_of_thresholds(
    shares: np.ndarray, is_positive: np.ndarray
) -> Tuple[np.ndarray, Dict[str, np.ndarray]]:
    """Return thresholds [T], falling, and {accuracy, f1}, each [T], of calling greater shares class 1.

    ``shares`` float64 [N], ``is_positive`` bool [N]. A share of the threshold itself counts as greater; the
    first threshold is above all.
    """
    order = np.argsort(-shares, kind="stable")
    falling = shares[order]
    last = np.append(np.flatnonzero(np.diff(falling)), len(falling) - 1)  # of each share
    num_chosen = np.concatenate([[0], last + 1])
    hits = np.concatenate([[0], np.cumsum(is_positive[order])[last]])
    num_positive = int(is_positive.sum())
    right = hits + (len(shares) - num_chosen) - (num_positive - hits)
    f1 = 2 * hits / np.maximum(num_chosen + num_positive, 1)
    return np.concatenate([[np.inf], falling[last]]), {"accuracy": right / len(shares), "f1": f1}


def measure_shared_characters(pairs: Pairs, labels: Labels) -> Dict[str, float]:
    """Return the metrics that counting shared characters reaches on labelled pairs; a loss is none of them.

    Between two classes the threshold is the best one on these pairs, for accuracy and for f1 each: so no
    threshold does better, and neither does one class for all. Of more classes than two it says nothing.
    """
    shares, known = shares_of(pairs), pairs.known_labels
    if labels.has_classes and len(labels.names) != 2:
        return {}
    if not labels.has_classes:
        names = RANKING_METRICS if labels.target == RANKING else CORRELATIONS
        outputs = shares[:, None].astype(np.float32)
        found = measure_of(labels, pairs.groups)(outputs, known)
        return {name: found[name] for name in names if name not in LOWER_IS_BETTER}
    best = {name: float(each.max()) for name, each in metrics_of_thresholds(shares, known == 1)[1].items()}
    logits = np.stack([np.zeros_like(shares), shares], axis=1).astype(np.float32)
    return {**best, "auc": measure_of(labels)(logits, known)["auc"]}
