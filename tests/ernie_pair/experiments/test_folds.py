"""Folds of labelled pairs: no text is in two of them, and each class is spread evenly."""

import numpy as np
import pytest

from ernie_pair.core.errors import InputError
from ernie_pair.experiments.split_pairs import (
    Folds,
    deal_groups,
    describe_folds,
    group_rows,
    make_folds,
    split_fold,
)
from ernie_pair.pairs.audit.findings import coded
from ernie_pair.pairs.data.pair_file import Pairs

NAMES = ("no", "yes")


def pairs_of(rows):
    left, right, labels = zip(*rows)
    return Pairs(list(left), list(right), np.array(labels), "", "all.tsv")


def chained(count, texts, seed=0):
    """Pairs of numbered texts, many of which share a text with another pair."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(texts, size=(count, 2))
    return pairs_of([(f"text {a}", f"text {b}", int(rng.random() < 0.3)) for a, b in ends])


def test_rows_linked_by_shared_texts_form_one_group():
    rows = [("a", "b", 0), ("c", "d", 0), ("b", "e", 1), ("f", "g", 1), ("E ！", "h", 0), ("g", "f", 0)]
    file = coded({"train": pairs_of(rows)})["train"]
    assert group_rows(file, "text").tolist() == [0, 1, 0, 2, 0, 2]  # "E ！" is e, normalised
    assert group_rows(file, "pair").tolist() == [0, 1, 2, 3, 4, 3]


@pytest.mark.parametrize("count", [2, 5])
def test_no_text_is_in_two_folds_and_classes_are_balanced(count):
    pairs = chained(600, 2400)
    folds = make_folds(pairs, NAMES, count, "text", seed=3)
    texts = [
        {t for side in (pairs.left, pairs.right) for t, f in zip(side, folds.fold) if f == number}
        for number in range(count)
    ]
    for number, each in enumerate(texts):
        assert not each.intersection(set().union(*texts[:number], *texts[number + 1 :]))
    for label in (0, 1):
        sizes = np.bincount(folds.fold[pairs.labels == label], minlength=count)
        assert sizes.max() - sizes.min() <= 3
    assert sorted(np.unique(folds.fold)) == list(range(count))


def test_folds_depend_only_on_the_seed():
    pairs = chained(300, 1200)
    one, same, other = (make_folds(pairs, NAMES, 4, "text", seed).fold for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


@pytest.mark.parametrize("seed", range(3))
def test_a_group_goes_where_its_classes_are_fewest(seed):
    """By the shares of all rows of a class, so that the rare class 2 counts as much as the others."""
    rng = np.random.default_rng(seed)
    sizes = rng.permutation(np.arange(1, 41))  # each size once: no order is drawn
    group = np.repeat(np.arange(40), sizes)
    labels = rng.choice(3, size=len(group), p=[0.7, 0.25, 0.05])
    shares = [np.bincount(labels[group == one], minlength=3) / np.bincount(labels) for one in range(40)]
    so_far, fold_of = np.zeros((4, 3)), np.zeros(40, int)
    for one in np.argsort(-sizes):
        fold_of[one] = np.argmin([fold @ shares[one] for fold in so_far])
        so_far[fold_of[one]] += shares[one]
    assert deal_groups(group, labels, 4, seed).tolist() == fold_of[group].tolist()


def test_an_oversized_group_error_names_its_text_and_a_fix():
    hub = [("你好", f"text {number}", number % 2) for number in range(30)]
    rest = [(f"left {number}", f"right {number}", number % 2) for number in range(20)]
    with pytest.raises(
        InputError, match="join 30 of its 50 rows into one group.*你好.* in 30.*group_by pair"
    ):
        make_folds(pairs_of(hub + rest), NAMES, 5, "text", seed=0)
    by_pair = make_folds(pairs_of(hub + rest), NAMES, 5, "pair", seed=0)
    assert np.bincount(by_pair.fold).tolist() == [10] * 5


def test_a_group_larger_than_a_fold_is_reported():
    hub = [("你好", f"text {number}", number % 2) for number in range(20)]
    rest = [(f"left {number}", f"right {number}", number % 2) for number in range(30)]
    pairs = pairs_of(hub + rest)
    told = describe_folds(make_folds(pairs, NAMES, 5, "text", seed=0), pairs.labels, NAMES)
    assert "31 groups, the largest of 20 rows" in told and told.endswith("take fewer folds to even them")
    assert "even them" not in describe_folds(make_folds(pairs, NAMES, 2, "text", seed=0), pairs.labels, NAMES)


@pytest.mark.parametrize("rows, reason", [
    ([("a", "b", 0), ("c", "d", 1), ("e", "f", 0)], "too few for folds=4; take fewer folds"),
    ([(f"a{n}", f"b{n}", int(n < 2)) for n in range(9)], "has no pair of class yes; take fewer folds"),
    ([(f"a{n}", f"b{n}", 0) for n in range(9)],
     "all.tsv has no pair of class yes; give pairs of all .* no, yes"),
    ([(f"a{n}", f"b{n}", 1) for n in range(9)], "all.tsv has no pair of class no; give pairs of all"),
])  # fmt: skip
def test_impossible_folds_are_rejected_with_a_reason(rows, reason):
    with pytest.raises(InputError, match=reason):
        make_folds(pairs_of(rows), NAMES, 4, "text", seed=0)


def test_dev_rows_are_whole_groups_separate_from_training():
    pairs = chained(400, 1600)
    folds = make_folds(pairs, NAMES, 4, "text", seed=0)
    for number in range(4):
        train, dev, test = split_fold(folds, pairs.labels, number, 0.2, seed=5)
        assert sorted([*train, *dev, *test]) == list(range(400))
        assert not set(folds.group[train]) & set(folds.group[dev])
        assert 0.15 < len(dev) / (len(train) + len(dev)) < 0.25
        assert set(folds.fold[test]) == {number}
    train, dev, _ = split_fold(folds, pairs.labels, 0, 0, seed=5)
    assert not len(dev) and np.array_equal(train, np.flatnonzero(folds.fold))


@pytest.mark.parametrize("share", [0.02, 0.15, 0.3, 0.35, 0.4, 0.45])
def test_the_dev_share_is_the_one_that_was_asked_for(share):
    pairs = chained(2000, 8000)
    folds = make_folds(pairs, NAMES, 4, "text", seed=0)
    train, dev, _ = split_fold(folds, pairs.labels, 1, share, seed=5)
    assert abs(len(dev) / (len(train) + len(dev)) - share) < 0.01
    assert not set(folds.group[train]) & set(folds.group[dev])


def test_a_large_group_does_not_exceed_the_dev_share():
    """A group of 300 of 1000 rows is in the training part of every fold but its own."""
    group = np.array([0] * 300 + list(range(1, 701)))
    labels = np.arange(1000) % 2
    folds = Folds(group, deal_groups(group, labels, 5, seed=0))
    for number in range(5):
        train, dev, _ = split_fold(folds, labels, number, 0.1, seed=0)
        assert abs(len(dev) / (len(train) + len(dev)) - 0.1) < 0.01
        assert 0 not in folds.group[dev] and set(labels[dev]) == {0, 1}
    again = split_fold(folds, labels, 0, 0.1, seed=0).dev
    assert np.array_equal(again, split_fold(folds, labels, 0, 0.1, seed=0).dev)
    assert not np.array_equal(again, split_fold(folds, labels, 0, 0.1, seed=1).dev)


@pytest.mark.parametrize("sizes", [[10, 10], [1, 1], [20, 10, 10]])
def test_a_fold_that_leaves_no_dev_or_training_rows_is_refused(sizes):
    group = np.repeat(np.arange(len(sizes)), sizes)
    labels = np.arange(len(group)) % 2
    folds = Folds(group, np.minimum(group, 1))
    with pytest.raises(InputError, match="fold 1: its .* training row.* dev_share=0.1; give dev_file, ano"):
        split_fold(folds, labels, 0, 0.1, seed=0)
    assert not len(split_fold(folds, labels, 0, 0, seed=0).dev)


def test_few_groups_are_shared_out_for_dev_rows_as_well():
    """Ten groups fill the first ten of twenty parts: seven of those would be too many."""
    labels = np.zeros(15, dtype=np.int64)
    folds = Folds(np.arange(15), np.array([0] * 5 + [1] * 10))
    train, dev, _ = split_fold(folds, labels, 0, 0.35, seed=0)
    assert len(dev) == 4 and len(train) == 6
