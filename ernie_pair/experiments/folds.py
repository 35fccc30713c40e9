"""Divide labelled pairs into folds that share no text: rows connected by texts stay together.

Two rows are of one group when a chain of rows, each of which shares a text with the next, joins them; texts
are equal when they are so normalised, as in the audit. Groups are dealt to the folds so that each class is
spread evenly.
"""

import math
from typing import List, Literal, NamedTuple, Sequence, Tuple

import numpy as np

from data_tools.audit.text_quality import quote
from ernie_pair.core.errors import InputError, counted
from ernie_pair.pairs.audit.findings import Coded, coded
from ernie_pair.pairs.data.pair_file import Pairs

GroupBy = Literal["text", "pair"]
MOST_OF_ROWS = 0.5  # of one group: with more, the folds without it have too little to learn from


class Folds(NamedTuple):
    """The group and the fold of each row, int64 [rows] each; folds are counted from 0."""

    group: np.ndarray
    fold: np.ndarray


def make_folds(pairs: Pairs, names: Sequence[str], count: int, group_by: GroupBy, seed: int) -> Folds:
    """Divide ``pairs``, labelled with the classes ``names``, into ``count`` folds; ``seed`` decides.

    ``group_by``: text joins rows that share a text, pair only those of the same two texts, in either order.
    Raises InputError if the groups leave no ``count`` folds of all classes.
    """
    rows = np.bincount(pairs.known_labels, minlength=len(names))
    if not rows.all():  # a model of such rows cannot be measured
        raise InputError(
            f"{pairs.path} has no pair of class {names[int(rows.argmin())]}; give pairs of all classes: "
            f"{', '.join(names)}"
        )
    file = coded({"train": pairs})["train"]
    group = group_rows(file, group_by)
    _refuse_giant(file, group)
    if group.max() + 1 < count:
        raise InputError(
            f"{pairs.path}: shared texts join its {len(pairs)} rows into {group.max() + 1} groups, too few "
            f"for --folds {count}; take fewer folds, or --group_by pair"
        )
    fold = deal_groups(group, pairs.known_labels, count, seed)
    for number in range(count):
        absent = np.setdiff1d(pairs.known_labels, pairs.known_labels[fold == number])
        if len(absent):
            raise InputError(
                f"{pairs.path}: fold {number + 1} of {count} has no pair of class {names[absent[0]]}; take "
                "fewer --folds, give more pairs of that class, or take --group_by pair"
            )
    return Folds(group, fold)


def group_rows(file: Coded, group_by: GroupBy) -> np.ndarray:
    """Return the group of each row, int64 [rows], numbered from 0 by their first rows."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    if group_by == "pair":
        return _by_first_row(file.unordered)
    size = int(max(file.left.max(), file.right.max())) + 1
    graph = coo_matrix((np.ones(len(file.left), dtype=np.int8), (file.left, file.right)), shape=(size, size))
    return _by_first_row(connected_components(graph, directed=False)[1][file.left])


def _by_first_row(keys: np.ndarray) -> np.ndarray:
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[group]


def deal_groups(group: np.ndarray, labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return the fold of each row, int64 [rows], for groups and labels int64 [rows].

    The largest groups come first, those of one size in an order drawn with ``seed``; each goes to the fold
    that has the least of its classes so far, as shares of all rows of a class.
    """
    rows_in, order, weights = _largest_first(group, labels, [seed, count])
    so_far, fold_of = np.zeros((count, rows_in.shape[1])), np.zeros(len(rows_in), dtype=np.int64)
    for number in order:
        fold_of[number] = fold = int((so_far @ weights[number]).argmin())
        so_far[fold] += rows_in[number]
    return fold_of[group]


