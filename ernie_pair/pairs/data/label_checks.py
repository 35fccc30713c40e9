"""Which class is the match: read from words, asked where they do not tell, and compared with the texts.

A question ends with the complete command of each answer, so that it is given by copying one of them.

The baseline of every model of pairs is to count the characters that two texts share. Between two classes it
decides by a share, as a model does by a probability: the best one on the training pairs, which the folder of
a trained model keeps for later evaluations.
"""

import logging
import math
import re
from collections import Counter
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterable, List, Mapping, Tuple, Union

import numpy as np

from ernie_pair.core.errors import InputError, OpenError, again_with, counted
from ernie_pair.models.labels import (
    RANKING,
    UNLABELLED,
    Labels,
    are_class_names,
    are_relations,
    frequent_words,
    is_number,
    label_maps,
    match_class,
    plain_label,
    words_as_classes,
)
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_records import RowRules
from ernie_pair.pairs.targets.metrics import (
    CORRELATIONS,
    LOWER_IS_BETTER,
    RANKING_METRICS,
    choose_measure,
    measure,
)

MAX_ROWS_SEARCHED = 1_000_000  # rows in which those of both classes are looked for
MAX_COMPARED = 1000  # rows of a class whose texts are compared
MIN_COMPARED, MIN_PER_CLASS = 200, 20  # rows that tell which class is the match
TURNED = 0.35  # an AUC of the characters that matches share: below it the other class is the match
# A word of Latin letters or digits is one unit, any other letter (a Chinese character) is one by itself.
UNIT = re.compile(r"[a-z0-9]+|\w")
WITHOUT_LABELS = "predict, distill and train-embedding take pairs without labels"

logger = logging.getLogger(__name__)


class LabelQuestion(InputError):
    """Labels that do not tell which class is the match; the message has the command of each answer."""


@dataclass(frozen=True)
class LabelsOfFile(Labels):
    """Labels, with the words that a file has for its two classes; ``count`` returns {label: rows} of it.

    The file is counted when it has a label that is none of the others.
    """

    count: Callable[[], Mapping[str, int]] = dict

    @classmethod
    def of(cls, labels: Labels, count: Callable[[], Mapping[str, int]]) -> "LabelsOfFile":
        """Return ``labels`` for a file whose labels ``count`` returns."""
        return cls(**{field.name: getattr(labels, field.name) for field in fields(Labels)}, count=count)

    @cached_property
    def words(self) -> Dict[str, int]:
        """Return {plain word: class} of the words for no and yes."""
        return words_as_classes(self.count(), self)

    def value_of(self, label: object) -> Union[int, float, None]:
        """Return what is learned from a label, as that of `Labels` does, or the class of a word."""
        found = super().value_of(label)
        if found is not None or not self.has_classes or match_class(self) is None:
            return found
        return self.words.get(plain_label(label))


def count_labels(labels: Iterable[Any]) -> Dict[str, int]:
    """Return {label: rows} of the labels of rows, as texts; those of rows without one are left out."""
    return dict(Counter(label for label in labels if label != UNLABELLED))


def describe_counts(counts: Mapping[str, int]) -> str:
    """Return the labels of a file, {label: rows}, in words."""
    return ", ".join(f"{word} in {counted(count, 'row')}" for word, count in counts.items())


def ask_for_match(name: str, counts: Mapping[str, int], rules: RowRules) -> LabelQuestion:
    """Return the question which of the labels {label: rows} of ``name`` is the match, with its answers."""
    maps = label_maps(counts, rules.most_classes, rules.match or 0)
    told = f"{name}: its labels are {describe_counts(counts)}"
    if rules.match is None:
        again = again_with(label_map=next(iter(maps.values())))
        return LabelQuestion(f"{told}; say which class of the model each of them is, in its order: {again}")
    if "" in maps:
        again = again_with(label_map=maps[""])
        return LabelQuestion(
            f"{told}; say which classes these are, in an order of your own (of two texts that match or not, "
            f"class 1 is the match; words of one class have one number): {again}"
        )
    answers = "; ".join(
        f"if {words} {'are' if ' and ' in words else 'is'}, {again_with(label_map=text)}"
        for words, text in maps.items()
    )
    return LabelQuestion(f"{told}; class {rules.match} is the match, and which of them is it? {answers}")


