"""Class 1 is the match: by words that are known, by a negation, or by the answer of the user."""

import shlex
from dataclasses import replace

import pytest
from pandas import DataFrame
from tiny_pair import train_config, write_rows

from ernie_pair.core import errors
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError
from ernie_pair.models.labels import (
    Labels,
    build_label_map,
    labels_in,
    match_class,
    order_classes,
    parse_label_map,
)
from ernie_pair.pairs.data.in_memory_pairs import GivenPairs
from ernie_pair.pairs.data.label_checks import LabelQuestion
from ernie_pair.pairs.data.pair_records import RowRules
from ernie_pair.pairs.data.pair_source import PairSource, labels_for
from ernie_pair.pairs.train.train_pair import train_pair

RULES = RowRules(most_classes=20)
SAYINGS = ["今天天气很好", "明天上下左右", "前后来去多少", "我你他她它们"]


def pairs_of(words, count=80):
    """``count`` rows: two texts of one saying have the label words[1], of two words[0]."""
    for row in range(count):
        left, other = SAYINGS[row % 4], SAYINGS[(row + 1) % 4]
        yield f"{left}{row}", left[1:] if row % 2 else other, words[row % 2]


def source_of(path, rows, rules=RULES, **more):
    return PairSource("train_file", str(write_rows(path, rows)), "train", None, rules=rules, **more)


def classes(source, label_map=""):
    return replace(source, labels=labels_for(source, label_map)).read().labels.tolist()


@pytest.fixture
def typed(monkeypatch):
    monkeypatch.setattr(errors.sys, "argv", ["/bin/ernie-pair", "mine", "--train_file", "x y.tsv"])
    return "ernie-pair mine --train_file 'x y.tsv'"


def answers_of(error):
    """The values of --label_map in the commands of a question, in their order."""
    words = shlex.split(error.message.replace(";", " "))
    return [value for flag, value in zip(words, words[1:]) if flag == "--label_map"]


KNOWN = (
    "负例/正例, 负/正, 异/同, 不同/相同, 不一样/一样, 未命中/命中, mismatch/match, not_duplicate/duplicate, "
    "Not-Entailment/entailment, 冲突/不冲突, 差异/无差异, 有区别/没有区别, differ/not differ, FALSE/True, "
    "unique/Not-Unique, wrong/not wrong, non paraphrase/Paraphrase, different/not_different, 不相似/相似, "
    "NEGATIVE/positive, irrelevant/relevant, “否”/「是」"
).split(", ")


@pytest.mark.parametrize("no, yes", [words.split("/") for words in KNOWN])
def test_known_words_and_negations_are_class_0_and_1(tmp_path, no, yes):
    assert order_classes([yes, no]) == order_classes([no, yes]) == [[no], [yes]]
    source = source_of(tmp_path / "a.tsv", pairs_of((no, yes), 8))
    assert classes(source) == [0, 1] * 4
    given = GivenPairs("train_dataset", list(pairs_of((no, yes), 8)), None, rules=RULES)
    assert classes(given) == [0, 1] * 4


UNKNOWN = "乙类/甲类 a/b 相关/同义 不同/无关 not-rejected/rejected 没解决/解决 阴性/非阴性".split()


@pytest.mark.parametrize("words", [tuple(words.split("/")) for words in UNKNOWN])
def test_unknown_words_are_asked_for_with_both_commands(tmp_path, typed, words):
    source = source_of(tmp_path / "a.tsv", pairs_of(words, 8))
    with pytest.raises(LabelQuestion, match="class 1 is the match, and which of them is it") as caught:
        labels_for(source, "")
    assert caught.value.message.count(typed) == 2
    maps = answers_of(caught.value)
    assert sorted(maps) == sorted([f"0={words[0]},1={words[1]}", f"0={words[1]},1={words[0]}"])
    assert [classes(source, text) for text in sorted(maps)] in (
        [[0, 1] * 4, [1, 0] * 4],
        [[1, 0] * 4, [0, 1] * 4],
    )


