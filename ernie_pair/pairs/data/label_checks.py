"""Which class is the match: read from words, asked where they do not tell, and compared with the texts.

A question ends with the complete command of each answer, so that it is given by copying one of them.
"""

import logging
import math
import re
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import islice
from typing import Any, Callable, Dict, Iterable, List, Mapping, Tuple, Union

import numpy as np

from ernie_pair.core.errors import InputError, OpenError, again_with, counted
from ernie_pair.models.labels import (
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
from ernie_pair.pairs.data.pair_records import RowRules

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
    counts: Dict[str, int] = {}
    for label in labels:
        if label != UNLABELLED:
            counts[label] = counts.get(label, 0) + 1
    return counts


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
    auc = _auc(np.array(shares[match]), np.array(shares[1 - match]))
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


def _auc(matches: np.ndarray, others: np.ndarray) -> float:
    """Return how often one of ``matches`` is greater than one of ``others``, equal ones counted as half."""
    ordered = np.sort(others)
    below, up_to = np.searchsorted(ordered, matches), np.searchsorted(ordered, matches, "right")
    return float((below + up_to).mean() / (2 * len(others)))
