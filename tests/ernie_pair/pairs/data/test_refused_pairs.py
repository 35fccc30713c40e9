"""Files that cannot be read as pairs: refused in one line with the row, what it is and how to fix it."""

import logging
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pandas import DataFrame
from pyarrow import parquet
from table_files import FLAT, NAMES, ROWS, book, changed, csv_text, frame, put, tabbed
from tiny_pair import toy_rows, train_config

from ernie_pair.core import errors
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.data.in_memory_pairs import GivenPairs
from ernie_pair.pairs.data.pair_records import Columns, RowRules
from ernie_pair.pairs.data.pair_source import PairSource, labels_for
from ernie_pair.pairs.train.train_pair import train_pair

GOOD, GOOD_JSON = "今天\t明天\t0\n", '{"sentence1": "左", "sentence2": "右", "label": "0"}\n'
SHEET = "xl/worksheets/sheet1.xml"
TYPED = "ernie-pair train --train_file=x"
MAPPED = f"{TYPED} --label_map 0=a,1=b"


def source_of(path, **more):
    columns = Columns(**{name: more.pop(name) for name in ("text_a", "text_b", "label") if name in more})
    return PairSource("train_file", str(path), "train", None, columns, RowRules(most_classes=20, **more))


def fails(path, *told, labels=Labels.numbered(2), **more):  # noqa: B008
    """Read ``path``, and return the message, of one line with everything of ``told`` in it."""
    source = source_of(path, **more)
    with pytest.raises(InputError) as caught:
        replace(source, labels=labels or labels_for(source, "")).read()
    message = caught.value.message
    assert [one for one in told if one not in message] == [], message
    assert "\n" not in message
    return message


@pytest.fixture
def typed(monkeypatch):
    """The command that is running is ``ernie-pair train --train_file=x --label old``."""
    words = ["/usr/bin/ernie-pair", "train", "--train_file=x", "--label", "old", "--label_map", "0=a,1=b"]
    monkeypatch.setattr(errors.sys, "argv", words)


BAD_LINES = [
    ("今天 明天 0", "1 column instead of 3; write one tab"),
    ("今天\t明天", "2 columns instead of 3"),
    ('"今\t天"\t明天\t0', "4 columns instead of 3; write one tab"),
    *((f"今天\t明天\t{label}", f"label '{label}' is not one of 0, 1; correct")
      for label in ("2", "-1", "1.5", "1.", "2.0", "-1.0", "01", "nan", "甲", "")),
    ("今天\t明天\t ２", "label"),
    ("今\r天\t明天\t0", "CR inside the line"),
    (" \u3000\t明天\t0", "sentence1 is empty; fill"),
    ("今天\t\xa0\t0", "sentence2 is empty"),
    ("\t明天\t1", "sentence1 is empty"),
    ("", "the line is blank; remove"),
]  # fmt: skip
BAD_BYTES = [
    (
        "啊\t波\t1".encode("gb18030"),
        "not UTF-8 (byte 1 of the line is 0xb0); it looks like GB18030, and lines",
    ),
    (b"\xe4\xbb\x8a\xff\t\xe5\xa4\xa9\t0", "not UTF-8 (byte 4 of the line is 0xff"),
    ("今天\t明天\t".encode()[:-2], "its last character is cut short"),
]
BAD_OBJECTS = [
    ("{oops", "not JSON, "),
    ('{"sentence1": "左", "sent', "not JSON"),
    ("[" * 100_000, "nested too deep, above 64 levels; write an object per line"),
    ('["左", "右"]', "a list instead of an object"),
    ('{"sentence1": "左", "label": "0"}', "sentence2 is missing"),
    ('{"sentence1": "左", "sentence2": null, "label": "0"}', "sentence2 is None, not a text"),
    ('{"sentence1": "左", "sentence2": "右"}', "no label; each row needs one of 0, 1"),
    ('{"sentence1": "左", "sentence2": "右", "label": 0.5}', "label 0.5 is not"),
    ('{"sentence1": "左", "sentence2": "右", "label": 1e400}', "1e400 is too large"),
    ('{"sentence1": "左", "sentence2": "右", "label": ["1"]}', "label ['1'] is no single value"),
    ('{"sentence1": "左", "sentence2": "右", "label": {"a": 1}}', "label {'a': 1} is no single value"),
    ('{"sentence1": "左", "sentence2": ["右"], "label": 1}', "sentence2 is ['右'], not a text"),
    ('{"sentence1": "左", "sentence2": 7, "label": 1}', "sentence2 is 7, not a text"),
    ('{"sentence1": "左", "sentence2": "\\ud83d", "label": 1}', "sentence2 has half of a character"),
    ('{"query": "左", "title": "右", "label": 1, "label": 0}', "the key 'label' is given twice"),
]
BAD_CSV = [
    ("左,,1", "sentence2 is empty"),
    (
        "左,右",
        "2 columns instead of 3; write one comma between two columns, and a text with commas in quotes",
    ),
    ("左,上,右,1", "4 columns instead of 3"),
    ('"左"上,右,1', "text behind the closing quote of a cell; double the quotes"),
    ("左\r上,右,1", "CR outside of quotes; save the file with LF"),
    ("左,右,甲", "label '甲' is not one of 0, 1"),
    ("", "the line is blank; remove it"),
    (",,", "sentence1 is empty; fill it in"),
    (b"\xff,\xe5\x8f\xb3,1", "not UTF-8"),
    ("#N/A,右,1", "sentence1 is #N/A, an error of a spreadsheet"),
]
BAD_ROWS = [
    *((f"a.{kind}", good, 2, bad, told)
      for kind, good, bads in (("tsv", GOOD, BAD_LINES + BAD_BYTES), ("json", GOOD_JSON, BAD_OBJECTS))
      for bad, told in bads),
    *(("a.csv", '"左\n上",右,1\n', 3, bad, told) for bad, told in BAD_CSV),
]  # fmt: skip


