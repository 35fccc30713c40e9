"""Random logits, and losses by the textbook, in float64, which the ones of training are compared with."""

import numpy as np
from scipy.special import log_softmax


def cross_entropies(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The cross-entropy [N] of each row of logits [N, C] with its label [N]."""
    return -log_softmax(logits.astype(np.float64), axis=1)[np.arange(len(labels)), labels]


def drawn(rows, classes, seed=0):
    """Logits with ties that are correlated with the labels, and the labels."""
    rng = np.random.default_rng([seed, classes])
    labels = rng.integers(classes, size=rows)
    logits = rng.normal(size=(rows, classes)).round(1) + np.eye(classes)[labels]
    return logits.astype(np.float32), labels
