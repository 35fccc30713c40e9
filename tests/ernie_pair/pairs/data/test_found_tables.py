"""Files as people have them: each is read in one attempt, with no flag; bad ones are told in one message."""

import csv
import gzip
import json
import logging
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from openpyxl import Workbook
from package_command import command
from pandas import DataFrame
from tiny_pair import CHARACTERS, toy_rows, train_config, write_model

from ernie_pair import PairConfig, PairTrainer
from ernie_pair.core import errors
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError
from ernie_pair.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.evaluation.predict_pair import predict_pair
from ernie_pair.models.labels import label_map_of
from ernie_pair.pairs.audit.audit_pairs import AuditPairsConfig, audit_pairs
from ernie_pair.pairs.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.pairs.data.in_memory_pairs import GivenPairs
from ernie_pair.pairs.data.pair_records import Columns, RowRules
from ernie_pair.pairs.data.pair_source import PairSource, labels_for
from ernie_pair.pairs.train.train_pair import train_pair

ROWS = [
    ("今天下雨，怎么办", "明天会下雨吗", 1),
    ('他说"好"', "怎么开户; 在哪", 0),
    ("左\n右", "上, 下", 1),
    ("银行卡丢了", "如何补办", 0),
]
FLAT = [(left.replace("\n", " "), right, label) for left, right, label in ROWS]
YES = {0: "否", 1: "是"}


def frame(names=("sentence1", "sentence2", "label"), rows=ROWS, words=None, **more):
    made = DataFrame(rows, columns=list(names))
    if words:
        made[names[2]] = made[names[2]].map(words)
    return made.assign(**more)


def sheet(path, rows, title=None, change=lambda sheet: None):
    book = Workbook()
    if title:
        book.active.title, _ = title, book.create_sheet("empty")
    for row in rows:
        book.active.append(row)
    change(book.active)
    book.save(path)


def text(path, content, encoding="utf-8", end="\n"):
    path.write_bytes(content.replace("\n", end).encode(encoding))


def tabs(rows, header="", mark="\t"):
    return header + "".join(f"{mark.join(map(str, row))}\n" for row in rows)


def arrow(path, table, new):
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table)


def extra(path):
    names = ("sentence1", "sentence2", "label")
    made = frame(names, label_desc=["same", "different", "same", "different"])
    made.insert(0, "id", range(100, 104))
    made.to_csv(path, index=False)


USERS = ("用户问题", "标准问题", "是否匹配")
NUMBERED = [["序号", *USERS], *([n, left, right, YES[label]] for n, (left, right, label) in enumerate(ROWS))]


def csv_file(*names, words=None, **settings):
    """The writer of a .csv of pandas, with the index column unless ``settings`` say otherwise."""
    made = frame(names or ("sentence1", "sentence2", "label"), words=words)
    return lambda path: made.to_csv(path, **settings)


def encoded(content, encoding, end="\n"):
    return lambda path: text(path, content, encoding, end)


