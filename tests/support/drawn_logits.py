"""Random logits for tests of metrics."""

import numpy as np


def drawn(rows, classes, seed=0):
    """Logits with ties that are correlated with the labels, and the labels."""
    rng = np.random.default_rng([seed, classes])
    labels = rng.integers(classes, size=rows)
    logits = rng.normal(size=(rows, classes)).round(1) + np.eye(classes)[labels]
    return logits.astype(np.float32), labels
