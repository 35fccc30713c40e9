"""Perturbed pairs: what each rule does to the texts and the label, and reproducibility from a seed."""

import re
from collections import Counter

import numpy as np
import pytest

from ernie_pair.core.errors import InputError
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.robustness.perturb import (
    KINDS,
    UNKNOWN,
    Untouched,
    draw_weighted,
    fillings,
    parse_kinds,
    perturb,
)

QUESTIONS = [
    ("支付宝为什么不能提现", "为什么支付宝不能提现", 1),
    ("手机怎么可以连接电视", "怎么样可以让手机连接电视", 1),
    ("从北京到上海要多久", "北京到上海需要多长时间", 1),
    ("2012年奥运会在哪个城市举行", "2012年的奥运会在哪里举行", 1),
    ("刘德华的歌哪首最好听", "刘德华最好听的歌是哪首", 1),
    ("张学友今年多少岁", "张学友多大年纪", 1),
    ("支付宝能提现吗", "支付宝可以提现吗", 1),
    ("手机怎么充值话费", "电视怎么充值会员", 0),
    ("手机可以在哪里充值", "电视为什么不能充值", 0),
]


def pairs_of(rows=QUESTIONS):
    left, right, labels = zip(*rows)
    return Pairs(list(left), list(right), np.array(labels), "0" * 64, "test.tsv", first_line=2)


def made(kind, rows=QUESTIONS, classes=2, seed=1234, most=0):
    """[(row, left, right, label, how)] of one kind."""
    found = perturb(pairs_of(rows), classes, (kind,), most, seed)
    return list(zip(found.origins.tolist(), found.left, found.right, found.labels.tolist(), found.hows))


def changed_sides(kind, rows=QUESTIONS, **asked):
    """[(text before, after, label before, after, how)] of the text that was changed."""
    for row, left, right, label, how in made(kind, rows, **asked):
        before = rows[row]
        assert (left == before[0]) != (right == before[1])  # exactly one text is changed
        is_right = left == before[0]
        yield before[is_right], (left, right)[is_right], before[2], label, how


@pytest.mark.parametrize("seed", range(20))
def test_a_typo_keeps_numbers_negations_and_the_label(seed):
    for before, after, label, new_label, how in changed_sides("typo", seed=seed):
        assert label == new_label
        assert re.findall(r"[\d不没]", before) == re.findall(r"[\d不没]", after)
        longer = {"left out": -1, "doubled": 1}.get(how, 0)
        assert len(after) - len(before) == longer
        if how == "swapped":
            assert Counter(before) == Counter(after)
        elif how == "look-alike":
            assert sum(one != other for one, other in zip(before, after)) == 1


def test_all_kinds_of_typos_occur():
    hows = {how for seed in range(20) for *_, how in made("typo", seed=seed)}
    assert hows == {"swapped", "left out", "doubled", "look-alike"}


@pytest.mark.parametrize("seed", range(10))
def test_a_homophone_sounds_alike_and_occurs_in_the_file(seed):
    lazy_pinyin = pytest.importorskip("pypinyin").lazy_pinyin
    rows = [*QUESTIONS, ("在哪里可以买", "再哪里可以卖", 0), ("在哪里可以买", "再哪里可以卖", 0)]
    counts = Counter("".join(left + right for left, right, _ in rows))
    found = list(changed_sides("homophone", rows, seed=seed))
    assert found
    for before, after, label, new_label, _ in found:
        ((old, new),) = [(a, b) for a, b in zip(before, after) if a != b]
        assert lazy_pinyin(before) == lazy_pinyin(after) or lazy_pinyin(old) == lazy_pinyin(new)
        assert counts[new] >= 2 and label == new_label


@pytest.mark.parametrize("left, right, expected", [
    ("支付宝为什么不能提现", "为什么支付宝不能提现", {"支付宝为什么能提现", "为什么支付宝能提现"}),
    ("怎么可以连接电视", "怎样能够连上电视", {"怎么不可以连接电视", "怎样不能够连上电视"}),
    ("为什么还没收到货", "为啥不支持微信", {"为啥支持微信"}),
    ("What is the best phone", "Which phone is best",
     {"What is not the best phone", "Which phone is not best"}),
    ("Why can it not start", "Why can 't it start", {"Why can it start"}),
    ("It is not open", "The shop isn't open", {"It is open", "The shop is open"}),
])  # fmt: skip
def test_negation_makes_equal_texts_different(left, right, expected):
    found = {row for seed in range(20) for row in changed_sides("negation", [(left, right, 1)], seed=seed)}
    assert {after for _, after, *_ in found} <= expected and found
    assert {label for *_, label, _ in found} == {0}


@pytest.mark.parametrize(
    "left, right, label",
    [
        ("支付宝能提现吗", "支付宝可以提现", 1),  # a yes-no question
        ("支付宝能不能提现", "支付宝可以提现", 1),
        ("是否可以提现", "可以提现", 1),
        ("支付宝可以提现？", "支付宝可以提现", 1),
        ("怎么可以提现", "怎么能提现", 0),  # the label of negated different texts is unknown
        ("怎么可以提现", "怎么不能提现", 1),  # one is negated already
        ("谁能告诉我怎么提现", "谁能推荐一个网站", 1),  # a request
        ("唯品会是什么", "唯品会有什么", 1),
        ("Is it open", "Can we go in", 1),
    ],
)
def test_sentences_that_cannot_safely_be_negated_are_left(left, right, label):
    with pytest.raises(InputError, match="no rule of negation applies"):
        made("negation", [(left, right, label)])