BARE = {"index": False}
EXCEL_TEXT = frame(("s1", "s2", "label")).to_csv(sep="\t", **BARE)
GB = frame(("问题", "答案", "是否相似"), words=YES).to_csv(**BARE)
BLANK_END = tabs([(left, right, f" {label} ") for left, right, label in FLAT]) + "\n \n\t\t\n\x1a"
BOOLEANS, TABLE = frame(words={0: False, 1: True}), pa.Table.from_pandas(frame())
AS_SHOWN = [["句子一", "句子二", "结果"], *([*row[:2], bool(row[2])] for row in ROWS)]
LINES = {"orient": "records", "lines": True}
FILES = {
    "to_csv.csv": csv_file(),
    "extra.csv": extra,
    "numbered.csv": lambda path: DataFrame(NUMBERED[1:], columns=NUMBERED[0]).to_csv(path, **BARE),
    "semicolons.csv": csv_file("Frage 1", "Frage 2", "gleich", sep=";", **BARE),
    "sep-line.csv": lambda path: text(path, "sep=;\n" + frame().to_csv(sep=";")),
    "tabs.csv": csv_file("text_a", "text_b", "score", sep="\t", **BARE),
    "commas.txt": csv_file("query", "passage", "Label", **BARE),
    "unicode.txt": encoded(EXCEL_TEXT, "utf-16", "\r\n"),
    "big-endian.tsv": encoded("\ufeff" + tabs(FLAT, "text\ttext_pair\tlabels\n"), "utf-16-be"),
    "unmarked.tsv": encoded(tabs(FLAT, "问题1\t问题2\t标签\n"), "utf-16-le"),
    "gb.csv": encoded(GB, "gb18030", "\r\n"),
    "gb.tsv": encoded(tabs(FLAT), "gb18030"),
    "bom.csv": csv_file("anchor", "positive", "similarity", encoding="utf-8-sig"),
    "quoted.csv": csv_file(words={0: "FALSE", 1: "TRUE"}, quoting=csv.QUOTE_ALL),
    "blank-end.tsv": encoded(BLANK_END, "utf-8", "\r\n"),
    "book.xlsx": lambda path: sheet(path, [*NUMBERED, [None] * 4]),
    "booleans.xlsx": lambda path: sheet(path, AS_SHOWN, "数据"),
    "table.parquet": lambda path: frame(("premise", "hypothesis", "label")).to_parquet(path),
    "file.arrow": lambda path: arrow(path, TABLE, pa.ipc.new_file),
    "stream.arrow": lambda path: arrow(path, TABLE, pa.ipc.new_stream),
    "table.feather": lambda path: BOOLEANS.to_feather(path),
    "array.json": lambda path: frame(("question", "answer", "label")).to_json(path, orient="records"),
    "booleans.jsonl": lambda path: BOOLEANS.to_json(path, **LINES),
    "unknown.jsonl": lambda path: frame(("甲方", "乙方", "同"), n=range(4)).to_json(path, **LINES),
    "packed.csv.gz": lambda path: path.write_bytes(gzip.compress(frame().to_csv().encode("gb18030"))),
    "packed.tsv.zst": lambda path: path.write_bytes(zstandard.compress(tabs(FLAT).encode("utf-16"))),
    "gaps.csv": csv_file(words={0: 0.0, 1: 1.0}),
    "words.csv": csv_file(words={0: "different", 1: "same"}),
}


def source_of(path, flag="train_file", **columns):
    return PairSource(flag, str(path), "train", None, Columns(**columns), RowRules(most_classes=20))


