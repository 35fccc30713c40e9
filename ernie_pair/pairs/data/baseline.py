"""The baseline of every model of pairs: to count the characters that two texts share.

Between two classes it decides by a share, as a model does by a probability: the best one on the training
pairs, which the folder of a trained model keeps for later evaluations.
"""

from types import MappingProxyType
from typing import Any, Dict, Mapping, Tuple

import numpy as np

from ernie_pair.models.labels import RANKING, UNLABELLED, Labels, match_class
from ernie_pair.pairs.data.label_checks import overlap
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.targets.metrics import (
    CORRELATIONS,
    LOWER_IS_BETTER,
    RANKING_METRICS,
    choose_measure,
    measure,
)

ABOVE_ALL = 2.0  # a threshold that no share reaches
MAX_ROWS = 20_000  # of the training pairs that thresholds are chosen on
OF_TRAINING, OF_THESE = (
    "the best of the training pairs",
    "the best of these rows, on which no other does better",
)


def overlap_scores(pairs: Pairs, labels: Labels) -> np.ndarray:
    """Return what speaks for class 1 in each pair, float64 [N]: its ``overlap``, or 1 - that of class 0."""
    shares = np.array([overlap(a, b) for a, b in zip(pairs.left, pairs.right)])
    return 1 - shares if match_class(labels) == 0 else shares


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


def best_thresholds(pairs: Pairs, labels: Labels) -> Dict[str, float]:
    """Return the best threshold for accuracy and for f1 on labelled pairs, MAX_ROWS of them; or {}.

    It is {} unless there are two classes, and labels of them; rows without label do not count.
    """
    if not labels.has_classes or len(labels.names) != 2 or pairs.labels is None:
        return {}
    known = np.flatnonzero(pairs.labels != UNLABELLED)
    if not len(known):
        return {}
    if len(known) > MAX_ROWS:  # at random: labels of neighbours may take turns
        known = np.random.default_rng(0).choice(known, MAX_ROWS, replace=False)
    chosen = pairs.rows(known)
    thresholds, metrics = metrics_of_thresholds(overlap_scores(chosen, labels), chosen.known_labels == 1)
    best = {name: thresholds[int(values.argmax())] for name, values in metrics.items()}
    return {name: min(float(threshold), ABOVE_ALL) for name, threshold in best.items()}


def describe_baseline(pairs: Pairs, labels: Labels, thresholds: Mapping[str, float]) -> Dict[str, Any]:
    """Return `measure_shared_characters`, and of two classes the ``thresholds`` and whose they are."""
    found: Dict[str, Any] = dict(measure_shared_characters(pairs, labels, thresholds))
    if labels.has_classes and found:
        found["thresholds"] = dict(thresholds) or best_thresholds(pairs, labels)
        found["thresholds_of"] = OF_TRAINING if thresholds else OF_THESE
    return found


def measure_shared_characters(
    pairs: Pairs, labels: Labels, thresholds: Mapping[str, float] = MappingProxyType({})
) -> Dict[str, float]:
    """Return the metrics that counting shared characters reaches on labelled pairs; a loss is none of them.

    ``thresholds`` between two classes, for accuracy and for f1: see ``best_thresholds``; without them the
    best ones on these pairs count. Of more classes than two it says nothing.
    """
    shares, known = overlap_scores(pairs, labels), pairs.known_labels
    if labels.has_classes and len(labels.names) != 2:
        return {}
    if not labels.has_classes:
        names = RANKING_METRICS if labels.target == RANKING else CORRELATIONS
        outputs = shares[:, None].astype(np.float32)
        found = choose_measure(labels, pairs.groups)(outputs, known)
        return {name: found[name] for name in names if name not in LOWER_IS_BETTER}
    logits = np.stack([np.zeros_like(shares), shares], axis=1).astype(np.float32)
    found = {name: float(each.max()) for name, each in metrics_of_thresholds(shares, known == 1)[1].items()}
    for name, threshold in thresholds.items():
        found[name] = measure(logits, known, (shares >= threshold).astype(np.int64))[name]
    return {**found, "auc": measure(logits, known)["auc"]}
