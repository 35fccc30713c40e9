"""Slices of a file by properties of the two texts, and how good the model is on each."""

import re
import unicodedata
from typing import Callable, Dict, Iterator, List, Sequence, Tuple

import numpy as np

from ernie_pair.pair.robustness.words import is_negated

# A word of Latin letters or digits is one unit, any other letter (a Chinese character) is one by itself.
UNIT = re.compile(r"[a-z0-9]+|\w")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
OVERLAPS = (0.25, 0.5, 0.75, 1.0)

Name = str
Group = Tuple[Name, np.ndarray]  # and which rows are of it, bool [N]


def slice_table(
    left: Sequence[str], right: Sequence[str], labels: np.ndarray, predictions: np.ndarray, num_classes: int
) -> List[Dict[str, object]]:
    """Return a dictionary per slice that has rows; ``labels`` and ``predictions`` are int64 [N].

    Its keys: by, slice, rows, accuracy, f1, and of two classes share_positive. The slices of one ``by`` hold
    every row once.
    """
    return [
        {"by": kind, "slice": name, **_measured(labels[inside], predictions[inside], num_classes)}
        for kind, name, inside in slices_of(left, right)
    ]


def slices_of(left: Sequence[str], right: Sequence[str]) -> Iterator[Tuple[str, Name, np.ndarray]]:
    """Yield (by, slice, which rows are of it, bool [N]) for each slice that has rows."""
    pairs = [(_plain(a), _plain(b)) for a, b in zip(left, right)]
    kinds: Dict[str, Callable[[List[Tuple[str, str]]], Iterator[Group]]] = {
        "length": _by_length,
        "overlap": _by_overlap,
        "negation": _by_negation,
        "digits": _by_digits,
    }
    for kind, groups in kinds.items():
        for name, inside in groups(pairs):
            if inside.any():
                yield kind, name, inside


def _measured(labels: np.ndarray, predictions: np.ndarray, num_classes: int) -> Dict[str, object]:
    from sklearn.metrics import accuracy_score, f1_score

    average = "binary" if num_classes == 2 else "macro"
    values: Dict[str, object] = {
        "rows": len(labels),
        "accuracy": float(accuracy_score(labels, predictions)),
        "f1": float(f1_score(labels, predictions, average=average, zero_division=0)),
    }
    return {**values, "share_positive": float(labels.mean())} if num_classes == 2 else values


def _plain(text: str) -> str:
    """Return the text in lower case, with full-width letters and digits as the others (NFKC)."""
    return unicodedata.normalize("NFKC", text).lower()


def _by_length(pairs) -> Iterator[Group]:
    """Yield the quartiles of the number of characters of both texts together."""
    lengths = np.array([len(a) + len(b) for a, b in pairs])
    quarters = np.searchsorted(np.quantile(lengths, [0.25, 0.5, 0.75]), lengths, side="left")
    for quarter in np.unique(quarters):
        inside = quarters == quarter
        shortest, longest = lengths[inside].min(), lengths[inside].max()
        yield f"{shortest} to {longest} characters" if shortest < longest else f"{longest} characters", inside


def _by_overlap(pairs) -> Iterator[Group]:
    """Yield groups of pairs by the ``overlap`` of their texts."""
    shares = np.array([overlap(a, b) for a, b in pairs])
    low = 0.0
    for high in OVERLAPS:
        yield f"{low:.0%} to {high:.0%} of the words shared", (low <= shares) & (shares < high)
        low = high
    yield "the same words", shares == 1.0


def overlap(a: str, b: str) -> float:
    """Return the share of the units (UNIT) of both texts that stands in both (Jaccard), in [0, 1].

    Two texts without units share all: 1.0.
    """
    units = [set(UNIT.findall(text)) for text in (a, b)]
    either = units[0] | units[1]
    return len(units[0] & units[1]) / len(either) if either else 1.0


def _by_negation(pairs) -> Iterator[Group]:
    negated = np.array([[is_negated(a), is_negated(b)] for a, b in pairs])
    yield "in one text only", negated[:, 0] != negated[:, 1]
    yield "in both", negated.all(axis=1)
    yield "in neither", ~negated.any(axis=1)


def _by_digits(pairs) -> Iterator[Group]:
    numbers = [(set(NUMBER.findall(a)), set(NUMBER.findall(b))) for a, b in pairs]
    have = np.array([bool(a or b) for a, b in numbers])
    same = np.array([a == b for a, b in numbers])
    yield "different numbers", ~same
    yield "the same numbers", have & same
    yield "no digits", ~have
