"""How robust a model is to perturbed pairs, kind by kind, compared with the unchanged pairs.

`evaluate --robustness` measures the model of a folder, and Python any model.
"""

import logging
from collections import Counter
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Sequence

import numpy as np

from ernie_pair.core.errors import InputError
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.audit.new_pairs import NewPair
from ernie_pair.pairs.data.in_memory_pairs import GivenPairs
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.robustness.perturb import ALL, CHANGING, UNKNOWN, Perturbed, parse_kinds, perturb
from ernie_pair.pairs.targets.metrics import percentile_interval, resamples

logger = logging.getLogger(__name__)


class Robustness(NamedTuple):
    """Changed pairs and what a model says: ``predictions`` int64 [N] of them.

    ``before`` and ``labels`` int64 [rows]: its predictions and the labels of the pairs of the file.
    """

    changed: Perturbed
    predictions: np.ndarray
    before: np.ndarray
    labels: np.ndarray


def robustness_table(found: Robustness, samples: int, seed: int) -> List[Dict[str, object]]:
    """Return a dictionary per kind that has rows, in their order; each can be written as JSON.

    ``rows`` are changed pairs, ``labelled`` those whose label is known; of these ``accuracy``, the
    ``original_accuracy`` of the pairs they were made of, and the ``difference`` of the two, with intervals
    of a paired bootstrap of ``samples`` (0: none). ``flips``: the share of all rows whose prediction differs
    from that of the original pair; where ``label_changes`` it is right to differ. ``made``: how many rows
    each rule of the kind made.
    """
    kinds = np.array(found.changed.kinds)
    return [
        _row(kind, np.flatnonzero(kinds == kind), found, samples, seed)
        for kind in dict.fromkeys(kinds.tolist())
    ]


def _row(kind: str, rows: np.ndarray, measured: Robustness, samples: int, seed: int) -> Dict[str, object]:
    changed, predictions, before, labels = measured
    before, labels = before[changed.origins], labels[changed.origins]
    made = Counter(changed.hows[row] for row in rows.tolist())
    found: Dict[str, object] = {
        "kind": kind,
        "rows": len(rows),
        "made": dict(sorted(made.items())),
        "label_changes": kind in CHANGING,
        "flips": float(np.mean(predictions[rows] != before[rows])),
        "labelled": 0,
    }
    known = rows[changed.labels[rows] != UNKNOWN]
    if not len(known):
        return {**found, "accuracy": None, "original_accuracy": None, "difference": None}
    right, right_before = predictions[known] == changed.labels[known], before[known] == labels[known]
    accuracy, original = float(right.mean()), float(right_before.mean())
    found.update(labelled=len(known), accuracy=accuracy, original_accuracy=original)
    found["difference"] = accuracy - original
    if samples:
        drawn = np.array(
            [(counts @ right, counts @ right_before) for counts in resamples(len(known), samples, seed)]
        ) / len(known)
        found["accuracy_interval"] = percentile_interval(drawn[:, 0])
        found["difference_interval"] = percentile_interval(drawn[:, 0] - drawn[:, 1])
    return found


def measure_robustness(
    predictor: Any,
    examples: Iterable,
    kinds: str = ALL,
    rows: int = 0,
    seed: int = 1234,
    bootstrap: int = 1000,
) -> List[Dict[str, object]]:
    """Return the ``robustness_table`` of a model on labelled pairs, as in ``evaluate --robustness``.

    >>> from ernie_pair import load, measure_robustness
    >>> table = measure_robustness(load("ship"), [("怎么开户", "如何开户", 1)], "order filler")
    >>> print(*(row["kind"] for row in table))
    order filler

    ``predictor``: a `PairScorer` as `load` opens it, or any object with its ``predict`` and ``class_names``;
    ``examples``: (text, text, label) or dictionaries. ``kinds``: names of ``KINDS``, or all; ``rows``:
    maximum rows of each kind, 0: all. Raises InputError, which names the row, for one that is no labelled
    pair.
    """
    names = list(predictor.class_names)
    if len(names) < 2:
        raise InputError("robustness counts classes that change, and this model gives scores; evaluate it")
    labels = Labels.named({name: number for number, name in enumerate(names)})
    pairs = GivenPairs("examples", examples, labels).read()

    def predict(left: Sequence[str], right: Sequence[str]) -> np.ndarray:
        return predictor.predict(list(zip(left, right))).classes

    changed = perturb(pairs, len(names), parse_kinds(kinds), rows, seed)
    before = predict(pairs.left, pairs.right)
    after = predict(changed.left, changed.right)
    return robustness_table(Robustness(changed, after, before, pairs.known_labels), bootstrap, seed)


def new_pairs_of(changed: Perturbed, pairs: Pairs, names: Sequence[str]) -> Iterator[NewPair]:
    """Yield the changed pairs as rows of a file; a label that is not known is empty."""
    for row, label in enumerate(changed.labels.tolist()):
        name = "" if label == UNKNOWN else names[label]
        yield NewPair(changed.left[row], changed.right[row], name, changed.origin(row, pairs))


def table_lines(table: List[Dict[str, Any]]) -> Iterator[str]:
    """Yield the table for the log, a line per kind."""
    for row in table:
        line = f"{row['kind']}: {row['rows']} rows, {row['flips']:.2%} of the predictions changed"
        if row["accuracy"] is None:
            yield f"{line}; their labels are not known"
            continue
        line += f"; accuracy {row['accuracy']:.4f}, {row['original_accuracy']:.4f} on the original rows"
        if "difference_interval" in row:
            low, high = row["difference_interval"]
            line += f", difference {row['difference']:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}"
        yield line