@pytest.mark.parametrize("mark, end", [("", "\n"), ("\ufeff", "\r\n")])
@pytest.mark.parametrize("name, good, line, bad, told", BAD_ROWS, ids=range(len(BAD_ROWS)))
def test_a_bad_row_is_named_with_its_fix_or_left_out(tmp_path, name, good, line, bad, told, mark, end):
    bad, held = bad if isinstance(bad, bytes) else bad.encode(), good.replace("\n", end)
    path = put(tmp_path / name, (mark + held).encode() + bad + end.encode() + held.encode())
    fails(path, f"{path}:{line}: ", told)
    pairs = replace(source_of(path, skips=True), labels=Labels.numbered(2)).read()
    assert len(pairs) == 2 and pairs.numbers.tolist() == [1, line + 1]
    assert [(row.number, row.place) for row in pairs.bad] == [(line, 1)]


def frame_csv(*names, **more):
    return frame(names, **more).to_csv(index=False)


def nested(path):
    rows = [{"pair": {"a": left, "b": right}, "tags": ["x"], "y": label} for left, right, label in ROWS]
    parquet.write_table(pa.Table.from_pylist(rows), path)


def huge(path):
    texts = pa.DictionaryArray.from_arrays(
        pa.array([0, 1] * 4, pa.int32()), pa.array(["a" * (70 << 20), "b"])
    )
    table = pa.table({"text_a": texts, "text_b": texts, "label": [0, 1] * 4})
    parquet.write_table(table, path, compression="zstd")
    assert path.stat().st_size < 1 << 20


def with_xml(old, new):
    return changed(book([NAMES, *ROWS]), SHEET, lambda xml: xml.replace(old, new, 1))