def read(path, **columns):
    source = source_of(path, **columns)
    pairs = replace(source, labels=labels_for(source, "")).read()
    return list(zip(pairs.left, pairs.right, pairs.labels.tolist()))


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_read_in_one_attempt(tmp_path, name):
    FILES[name](tmp_path / name)
    assert read(tmp_path / name) in (ROWS, FLAT)
    assert read(tmp_path / name) == (FLAT if name.partition(".")[2].startswith("tsv") else ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_each_file_trains_in_one_attempt(tmp_path, name):
    config = train_config(tmp_path, max_steps=2, batch_size=2)
    for file in ("train", "dev"):
        FILES[name](tmp_path / f"{file}-{name}")
    files = {f"{file}_file": str(tmp_path / f"{file}-{name}") for file in ("train", "dev")}
    assert exit_code_of(lambda: train_pair(replace(config, **files))) == 0
    assert list((tmp_path / "out").glob("best*/**/config.json"))


def test_the_columns_and_the_words_are_said_in_one_line_each(tmp_path, caplog):
    path = tmp_path / "numbered.csv"
    FILES[path.name](path)
    with caplog.at_level(logging.INFO):
        assert read(path) == read(path) == ROWS
    said = [record.message for record in caplog.records]
    read_as = "reads 用户问题 and 标准问题 as the texts, 是否匹配 as the label; not read: 序号"
    assert said.count(f"{path}: {read_as}") == 1
    assert f"{path}: its labels are words: 否 = 0, 是 = 1, as with --label_map 0=否,1=是" in said


@pytest.mark.parametrize("ending, kind", [(".xlsx", "Excel"), (".parquet", "Parquet"), (".arrow", "Arrow")])
def test_a_damaged_table_is_an_error_of_one_line(tmp_path, ending, kind):
    path = tmp_path / f"a{ending}"
    path.write_bytes(b"no table")
    with pytest.raises(InputError, match=rf"a{ending} cannot be read as a .*{kind}.*; save it again"):
        read(path)
    with pytest.raises(InputError, match=r"a\.xls is a file of Excel 97-2003; save it as \.xlsx"):
        (tmp_path / "a.xls").write_bytes(b"")
        read(tmp_path / "a.xls")


@pytest.mark.parametrize(
    "counts, found",
    [
        ({"是": 3, "否": 2}, "0=否,1=是"),
        ({"Yes": 1, "no": 1, "YES": 1}, "0=no,1=Yes"),
        ({"True": 1, "False": 1}, "0=False,1=True"),
        ({"不相似": 1, "相似": 1}, "0=不相似,1=相似"),
        ({"entailment": 9, "neutral": 9, "contradiction": 9}, "0=contradiction,1=entailment,2=neutral"),
        ({"是": 3, "否": 2, "未知": 1}, ""),  # not guessed
        ({"0": 3, "是": 2}, ""),
        ({"yes": 5}, ""),
        ({f"w{n}": 9 for n in range(21)}, ""),
        ({"甲": 1, "乙": 1}, ""),  # as many words as rows
        ({"a,b": 9, "c": 9}, ""),
        ({"0.5": 9, "nan": 9}, ""),
    ],
)
def test_words_are_classes_where_they_are_clear(counts, found):
    assert label_map_of(counts) == found


def test_a_bare_table_is_read_as_ever(tmp_path):
    rows = [("问题", "标题", 1), ("query", "label", 0), ("3", "4", 1), ('"a', "b,c;d", 0)]
    text(tmp_path / "a.tsv", tabs(rows))
    assert read(tmp_path / "a.tsv") == rows
    text(tmp_path / "b.tsv", tabs([("甲", "乙", "是"), ("丙", "丁", "否")]))
    assert read(tmp_path / "b.tsv") == [("甲", "乙", 1), ("丙", "丁", 0)]


@pytest.mark.parametrize(
    "names",
    [
        ("sentence_0", "sentence_1"),
        ("text2", "text3"),
        ("问题0", "问题1"),
        ("title", "content"),
        ("title", "question"),
        ("query", "title"),
        ("sentence_b", "sentence_c"),
    ],
)
def test_numbered_and_unknown_columns_keep_their_order(tmp_path, names):
    frame((*names, "label")).to_csv(tmp_path / "a.csv", index=False)
    assert read(tmp_path / "a.csv") == ROWS
    frame((*names, "label")).to_json(tmp_path / "a.jsonl", **LINES)
    assert read(tmp_path / "a.jsonl") == ROWS


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "frame"])
@pytest.mark.parametrize("names", [["sentence_0", "sentence_1", "sentence_2"], ["文本1", "文本2", "文本3"]])
def test_of_three_numbered_texts_none_is_dropped(tmp_path, names, ending):
    path, made = tmp_path / f"a.{ending}", frame(names, [(a, b, f"{a}{b}") for a, b, _ in FLAT])
    if ending == "frame":
        with pytest.raises(InputError, match=f"the texts could be {', '.join(names)}"):
            GivenPairs("train_dataset", made, None, rules=RowRules(of_encoders=True)).read()
        return
    made.to_json(path, **LINES) if ending == "jsonl" else made.to_csv(
        path, index=False, sep="\t" if ending == "tsv" else ","
    )
    fails(path, f"the texts could be {', '.join(names)}", "anchor, positive, negative")


def test_the_label_before_the_texts_is_asked_for(tmp_path):
    rows = [(f"怎么开户{n}", f"如何开户{n}", n % 2) for n in range(8)]
    for begin in (0, 1):  # of the labels
        text(tmp_path / "a.csv", tabs([(y, a, b) for a, b, y in rows[begin:]], mark=","))
        fails(tmp_path / "a.csv", "columns 2 and 3 hold the texts", "--text_a 2 --text_b 3 --label 1")
        assert read(tmp_path / "a.csv", text_a="2", text_b="3", label="1") == rows[begin:]


def test_a_first_row_that_may_be_a_header_is_said(tmp_path, caplog, typed):
    path = tmp_path / "a.tsv"
    text(path, "客户问法\t知识库问法\n" + tabs([row[:2] for row in FLAT]))
    with caplog.at_level(logging.INFO):
        assert len(replace(source_of(path), labels=None).read()) == 5
    said = "no header: the first row is read as a pair (客户问法, 知识库问法); if it is a header: "
    assert said + f"{typed} --label old" in caplog.text
    assert len(replace(source_of(path, text_a="客户问法", text_b="知识库问法"), labels=None).read()) == 4


# Bad input


def fails(path, *reasons, labels=None, **columns):
    source = source_of(path, **columns)
    with pytest.raises(InputError) as caught:
        replace(source, labels=labels or labels_for(source, "")).read()
    message = caught.value.message
    assert [reason for reason in reasons if reason not in message] == [], message
    assert "\n" not in message


@pytest.fixture
def typed(monkeypatch):
    """The command that is running is ``ernie-pair train --train_file=x --label old``."""
    words = ["/usr/bin/ernie-pair", "train", "--train_file=x", "--label", "old", "--label_map", "0=a,1=b"]
    monkeypatch.setattr(errors.sys, "argv", words)
    return "ernie-pair train --train_file=x"