def test_more_words_are_asked_for_in_an_order_of_ones_own(tmp_path, typed):
    rows = [(a, b, ("同义", "相关", "无关")[n % 3]) for n, (a, b, _) in enumerate(pairs_of("01", 30))]
    source = source_of(tmp_path / "a.tsv", rows)
    with pytest.raises(LabelQuestion, match="in an order of your own") as caught:
        labels_for(source, "")
    assert answers_of(caught.value) == ["0=无关,1=同义,2=相关"]
    two = replace(source, rules=RowRules(most_classes=2))
    with pytest.raises(LabelQuestion) as caught:  # of two relations both, or one of them, may be the match
        labels_for(two, "")
    maps = answers_of(caught.value)
    assert maps == ["0=无关,1=同义,1=相关", "0=相关,0=无关,1=同义", "0=同义,0=无关,1=相关"]
    assert [classes(two, text)[:3] for text in maps] == [[1, 1, 0], [1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    "words, most, maps",
    [
        (("不匹配", "匹配", "否", "是"), 20, "0=不匹配,0=否,1=匹配,1=是"),
        (("是", "匹配", "否"), 2, "0=否,1=是,1=匹配"),
        (("不匹配", "匹配", "新"), 2, ["0=不匹配,0=新,1=匹配", "0=不匹配,1=匹配,1=新"]),
        (("不匹配", "匹配", "否", "是", "新"), 20, ["0=不匹配,0=否,1=匹配,1=是,2=新"]),
        (("匹配", "NaN"), 20, ["0=NaN,1=匹配"]),
        (("N/A", "Y"), 2, ["0=N/A,1=Y"]),
    ],
)
def test_a_map_never_takes_a_match_for_none(tmp_path, typed, words, most, maps):
    rows = [(a, b, words[n % len(words)]) for n, (a, b, _) in enumerate(pairs_of("01", 30))]
    source = source_of(tmp_path / "a.tsv", rows, RowRules(most_classes=most))
    if isinstance(maps, str):  # known without a question
        expected = parse_label_map(maps)
        assert classes(source) == [expected.classes[word] for _, _, word in rows]
        plain = replace(source, labels=Labels.numbered(2))  # as evaluate reads for a model of 0 and 1
        assert plain.read().labels.tolist() == classes(source)
        return
    with pytest.raises(LabelQuestion) as caught:
        labels_for(source, "")
    assert answers_of(caught.value) == maps


@pytest.mark.parametrize("spelled", ['"{}"', "'{}'", " {}\u3000", "{}.0", '" {} "'])
def test_case_quotes_and_width_of_labels_do_not_matter(tmp_path, spelled):
    rows = [(a, b, spelled.format(label)) for a, b, label in pairs_of("01", 8)]
    assert classes(source_of(tmp_path / "a.tsv", rows)) == [0, 1] * 4
    assert classes(source_of(tmp_path / "b.tsv", pairs_of("０１", 8))) == [0, 1] * 4
    named = Labels.named({"a": 0, "A": 1})
    assert [named.class_of("a"), named.class_of("A"), named.class_of("Ａ")] == [0, 1, None]


def test_true_and_false_are_read_beside_numbers_and_in_a_frame(tmp_path):
    rows = [(a, b, label) for (a, b, _), label in zip(pairs_of("01", 4), (0, 1, False, True))]
    frame = DataFrame(rows, columns=["text_a", "text_b", "label"])
    assert classes(GivenPairs("x", frame, None, rules=RULES)) == [0, 1, 0, 1]
    assert classes(source_of(tmp_path / "a.tsv", rows)) == [0, 1, 0, 1]
    named = replace(source_of(tmp_path / "b.tsv", pairs_of(("不同", "相同"), 4)), labels=Labels.numbered(2))
    assert named.read().labels.tolist() == [0, 1, 0, 1]  # as evaluate reads for a model of 0 and 1
    turned = replace(named, labels=Labels.named({"duplicate": 0, "not_duplicate": 1}))
    assert turned.read().labels.tolist() == [1, 0, 1, 0]


def test_a_rare_label_is_a_bad_row(tmp_path, typed):
    for name, words in (("numbers", "01"), ("words", ("否", "是"))):
        rows = [*pairs_of(words, 320), ("今天", "明天", "不确定")]
        source = source_of(tmp_path / f"{name}.tsv", rows)
        with pytest.raises(
            InputError, match=r"s.tsv:321: label '不确定'.* 1 row of 321 and is no class"
        ) as caught:
            classes(source)
        assert caught.value.message.endswith(f"{typed} --on_bad_row skip")
        skipping = replace(source, rules=replace(RULES, skips=True))
        assert len(classes(skipping)) == 320
        given = GivenPairs("train_dataset", rows, None, rules=RULES)
        with pytest.raises(InputError, match="is no class"):
            classes(given)
    assert build_label_map({"否": 500, "未知": 20, "是": 480}) == ""  # more of them are asked for


@pytest.mark.parametrize(
    "labels, rules, told",
    [
        (["匹配"] * 3 + [""] * 4, RULES, "the other labels: 匹配 in 3 rows; write the label of each row"),
        (["匹配"] * 5 + [""] * 2, RULES, "the other labels: 匹配 in 5 rows"),  # one class would be left
        (["匹配", "不匹配"] * 2 + [""] * 4, RULES, "the other labels: 匹配 in 2 rows, 不匹配 in 2 rows"),
        (["匹配", "不匹配"] * 9 + [""], RULES, "to leave such rows out: ernie-pair .* --on_bad_row skip"),
        ([f"0.{n}" for n in range(9)], RULES, "its labels are scores, and this command takes classes"),
        (
            [f"0.{n}" for n in range(9)],
            replace(RULES, for_scores=("are_scores", "true")),
            "its labels are scores: ernie-pair .* --are_scores true",
        ),
        (
            [f"3.{n}" for n in range(9)],
            replace(RULES, for_scores=("label_range", "")),
            "its labels are scores: ernie-pair .* --label_range 0,4",
        ),
        (["-1", "1"] * 5, replace(RULES, for_scores=("target", "regression")), "if -1 is, .*0=1,1=-1$"),
        (["1", "2", "3"] * 5, replace(RULES, for_scores=("target", "regression")), "if they are scores, "),
    ],
)
def test_a_cure_never_drops_half_of_the_rows(tmp_path, typed, labels, rules, told):
    rows = [(f"甲乙丙{n}", f"丁戊己{n}", label) for n, label in enumerate(labels)]
    given = GivenPairs("train_dataset", rows, None, rules=rules)
    for source in (source_of(tmp_path / "a.tsv", rows, rules), given):
        with pytest.raises(InputError, match=told) as caught:
            classes(source)
        assert ("on_bad_row" in told) == ("on_bad_row" in caught.value.message)


def test_files_without_labels_are_told_so(tmp_path):
    rows = [(a, b) for a, b, _ in pairs_of("01", 9)]
    reason = "no row of .* has one: predict, distill and train-embedding take pairs without labels"
    for rules in (RULES, replace(RULES, skips=True)):
        for source in (source_of(tmp_path / "a.tsv", rows, rules), GivenPairs("x", rows, None, rules=rules)):
            with pytest.raises(InputError, match=reason) as caught:
                classes(source)
            assert "on_bad_row" not in caught.value.message


def test_numbers_are_compared_with_the_texts(tmp_path, typed, caplog):
    source = source_of(tmp_path / "a.tsv", pairs_of("10", 240))
    with pytest.raises(LabelQuestion, match=r"share fewer characters .*AUC 0\.\d\d on 240 rows") as caught:
        labels_for(source, "")
    turned, kept = answers_of(caught.value)
    assert (turned, kept) == ("0=1,1=0", "0=0,1=1")
    assert classes(source, turned) == [0, 1] * 120 and classes(source, kept) == [1, 0] * 120
    assert caplog.text.count("--label_map says so") == 1  # of the labels kept as they are
    assert labels_for(source, "", stops=False).names == ("0", "1")
    for few in (pairs_of("10", 190), [*pairs_of("00", 230), *pairs_of("10", 12)], pairs_of("01", 240)):
        labels_for(source_of(tmp_path / "few.tsv", few), "")
    with pytest.raises(LabelQuestion, match="correct the labels"):
        labels_for(source_of(tmp_path / "words.tsv", pairs_of(("相同", "不同"), 240)), "")
    with pytest.raises(LabelQuestion, match="if 否 is the match"):  # yes, they differ
        labels_for(source_of(tmp_path / "yes.tsv", pairs_of(("是", "否"), 240)), "")
    given = GivenPairs("train_dataset", list(pairs_of("10", 240)), None, rules=RULES)
    with pytest.raises(LabelQuestion):
        labels_for(given, "")


def test_a_sorted_file_is_compared_too(tmp_path):
    rows = sorted(pairs_of("10", 4000), key=lambda row: row[2])
    with pytest.raises(LabelQuestion, match="on 2000 rows"):
        labels_for(source_of(tmp_path / "a.tsv", rows), "")


@pytest.mark.parametrize(
    "names, match",
    [
        (("duplicate", "not_duplicate"), 0),
        (("Entailment", "contradiction"), 0),
        (("不同", "相同"), 1),
        (("0", "1"), 1),
        (("1", "0"), 1),
        (("是", "否"), 1),  # yes to what?
        (("LABEL_0", "LABEL_1"), 1),
        (("entailment", "neutral", "contradiction"), None),
    ],
)
def test_the_match_of_a_folder_is_told_by_its_names(names, match):
    config = {"num_labels": len(names), "id2label": {str(n): name for n, name in enumerate(names)}}
    assert match_class(labels_in(config)) == match


def test_an_encoder_takes_the_match_by_its_name(tmp_path, caplog):
    rules = RowRules(most_classes=2)
    source = source_of(tmp_path / "a.tsv", pairs_of(("different", "same"), 8), rules)
    assert classes(source, "0=same,1=different") == [0, 1] * 4
    assert "same is the match, by its name" in caplog.text


def test_turned_numbers_are_kept_by_a_folder():
    labels = parse_label_map("0=1,1=0")
    kept = labels_in(labels.to_config())
    assert [kept.class_of(label) for label in (0, 1, "0", 1.0)] == [1, 0, 1, 0]


@pytest.mark.parametrize("kind", ["unknown", "turned"])
def test_train_asks_and_takes_the_answer(tmp_path, capfd, kind):
    words = {"unknown": ("乙类", "甲类"), "turned": "10"}[kind]
    config = train_config(tmp_path, max_steps=1)
    for name in ("train", "dev"):
        write_rows(tmp_path / f"{name}.tsv", pairs_of(words, 240))
    assert exit_code_of(lambda: train_pair(config)) == 2
    assert capfd.readouterr().err.count("error: ") == 1 and not (tmp_path / "out").exists()
    answer = f"0={words[0]},1={words[1]}"
    assert exit_code_of(lambda: train_pair(replace(config, label_map=answer))) == 0
    folder = next((tmp_path / "out").glob("best*/**/config.json")).parent
    assert f'"1": "{words[1]}"' in (folder / "config.json").read_text(encoding="utf-8")


def test_questions_read_as_python_in_python(tmp_path):
    with pytest.raises(LabelQuestion) as caught:
        labels_for(source_of(tmp_path / "a.tsv", pairs_of(("乙类", "甲类"), 8)), "")
    assert "label_map='0=甲类,1=乙类'" in str(caught.value) and "--" not in str(caught.value)
    with pytest.raises(LabelQuestion) as caught:
        labels_for(source_of(tmp_path / "a.tsv", pairs_of("10", 240)), "")
    assert "label_map='0=1,1=0'" in str(caught.value)