ROW = '{"sentence1": "左", "sentence2": "右", "label": 1}'
BAD_FILES = [
    ("a.tsv", "a\tb\tc\n左\t右\t1\n", {"text_a": "x"}, ":1: no column 'x' in a, b, c; fix --text_a"),
    ("a.tsv", "左\t右\t1\n", {"label": "gleich"}, ":1: no column 'gleich' in 左, 右, 1; fix --label"),
    ("a.tsv", "query\ttext_a\ttitle\n左\t右\t1\n", {}, "both columns query, text_a may be sentence1; name"),
    ("a.tsv", "text_a\tscore\tlabel\n" + GOOD, {}, ":1: both columns score, label may be label; name one"),
    ("a.tsv", "x\tx\ty\n左\t右\t1\n", {"text_a": "x"}, "several columns are called x; rename all but"),
    ("a.csv", "text_a,text_b,label,label\n左,右,1,0\n", {}, "several columns are called label; rename"),
    ("a.json", '{"query": "左", "s1": "右"}\n', {}, ":1: both columns query, s1 may be sentence1"),
    ("a.tsv", "#1 String\tx\n左\t8\n", {}, ":1: the header #1 String, x is not understood"),
    ("a.csv", "text_a,x,y\n左,右,上\n", {}, ":1: the header text_a, x, y is not understood"),
    ("a.tsv", "text_a\ttext_b\n左\t右\n", {}, ":2: no label;", "(name its column with --label)"),
    ("a.jsonl", '{"a": "左"}\n', {"text_a": "a", "text_b": "b"}, ":1: b is missing (found: a);", "--text_b"),
    ("a.tsv", "甲\t乙\t丙\tlabel\n左\t右\t上\t1\n", {}, "--text_a '甲' --text_b '乙' --label label"),
    ("a.csv", "左, 上,右,1\n", {}, ":1: 4 columns instead of 3"),
    ("a.csv", "左\n", {}, ":1: 1 column instead of 3", "separate them by tabs"),
    ("a.tsv", "left\tright\tsimilar\n" + GOOD, {}, ":1: label 'similar'", "if the line is a header"),
    ("a.tsv", tabbed([(1, "b", "来源", "a", "x")] * 8), {}, "5 columns instead of 3", "with --text_a"),
    ("a.tsv", tabbed([(1, "b", "来源", "a", "x")] * 8), {"text_a": "4", "text_b": "9"}, "from 1 to 5"),
    ("a.csv", tabbed([(y, f"怎么{n}", f"如何{n}") for n, y in enumerate([0, 1] * 4)], mark=","), {},
     "columns 2 and 3 hold the texts", f"{MAPPED} --text_a 2 --text_b 3 --label 1"),
    ("a.csv", frame_csv("甲", "乙", "丙", 丁=[1, 0, 1, 1]), {}, "丙 and 丁 could be the label",
     f"name its columns: {MAPPED} --text_a '甲' --text_b '乙' --label '丙'"),
    ("a.csv", frame_csv("text_a", "text_b", "label", score=[1, 0, 1, 1]), {}, "both columns label, score",
     f"{MAPPED} --label label or {MAPPED} --label score"),
    *((f"a.{ending}", frame(names, [(a, b, f"{a}{b}") for a, b, _ in FLAT]).to_csv(index=False, sep=mark), {},
       f"the texts could be {', '.join(names)}", "anchor, positive, negative")
      for names in (["sentence_0", "sentence_1", "sentence_2"], ["文本1", "文本2", "文本3"])
      for ending, mark in (("csv", ","), ("tsv", "\t"))),
    ("a.tsv", "", {}, "a.tsv: it holds no pairs"),
    ("a.tsv", "\ufeff", {}, "a.tsv: it holds no pairs"),
    ("a.tsv", "text_a\ttext_b\tlabel\n", {}, "a.tsv: it holds no pairs"),
    ("absent.tsv", lambda path: None, {}, "no such file; give a .tsv"),
    ("folder", Path.mkdir, {}, "no file ends with .jsonl"),
    ("a.json", f"[{ROW}, 3]", {}, ":2: a number instead of an object"),
    ("a.json", f"[{ROW},\n", {}, "a.json:1: not JSON", "correct the array"),
    ("a.tsv", "左\t右\t甲\n上\t下\t乙\n", {"skips": True}, "none of its rows is a pair; ", ":1: label"),
    *(("a.csv", '"左\n上",右,1\n"左,右,1\n' + "左\n上,右,1\n" * 50, {"skips": skips},
       "a.csv:3: a cell that begins with a quote", "has no quote at its end") for skips in (False, True)),
    ("a.tsv", "左\t右\t1\n".encode("gb18030") + b"\xff\xff\t\xff\t1\n", {"encoding": "gb18030"},
     "a.tsv:2: not gb18030 (byte 1 ", "give the encoding"),
    ("a.tsv", "怎么开户\t如何开户\t1\n", {"encoding": "gb18030"}, "not gb18030", "by iconv -f gb18030"),
    ("a.tsv", "\ufeff左\t右\t1\n", {"encoding": "gb18030"}, "byte-order mark of UTF-8, not gb18030; leave"),
    ("gb.tsv", tabbed(FLAT).encode("gb18030") * 3 + tabbed(FLAT).encode(), {}, "in line 14, 15, 16",
     f"{TYPED} --label old --label_map 0=a,1=b --on_bad_row skip"),
    ("u.tsv", tabbed(FLAT).encode() * 3 + tabbed(FLAT).encode("gb18030"), {}, "u.tsv:13: not UTF-8", "14"),
    *((f"a{ending}", b"no table", {}, f"a{ending} cannot be read as a", kind, "save it again")
      for ending, kind in ((".xlsx", "Excel"), (".parquet", "Parquet"), (".arrow", "Arrow"))),
    ("a.xls", b"", {}, "a.xls", "Excel 97-2003"),
    ("a.tsv", "<!DOCTYPE html>\n<table><tr><td>甲\t乙\t1</td></tr></table>\n", {}, "page of HTML", "pandoc"),
    ("a.parquet", nested, {}, "pair.a, pair.b, tags, y", "tags hold lists", "--text_a pair.a --text_b"),
    ("a.parquet", huge, {}, "a.parquet: column text_a unpacks from"),
    ("a.xlsx", book([NAMES, *ROWS[:2], ("#N/A", "如何", 1)]), {}, "a.xlsx:4: sentence1 is #N/A"),
    ("a.xlsx", with_xml(b"<v>0", b"<v>\x01"), {}, "workbook of Excel (a control character in a cell?)"),
    *(("a.xlsx", book([NAMES, *ROWS])[:size], {}, "a.xlsx") for size in (2500, -30, 200)),
    ("a.xlsx", with_xml(b'<row r="3"', b'<row r="9999999"'), {}, "a.xlsx: row 9999999, above 1048576"),
    ("a.xlsx", with_xml(b"<v>1</v>", b"<v>" + b"9" * (64 << 20) + b"</v>"), {}, "a cell above 1048576 bytes"),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD_FILES, ids=lambda case: f"{case[0]}-{case[3][:20]}")
