"""Precision, recall and F1 of each class, and their means, from a confusion matrix."""

from typing import Any, Dict, List, Sequence

import numpy as np


def class_table(confusion: np.ndarray, names: Sequence[str]) -> List[Dict[str, Any]]:
    """Return a dictionary per class: class, rows, predicted, precision, recall, f1.

    ``confusion`` int [C, C]: counts by label, then by prediction. What is divided by nothing is 0, as in
    scikit-learn with zero_division=0.
    """
    precision, recall, f1 = _values(confusion)
    labelled, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    return [
        {
            "class": name,
            "rows": int(labelled[c]),
            "predicted": int(predicted[c]),
            "precision": float(precision[c]),
            "recall": float(recall[c]),
            "f1": float(f1[c]),
        }
        for c, name in enumerate(names)
    ]


def class_averages(confusion: np.ndarray) -> Dict[str, Dict[str, float]]:
    """Return precision, recall and f1 as means over the classes that occur: macro, and weighted by rows."""
    labelled, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    occurs = (labelled + predicted > 0).astype(np.float64)
    means = {"macro": occurs / occurs.sum(), "weighted": labelled / labelled.sum()}
    names = ("precision", "recall", "f1")
    return {
        mean: {name: float(values @ shares) for name, values in zip(names, _values(confusion))}
        for mean, shares in means.items()
    }


def _values(confusion: np.ndarray) -> List[np.ndarray]:
    hits, labelled, predicted = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    return [
        hits / np.maximum(predicted, 1),
        hits / np.maximum(labelled, 1),
        2 * hits / np.maximum(labelled + predicted, 1),
    ]