def test_two_columns_that_may_be_the_label_are_told(tmp_path, typed):
    path = tmp_path / "a.csv"
    frame(("甲", "乙", "丙"), 丁=[1, 0, 1, 1]).to_csv(path, index=False)
    command = f"{typed} --label_map 0=a,1=b --text_a '甲' --text_b '乙' --label '丙'"
    fails(path, "丙 and 丁 could be the label", f"name its columns: {command}")
    assert read(path, text_a="甲", text_b="乙", label="丙") == ROWS
    frame(score=[1, 0, 1, 1]).to_csv(path, index=False)
    again = f"{typed} --label_map 0=a,1=b --label"
    fails(path, "both columns label, score may be label", f"{again} label or {again} score")
    frame(("text_a", "text_b", "score"), label=[1, 0, 1, 1]).to_csv(path, index=False)
    fails(path, f"{again} label or {again} score")
    path.write_text("text_a,text_b,label,label\n左,右,1,0\n")
    fails(path, "several columns are called label; rename all but")


def test_a_sheet_with_merged_or_formula_cells_is_told(tmp_path, typed):
    def change(made):
        made.merge_cells("A2:A3")
        made["C2"], made["C5"] = "=1+0", "=IF(A5=B5,1,0)"

    path = tmp_path / "a.xlsx"
    sheet(path, [["text_a", "text_b", "label"], *map(list, ROWS)], change=change)
    merged, formulas = "1 ranges of merged cells (A2:A3)", "2 cells with a formula (C2, C5)"
    fails(
        path, f"a.xlsx, sheet Sheet: {merged} and {formulas}", "unmerge and fill", "save the sheet as a.csv"
    )


def test_nested_columns_of_parquet_are_told(tmp_path, typed):
    rows = [{"pair": {"a": left, "b": right}, "tags": ["x"], "y": label} for left, right, label in ROWS]
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.Table.from_pylist(rows), path)
    fails(path, "pair.a, pair.b, tags, y", "tags hold lists", "--text_a pair.a --text_b pair.b --label y")
    assert read(path, text_a="pair.a", text_b="pair.b", label="y") == ROWS


def test_files_whose_columns_differ_are_told_at_once(tmp_path, capfd):
    config = train_config(tmp_path)
    frame(("甲", "乙", "丙"), toy_rows(40, 0)).to_csv(tmp_path / "train.csv", index=False)
    frame(("乙", "甲", "丙"), toy_rows(40, 1)).to_csv(tmp_path / "dev.csv", index=False)
    config = replace(config, train_file=str(tmp_path / "train.csv"), dev_file=str(tmp_path / "dev.csv"))
    assert exit_code_of(lambda: train_pair(config)) == 2
    assert "dev.csv:1: its columns 乙, 甲, 丙 are not those of " in capfd.readouterr().err
    named = replace(config, text_a="甲", text_b="乙", label="x")
    assert exit_code_of(lambda: train_pair(named)) == 2
    told = capfd.readouterr().err
    assert told.count("no column 'x'") == 2 and told.count("error: ") == 1
    assert not (tmp_path / "out").exists()
    assert exit_code_of(lambda: train_pair(replace(named, label="丙", max_steps=1))) == 0


# Commands


