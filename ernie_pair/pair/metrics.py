"""Metrics of logits against labels."""

from typing import Dict, Optional

import numpy as np

from data_tools.base.errors import InputError

# What `measure` returns; every one is a number that may choose the best model of a run.
METRICS = ("loss", "accuracy", "precision", "recall", "f1", "auc", "average_precision", "mcc")
NEED_ALL_CLASSES = ("auc", "average_precision")


def measure(logits: np.ndarray, labels: np.ndarray) -> Dict[str, float]:
    """Return the METRICS of logits [N, C] on labels int64 [N], in that order.

    Equal logits give equal metrics, bit for bit. Of two classes precision, recall, f1, auc and
    average_precision are those of class 1; of more they are means over the classes, auc and average_precision
    of one class against the rest. Those two are nan where ``labels`` lack a class. loss is the mean
    cross-entropy (log loss), computed in float64.
    """
    from sklearn.metrics import accuracy_score, matthews_corrcoef, precision_recall_fscore_support

    predictions = logits.argmax(axis=1)
    average = "binary" if logits.shape[1] == 2 else "macro"
    precision, recall, f1, _ = precision_recall_fscore_support(
        labels, predictions, average=average, zero_division=0
    )
    values = {
        "loss": np.mean(cross_entropies(logits, labels)),
        "accuracy": accuracy_score(labels, predictions),
        "precision": precision,
        "recall": recall,
        "f1": f1,
        **_ranking(logits, labels),
        "mcc": matthews_corrcoef(labels, predictions),
    }
    return {name: float(value) for name, value in values.items()}


def _ranking(logits: np.ndarray, labels: np.ndarray) -> Dict[str, float]:
    from sklearn.metrics import average_precision_score, roc_auc_score

    num_classes = logits.shape[1]
    if len(np.unique(labels)) < num_classes:
        return dict.fromkeys(NEED_ALL_CLASSES, np.nan)
    measured = [1] if num_classes == 2 else range(num_classes)
    odds = log_odds(logits)
    return {
        "auc": np.mean([roc_auc_score(labels == c, odds[:, c]) for c in measured]),
        "average_precision": np.mean([average_precision_score(labels == c, odds[:, c]) for c in measured]),
    }


def refuse_undefined(metric: str, labels: np.ndarray, num_classes: int, where: str) -> None:
    """Raise InputError when ``metric`` has no value on these labels int64 [N], whatever the logits."""
    absent = sorted(set(range(num_classes)) - set(labels.tolist()))
    if absent and metric in NEED_ALL_CLASSES:
        raise InputError(
            f"{where} has no pair of class {absent[0]}, so {metric} is undefined on it; take a file that has "
            "all classes, or another metric"
        )


def find_single_class(logits: np.ndarray, labels: np.ndarray) -> Optional[int]:
    """Return the class that all rows of logits [N, C] get though labels [N] hold several; else None."""
    predicted = np.unique(logits.argmax(axis=1))
    return int(predicted[0]) if len(predicted) == 1 and len(np.unique(labels)) > 1 else None


def describe_single_class(name: str, rows: int) -> str:
    """Return the warning about a classifier that predicts ``name`` for each of ``rows`` rows."""
    return (
        f"the classifier predicts {name} for all {rows} rows: it has not learned to tell the classes "
        "apart; train longer, with another learning rate, or from pretrained weights"
    )


def cross_entropies(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return -log softmax(logits)[label] of every row, float64 [N]; logits [N, C], labels int64 [N]."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]


def log_odds(logits: np.ndarray) -> np.ndarray:
    """Return log p / (1 - p) of every class, float64 [N, C]: the order of p, with no ties near 0 and 1."""
    from scipy.special import logsumexp

    exact = logits.astype(np.float64)
    others = [logsumexp(np.delete(exact, label, axis=1), axis=1) for label in range(logits.shape[1])]
    return exact - np.stack(others, axis=1)