def pick_groups(group: np.ndarray, labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Return which rows make up about ``share`` of all, in whole groups, bool [rows].

    The groups come as in `deal_groups`; one is picked if its rows fit into the share, and the picked ones
    have no more of its classes so far than the others have, each in proportion to its share.
    """
    rows_in, order, weights = _largest_first(group, labels, [seed, round(1 / share)])
    most_rows = math.ceil(share * len(group))
    so_far, is_picked = np.zeros((2, rows_in.shape[1])), np.zeros(len(rows_in), dtype=bool)
    for number in order:
        others, picked = so_far @ weights[number]
        fits = so_far[1].sum() + rows_in[number].sum() <= most_rows
        is_picked[number] = fits and picked / share <= others / (1 - share)
        so_far[int(is_picked[number])] += rows_in[number]
    return is_picked[group]


def _largest_first(
    group: np.ndarray, labels: np.ndarray, seed: List[int]
) -> Tuple[np.ndarray, List[int], np.ndarray]:
    """Return the rows of each class in each group, the order of the groups, and the weights of their classes.

    Those are [groups, classes]; the largest groups come first, those of one size in an order that is drawn.
    """
    num_groups, classes = int(group.max()) + 1, int(labels.max()) + 1
    rows_in = np.zeros((num_groups, classes))
    np.add.at(rows_in, (group, labels), 1)
    drawn = np.random.default_rng(seed).permutation(num_groups)
    order = drawn[np.argsort(-rows_in[drawn].sum(axis=1), kind="stable")]
    return rows_in, order.tolist(), rows_in / np.maximum(rows_in.sum(axis=0), 1) ** 2


def _refuse_giant(file: Coded, group: np.ndarray) -> None:
    """Raise InputError if most rows are of one group, naming the text that joins the most of them."""
    rows, largest = len(group), np.bincount(group)
    if largest.max() <= MOST_OF_ROWS * rows:
        return
    times = np.zeros(max(file.left.max(), file.right.max()) + 1, dtype=np.int64)
    np.add.at(times, file.left, 1)
    np.add.at(times, file.right[file.right != file.left], 1)
    number = int(times.argmax())
    row = int(np.argmax((file.left == number) | (file.right == number)))
    text = (file.pairs.left if file.left[row] == number else file.pairs.right)[row]
    raise InputError(
        f"{file.pairs.path}: shared texts join {largest.max()} of its {rows} rows into one group, which no "
        f"fold can divide ({quote(text)} alone stands in {times[number]} rows); remove the texts that stand "
        "in the most rows, or take --group_by pair, which keeps only equal pairs together"
    )


def describe_folds(folds: Folds, labels: np.ndarray, names: Sequence[str]) -> str:
    """Return a line on how the rows are divided, of ``labels`` int64 [rows] of the classes ``names``."""
    sizes, largest = np.bincount(folds.fold), np.bincount(folds.group).max()
    shares = [float(np.mean(labels[folds.fold == number] == len(names) - 1)) for number in range(len(sizes))]
    ends = [(str(min(sizes)), str(max(sizes))), (f"{min(shares):.2%}", f"{max(shares):.2%}")]
    rows, share = (low if low == high else f"{low} to {high}" for low, high in ends)
    described = (
        f"{len(labels)} rows in {folds.group.max() + 1} groups, the largest of {counted(largest, 'row')}: "
        f"folds of {rows} rows, {share} of class {names[-1]}"
    )
    if largest <= sizes.sum() / len(sizes):
        return described
    return (
        f"{described}; the largest group makes one fold larger than the others: take fewer folds to even them"
    )


class FoldRows(NamedTuple):
    """The rows of a fold, int64 each: those it learns from, those that choose its model, its own."""

    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray


def rows_of_fold(folds: Folds, labels: np.ndarray, number: int, dev_share: float, seed: int) -> FoldRows:
    """Return the rows of fold ``number``, from 0; ``dev_share`` 0: none of them chooses the model.

    The rows that do are whole groups of the others, drawn with ``seed``. Raises InputError if no group is
    small enough for them, or none is left to learn from.
    """
    test, others = np.flatnonzero(folds.fold == number), np.flatnonzero(folds.fold != number)
    if not dev_share:
        return FoldRows(others, others[:0], test)
    _, group = np.unique(folds.group[others], return_inverse=True)
    is_dev = pick_groups(group, labels[others], dev_share, seed + number)
    if is_dev.all() or not is_dev.any():
        sizes = np.bincount(group)
        raise InputError(
            f"fold {number + 1}: its {counted(len(others), 'training row')} are in "
            f"{counted(len(sizes), 'group')}, the smallest of {counted(sizes.min(), 'row')}, which leaves "
            f"none for --dev_share {dev_share}; give --dev_file, another share, or take --group_by pair"
        )
    return FoldRows(others[~is_dev], others[is_dev], test)