def people(path, rows, words):
    """A default df.to_csv() of a spreadsheet's columns, with words for labels."""
    DataFrame([(a, b, words[label]) for a, b, label in rows], columns=USERS).to_csv(path)
    return str(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run that began with such files, and what its command said."""
    folder = tmp_path_factory.mktemp("people")
    model = write_model(folder / "model")
    train, dev = (
        people(folder / f"{name}.csv", toy_rows(n, n), YES) for name, n in (("train", 90), ("dev", 41))
    )
    flags = f"--model_name_or_path {model} --model_type ernie --from_scratch true --train_file {train} "
    flags += f"--dev_file {dev} --output_dir {folder / 'out'} --max_steps 4 --batch_size 16 --device cpu"
    return folder, command("train", *flags.split())


def best_of(folder):
    return str(next((folder / "out").glob("best*/**/config.json")).parent)


def test_a_run_begins_with_the_files_alone_and_resumes(trained):
    folder, done = trained
    assert done.code == 0, done.told
    assert "train.csv: its labels are words: 否 = 0, 是 = 1" in done.told
    assert json.loads((Path(best_of(folder)) / "config.json").read_text())["id2label"] == {
        "0": "否",
        "1": "是",
    }
    again = replace(
        train_config(folder), train_file=str(folder / "train.csv"), dev_file=str(folder / "dev.csv")
    )
    assert exit_code_of(lambda: train_pair(replace(again, max_steps=4, batch_size=16))) == 0
    other = replace(again, max_steps=4, batch_size=16, label_map="0=是,1=否")
    with pytest.raises(InputError, match="a checkpoint of another run: config.json"):
        train_pair(other)


def test_a_model_reads_the_words_that_it_was_trained_on(trained, tmp_path, capfd):
    folder, _ = trained
    path = tmp_path / "test.xlsx"
    sheet(path, [["编号", *USERS], *([n, a, b, YES[c]] for n, (a, b, c) in enumerate(toy_rows(9, 5)))])
    evaluate_pair(
        EvaluateConfig(best_of(folder), str(path), str(tmp_path / "e.json"), device="cpu", bootstrap=0)
    )
    assert json.loads((tmp_path / "e.json").read_text())["rows"] == 9
    predict_pair(PredictConfig(best_of(folder), str(path), str(tmp_path / "p.tsv"), device="cpu"))
    lines = (tmp_path / "p.tsv").read_text().splitlines()
    assert len(lines) == 10 and {line.split("\t")[-1] for line in lines[1:]} <= {"是", "否"}
    other = people(tmp_path / "other.csv", toy_rows(9, 5), {0: "乙", 1: "甲"})
    asked = EvaluateConfig(best_of(folder), other, str(tmp_path / "o.json"), device="cpu")
    assert exit_code_of(lambda: evaluate_pair(asked)) == 2
    told = capfd.readouterr().err
    assert "label '乙' is not one of 否, 是, 0, 1" in told and "if 甲 is, label_map='0=乙,1=甲'" in told
    assert not (tmp_path / "o.json").exists()
    assert (
        evaluate_pair(replace(asked, label_map="0=乙,1=甲"))["confusion"]
        == evaluate_pair(EvaluateConfig(best_of(folder), str(path), device="cpu"))["confusion"]
    )
    with pytest.raises(InputError, match="names class 2, and the model has 2, numbered from 0: 否, 是"):
        evaluate_pair(replace(asked, output_file="", label_map="0=乙,1=甲,2=丙"))


def test_the_audit_shows_each_word_and_knows_mixed_ones(tmp_path, capsys):
    words = ["否", "不匹配", "匹配", "是"]
    path = tmp_path / "mixed.tsv"
    text(path, tabs([(f"甲{n}", f"乙{n}", word) for n, word in enumerate(words * 2)]))
    audit_pairs(AuditPairsConfig(str(path)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("; 否 = 0, 不匹配 = 0, 匹配 = 1, 是 = 1")
    assert [line.rpartition(" | ")[2] for line in lines[1:4]] == words[:3]


def test_the_audit_keeps_lines_of_utf_16_and_no_sheets(tmp_path, capsys):
    rows = [("一", "二", 1), ("一", "二", 1), ("三", "四", 0)]
    text(tmp_path / "a.txt", tabs(rows), "utf-16", "\r\n")
    out = tmp_path / "out"
    config = AuditPairsConfig(str(tmp_path / "a.txt"), output_dir=str(out), drop_leaks="exact")
    audit_pairs(config)
    assert (out / "a.txt").read_bytes() == "\ufeff一\t二\t1\r\n三\t四\t0\r\n".encode("utf-16-le")
    sheet(tmp_path / "a.xlsx", rows)
    with pytest.raises(InputError, match="keeps lines as they are, and it has none; save it as .csv"):
        audit_pairs(replace(config, train_file=str(tmp_path / "a.xlsx")))


@pytest.mark.parametrize("kind", ["path", "frame"])
def test_pair_trainer_takes_such_files_and_frames(tmp_path, kind):
    rows = {name: list(toy_rows(count, count)) for name, count in (("train", 40), ("dev", 20))}
    given = {name: DataFrame([(a, b, YES[c]) for a, b, c in rows[name]], columns=USERS) for name in rows}
    if kind == "path":
        for name, each in list(given.items()):
            each.to_parquet(tmp_path / f"{name}.parquet")
            given[name] = tmp_path / f"{name}.parquet"
    config = PairConfig(
        str(tmp_path / "out"), max_steps=2, batch_size=8, from_scratch=True, device="cpu", model_type="ernie"
    )
    trainer = PairTrainer(str(write_model(tmp_path / "model")), config, given["train"], given["dev"])
    trainer.train()
    assert trainer.model.spec.labels.names == ("否", "是")
    assert all(set(CHARACTERS) >= set(row["sentence1"]) for row in trainer.train_rows())