def explain_other_label(
    reason: str, name: str, word: str, counts: Mapping[str, int], rules: RowRules
) -> InputError:
    """Return the error of a row of ``name`` whose label, ``word``, is none of those known, with its cure.

    ``counts``: {label: rows} of the whole file.
    """
    words, rare = frequent_words(counts)
    if word in rare:
        rows = f"{counted(counts[word], 'row')} of {sum(counts.values())}"
        return OpenError(
            f"{reason}; {word} stands in {rows} and is no class; to leave such rows out",
            {"on_bad_row": "skip"},
        )
    are_numbers, are_classes = bool(words) and all(map(is_number, words)), are_class_names(counts)
    if are_numbers and not are_classes:
        flags = _flags_for_scores(counts, rules)
        if flags:
            return OpenError(f"{reason}; its labels are scores", flags)
        return InputError(f"{reason}; its labels are scores, and this command takes classes")
    if not are_classes:
        return InputError(reason)
    if not rules.most_classes:
        return InputError(f"{reason}; its labels: {describe_counts(counts)}")
    question = f"{reason}; {ask_for_match(name, counts, rules)}"
    flags = _flags_for_scores(counts, rules) if are_numbers and len(words) > 2 else {}
    return InputError(f"{question}; if they are scores, {again_with({}, **flags)}" if flags else question)


def _flags_for_scores(counts: Mapping[str, int], rules: RowRules) -> Dict[str, str]:
    """Return the flag with which the command takes the scores {score: rows}; {} where it takes none."""
    if not rules.for_scores:
        return {}
    flag, value = rules.for_scores
    scores = [float(plain_label(word)) for word in counts if is_number(word)]
    return {flag: value or f"{min(0, math.floor(min(scores)))},{max(1, math.ceil(max(scores)))}"}


def compare_with_texts(name: str, rows: Iterable[Any], labels: Labels, is_given: bool, stops: bool) -> None:
    """Compare which class is the match with the characters that the texts of ``rows`` share.

    ``rows`` have left, right and label, a class; no more of them are read than are needed. ``is_given``: the
    user has said which class is the match, so that a contradiction is logged; else, where it ``stops``,
    raises LabelQuestion with the commands of both answers.
    """
    match = match_class(labels)
    if match is None:
        return
    shares = _shares_by_class(rows)
    sizes = [len(each) for each in shares]
    if sum(sizes) < MIN_COMPARED or min(sizes) < MIN_PER_CLASS:
        return
    matches, others = np.array(shares[match])[:, None], np.array(shares[1 - match])
    # How often a match shares more than another pair, equal ones counted as half.
    auc = float((matches > others).mean() + (matches == others).mean() / 2)
    if auc >= TURNED:
        return
    names = labels.names
    told = (
        f"{name}: pairs with the label {names[match]}, taken as matches, share fewer characters than those "
        f"with {names[1 - match]} (AUC {auc:.2f} on {sum(sizes)} rows)"
    )
    if is_given or not stops:
        logger.warning("%s%s", told, "; --label_map says so" if is_given else "")
        return
    kept, turned = (again_with(label_map=f"0={zero},1={one}") for zero, one in (names, reversed(names)))
    cure = f"if {names[1 - match]} is the match, {turned}"
    if are_relations(names):  # words that mean what they say; the numbers of such classes may be turned
        cure = f"correct the labels, or if they are numbers, {turned}"
    raise LabelQuestion(f"{told}; {cure}; if the labels are right as they are, {kept}")


def overlap(a: str, b: str) -> float:
    """Return the Jaccard index of the units (UNIT) of two texts, in [0, 1]; of two without units 1.0."""
    units = [set(UNIT.findall(text)) for text in (a, b)]
    either = units[0] | units[1]
    return len(units[0] & units[1]) / len(either) if either else 1.0


def _shares_by_class(rows: Iterable[Any]) -> Tuple[List[float], List[float]]:
    """Return the overlaps of the first rows of classes 0 and 1, up to MAX_COMPARED of each."""
    shares: Tuple[List[float], List[float]] = ([], [])
    for row in islice(rows, MAX_ROWS_SEARCHED):
        if row.label in (0, 1) and len(shares[row.label]) < MAX_COMPARED:
            shares[row.label].append(overlap(row.left, row.right))
        if min(map(len, shares)) == MAX_COMPARED:
            break
    return shares


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