@pytest.mark.usefixtures("typed")
def test_a_file_that_is_not_understood_is_refused(tmp_path, case):
    name, content, more, *told = case
    fails(put(tmp_path / name, content), *told, **more)


def test_of_three_numbered_texts_of_a_frame_none_is_dropped():
    made = frame(["文本1", "文本2", "文本3"], [(a, b, f"{a}{b}") for a, b, _ in FLAT])
    with pytest.raises(InputError, match="the texts could be 文本1, 文本2, 文本3"):
        GivenPairs("train_dataset", made, None, rules=RowRules(of_encoders=True)).read()


@pytest.mark.usefixtures("typed")
def test_labels_that_no_map_covers_are_told_with_rows(tmp_path):
    marks = ["是", "否", "未知", "是", "否", "是", "未知", "待定"]
    path = put(tmp_path / "a.tsv", tabbed([(*row[:2], mark) for row, mark in zip([*FLAT, *FLAT], marks)]))
    found = "a.tsv: its labels are 是 in 3 rows, 否 in 2 rows, 未知 in 2 rows, 待定 in 1 row"
    fails(path, found, f"{TYPED} --label old --label_map '0=否,1=是,2=未知,3=待定'", labels=None)
    named = Labels.named({"否": 0, "是": 1})
    fails(path, ":3: label '未知' is not one of 否, 是", "in line 7, 8", labels=named)


def test_files_whose_columns_differ_are_told_at_once(tmp_path, capfd):
    config = train_config(tmp_path)
    for name, names in (("train", ("甲", "乙", "丙")), ("dev", ("乙", "甲", "丙"))):
        put(tmp_path / f"{name}.csv", csv_text(names, list(toy_rows(40, 0))))
    config = replace(config, train_file=str(tmp_path / "train.csv"), dev_file=str(tmp_path / "dev.csv"))
    assert exit_code_of(lambda: train_pair(config)) == 2
    assert "dev.csv:1: its columns 乙, 甲, 丙 are not those of " in capfd.readouterr().err
    named = replace(config, text_a="甲", text_b="乙", label="x")
    assert exit_code_of(lambda: train_pair(named)) == 2
    told = capfd.readouterr().err
    assert told.count("no column 'x'") == 2 and told.count("error: ") == 1
    assert not (tmp_path / "out").exists()
    assert exit_code_of(lambda: train_pair(replace(named, label="丙", max_steps=1))) == 0


def test_everything_wrong_with_two_files_is_one_message(tmp_path, capfd):
    config = train_config(tmp_path)
    put(Path(config.train_file), tabbed([("今", "天", 1), ("今", "", 1), ("今", "天", 0)]))
    put(Path(config.dev_file), tabbed([("今", "天", 1), ("今", "天", 7), ("今", "天", 8)]))
    assert exit_code_of(lambda: train_pair(config)) == 2
    told = capfd.readouterr().err
    assert f"{config.train_file}:2: sentence2 is empty" in told and f"{config.dev_file}:2: label '7'" in told
    assert "in line 3" in told and told.count("error: ") == 1
    assert not (tmp_path / "out").exists()


def test_a_key_that_only_a_late_row_has_is_said(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    made = frame(rows=ROWS * 60)
    content = made.to_json(orient="records", lines=True) + ROW[:-1] + ', "remark": "x"}\n'
    assert len(source_of(put(tmp_path / "late.jsonl", content)).read()) == 241
    assert any(line.endswith("late.jsonl:241: also not read: remark") for line in caplog.messages)
    twice = DataFrame([["左", "右", "下"]], columns=["s1", "s2", "s2"])
    with pytest.raises(InputError, match="x has two columns of one name in s1, s2, s2; rename one"):
        GivenPairs("x", twice, None).read()