@pytest.mark.parametrize("seed", range(10))
def test_an_entity_in_both_texts_is_replaced_in_one_of_them(seed):
    found = {how: (before, after) for before, after, _, _, how in changed_sides("entity", seed=seed)}
    number = re.compile(r"\d+")
    before, after = found["number"]
    assert number.sub("", before) == number.sub("", after) and len(before) == len(after) and before != after
    assert {label for *_, label, _ in made("entity", seed=seed)} == {0}
    assert found["name"][1].replace("刘德华", "张学友") == found["name"][0].replace("刘德华", "张学友")


def test_places_are_swapped_or_replaced_by_other_places():
    found = {
        (how, after)
        for seed in range(40)
        for _, after, _, _, how in changed_sides("entity", QUESTIONS[2:3], seed=seed)
    }
    assert {("direction", "从上海到北京要多久"), ("direction", "上海到北京需要多长时间")} <= found
    assert any(how == "place" and ("上海" in after) != ("北京" in after) for how, after in found)


def test_order_swaps_the_texts_and_keeps_the_label():
    for row, left, right, label, _ in made("order"):
        assert (right, left, label) == QUESTIONS[row]


def test_with_three_classes_swapped_pairs_are_unlabelled():
    assert {label for *_, label, _ in made("order", classes=3)} == {UNKNOWN}
    for kind in ("negation", "entity"):
        with pytest.raises(InputError, match="applies"):
            made(kind, classes=3)
    assert {label for *_, label, _ in made("filler", classes=3)} == {0, 1}


def test_fillers_only_add_to_a_text():
    found = [row for seed in range(20) for row in changed_sides("filler", seed=seed)]
    for before, after, label, new_label, _ in found:
        assert label == new_label and len(after) > len(before)
        assert after.startswith(before[:-1]) or after.endswith(before)
    assert any(after.startswith("请问") for _, after, *_ in found)
    assert any(after.endswith("呢") for _, after, *_ in found)


def test_fillers_fit_their_sentence():
    assert "请问" not in {word for word, _ in fillings("请问怎么提现")}
    assert ("吗", "微信可以提现吗？") in fillings("微信可以提现？")
    assert ("呢", "怎么提现呢？") in fillings("怎么提现？")
    assert all(word != "呢" for word, _ in fillings("可以提现吗"))
    assert ("Well,", "Well, it is open") in fillings("it is open")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "homophone"])
def test_a_perturbed_row_does_not_depend_on_the_row_limit(kind):
    whole = {row: rest for row, *rest in made(kind)}
    few = {row: rest for row, *rest in made(kind, most=1)}
    assert len(few) == 1 and few.items() <= whole.items()
    assert made(kind) == made(kind)


def test_no_two_draws_have_one_seed(monkeypatch):
    """Neither those of two kinds or two rows, nor those of a row and the choice of rows."""
    keys, default_rng = [], np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda key: (keys.append(tuple(key)), default_rng(key))[1])
    kinds = tuple(kind for kind in KINDS if kind != "homophone")
    found = perturb(pairs_of(), 2, kinds, 3, 7)
    assert len(keys) == len(set(keys)) > 15 and {key[0] for key in keys} == {7}
    for kind in kinds:  # the rows that were drawn are in the order of the file
        assert (np.diff(found.origins[np.array(found.kinds) == kind]) > 0).all()


def test_any_may_be_drawn_and_frequent_ones_more_often():
    rng = np.random.default_rng(0)
    assert {Untouched("", "", 0, rng).one_of("abc") for _ in range(50)} == set("abc")
    drawn = Counter(draw_weighted(rng, [("a", 1), ("b", 3)]) for _ in range(400))
    assert drawn["b"] == pytest.approx(300, abs=40) and drawn["a"] + drawn["b"] == 400


def test_a_name_of_the_file_stands_in_the_place_of_another():
    rows = [QUESTIONS[4], ("手机怎么充值话费", "张学友今年多少岁", 0)]
    ((row, left, right, label, how),) = made("entity", rows)
    assert (row, label, how) == (0, 0, "name") and "张学友" in left + right


def test_another_seed_gives_other_perturbations():
    assert made("typo", seed=1) != made("typo", seed=2)
    assert {made("order", most=1, seed=seed)[0][0] for seed in range(20)} != {0}


def test_the_origin_names_rule_and_line():
    pairs = pairs_of()
    found = perturb(pairs, 2, ("order", "typo"), 0, 1)
    assert found.origin(0, pairs) == "order exchanged line 2"
    row = found.kinds.index("typo")
    assert re.fullmatch(r"typo (swapped|left out|doubled|look-alike) line \d+", found.origin(row, pairs))


def test_kinds_are_sorted_and_unknown_ones_are_rejected():
    assert parse_kinds("order, typo") == ("typo", "order") and parse_kinds("") == ()
    with pytest.raises(InputError, match="robustness spelling is no kind; name some of typo, homophone"):
        parse_kinds("typo spelling")
