"""Metrics of logits against labels."""

import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from data_tools.files.errors import InputError
from ernie_pair.models.labels import UNLABELLED

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


BALANCED = "balanced"


def class_weights_in(text: str) -> Tuple[float, ...]:
    """Parse '1,2.5' as (1.0, 2.5), and '' and 'balanced' as ().

    Raises InputError for anything but numbers of 0 or more that are not all 0.
    """
    if text in ("", BALANCED):
        return ()
    try:
        weights = tuple(map(float, text.split(",")))
    except ValueError:
        weights = ()
    if not (weights and all(math.isfinite(weight) and weight >= 0 for weight in weights) and any(weights)):
        raise InputError(
            f"--class_weights {text} must be a number of 0 or more for each class, and not all 0; "
            "use 1,2.5, for example, or balanced"
        )
    return weights


def class_weights_of(
    text: str, num_classes: int, labels: Optional[np.ndarray], where: str
) -> Optional[np.ndarray]:
    """Return the weight of each class for --class_weights, float32 [C]; None where all count the same.

    ``labels`` int64 [N] are those of the training data ``where``, None when they are not known; balanced is
    rows / (classes x rows of the class). Raises InputError when balanced meets a class without a row, and
    when there are not as many weights as classes.
    """
    if not text:
        return None
    if text == BALANCED:
        assert labels is not None  # a streamed file, which has none here, is refused with the flags
        known = labels[labels != UNLABELLED]
        counts = np.bincount(known, minlength=num_classes)
        if not counts.all():
            raise InputError(
                f"{where} has no pair of class {int(counts.argmin())}, so --class_weights balanced has no "
                "weight for it; give the numbers, 1,2.5 for example"
            )
        return (len(known) / (num_classes * counts)).astype(np.float32)
    weights = class_weights_in(text)
    if len(weights) != num_classes:
        raise InputError(
            f"--class_weights {text} names {len(weights)} class(es), and there are {num_classes}; "
            "give a number for each"
        )
    return np.array(weights, dtype=np.float32)
