"""CSV as pandas and Excel write it, other encodings, and skipped rows, for every command."""

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pandas import DataFrame
from tiny_pair import toy_rows, train_config, write_pairs
from tiny_ship import ship, write_trained

from data_tools.text import tables
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError
from ernie_pair.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.evaluation.predict_pair import predict_pair
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.pairs.data import row_cache
from ernie_pair.pairs.data.pair_file import read_file
from ernie_pair.pairs.data.pair_records import RowRules
from ernie_pair.pairs.train.train_pair import train_pair

TWO = Labels.numbered(2)
WITHOUT_NUL = sys.version_info < (3, 11)  # its csv neither reads nor writes one
HARD = [
    ("左, 上", '他说"右"', 1),
    ("第一行\n第二行", "右", 0),
    ('"', ",", 1),
    ('""', "\n\n,", 0),
    ("左\t右", "' 右", 1),
    ("左\u2028上\x85", "右" if WITHOUT_NUL else "右\x00", 0),
    ("plain", 'a"b', 1),
]


def rows_in(path, labels=TWO, **rules):
    pairs = read_file(path, labels, rules=RowRules(**rules))
    classes = [None] * len(pairs) if labels is None else pairs.labels.tolist()
    return list(zip(pairs.left, pairs.right, classes))


@pytest.mark.skipif(not WITHOUT_NUL, reason="this Python reads it")
def test_a_nul_is_named_where_python_cannot_read_it(tmp_path):
    (tmp_path / "nul.csv").write_text("text_a,text_b,label\na,b\x00c,1\n")
    with pytest.raises(InputError, match="nul.csv:2: a NUL character, which Python reads in a CSV from 3.11"):
        rows_in(tmp_path / "nul.csv")


def excel(rows, end="\r\n", **settings):
    text = io.StringIO()
    csv.writer(text, lineterminator=end, **settings).writerows(rows)
    return text.getvalue()


WRITERS = {
    "pandas": lambda path, rows: DataFrame(rows, columns=["text_a", "text_b", "label"]).to_csv(
        path, index=False
    ),
    "pandas without a header": lambda path, rows: DataFrame(rows).to_csv(path, index=False, header=False),
    "pandas with every cell in quotes": lambda path, rows: DataFrame(
        rows, columns=["query", "title", "label"]
    ).to_csv(path, index=False, quoting=csv.QUOTE_ALL),
    "pandas with floats and a mark": lambda path, rows: DataFrame(rows, columns=["s1", "s2", "label"])
    .astype({"label": float})
    .to_csv(path, index=False, encoding="utf-8-sig", lineterminator="\r\n"),
    "Excel": lambda path, rows: path.write_bytes(b"\xef\xbb\xbf" + excel(rows).encode()),
    "packed": lambda path, rows: DataFrame(rows).to_csv(path, index=False, header=False),
}


@pytest.mark.parametrize("write", WRITERS)
def test_csv_from_pandas_and_excel_is_read_correctly(tmp_path, write):
    path = tmp_path / ("a.csv.gz" if write == "packed" else "a.CSV")
    WRITERS[write](path, HARD)
    assert rows_in(path) == HARD
    assert rows_in(path, labels=None) == [(*row[:2], None) for row in HARD]


def test_quoted_carriage_returns_stay_and_crlf_becomes_lf(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes('"左\r上\r\n下",右,1\r\n'.encode())
    assert rows_in(path) == [("左\r上\n下", "右", 1)]


def test_random_csv_rows_survive_a_round_trip(tmp_path):
    rng, path = np.random.default_rng(7), tmp_path / "a.csv"
    for _ in range(200):
        texts = ["".join(rng.choice(list('左右ab",\n \t'), rng.integers(1, 12))) + "x" for _ in range(6)]
        rows = list(zip(texts[:3], texts[3:], [0, 1, 1]))
        path.write_bytes(excel(rows, end=str(rng.choice(["\n", "\r\n"]))).encode())
        assert rows_in(path) == rows


GOOD = '"左\n上",右,1\n'
BAD_CSV = {
    "empty text": ("左,,1\n", "sentence2 is empty"),
    "too few columns": ("左,右\n", r"2 columns instead of 3; write one comma .* with commas in quotes"),
    "too many columns": ("左,上,右,1\n", r"4 columns instead of 3"),
    "text behind a quote": ('"左"上,右,1\n', "text behind the closing quote of a cell; double the quotes"),
    "CR": ("左\r上,右,1\n", "CR outside of quotes; save the file with LF"),
    "a label": ("左,右,甲\n", "label '甲' is not one of 0, 1"),
    "a blank line": ("\n", "the line is blank; remove it"),
    "a line of commas": (",,\n", "sentence1 is empty; fill it in"),
    "a byte": (b"\xff,\xe5\x8f\xb3,1\n", "not UTF-8"),
}


@pytest.mark.parametrize("bad, reason", BAD_CSV.values(), ids=BAD_CSV)
def test_a_bad_row_is_reported_by_its_first_line_or_skipped(tmp_path, bad, reason):
    path = tmp_path / "a.csv"
    bad = bad if isinstance(bad, bytes) else bad.encode()
    path.write_bytes(GOOD.encode() * 2 + bad + GOOD.encode())
    with pytest.raises(InputError, match=rf"a\.csv:5: {reason}"):
        rows_in(path)
    pairs = read_file(path, TWO, rules=RowRules(skips=True))
    assert pairs.left == ["左\n上"] * 3 and pairs.numbers.tolist() == [1, 3, 6]
    assert [(row.number, row.place) for row in pairs.bad] == [(5, 2)]
    assert [pairs.where(row) for row in range(3)] == [f"{path}:{line}" for line in (1, 3, 6)]


@pytest.mark.parametrize("skips", [False, True])
def test_an_unclosed_quote_does_not_swallow_rows(tmp_path, skips, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text(GOOD + '"左,右,1\n' + GOOD.replace('"', "") * 50, encoding="utf-8")
    with pytest.raises(
        InputError, match=r"a\.csv:3: a cell that begins with a quote .* has no quote at its end"
    ):
        rows_in(path, skips=skips)


def test_a_cell_of_several_megabytes_is_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f'"{"左,"* 1_000_000}",右,1\n', encoding="utf-8")
    assert len(rows_in(path)[0][0]) == 2_000_000


@pytest.mark.parametrize("encoding", ["gb18030", "gbk", "big5", "utf-8", "utf-8-sig"])
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl"])
def test_other_encodings_are_read(tmp_path, encoding, ending):
    rows = [("今天下雨", "明天,下雨", 1), ("怎麼開戶" if encoding == "big5" else "怎么开户", "如何", 0)]
    path = tmp_path / f"a{ending}"
    if ending == ".csv":
        content = excel(rows)
    elif ending == ".tsv":
        content = "".join(f"{a}\t{b}\t{label}\r\n" for a, b, label in rows)
    else:
        keys = ("sentence1", "sentence2", "label")
        content = "".join(json.dumps(dict(zip(keys, row)), ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(content.encode(encoding))
    assert rows_in(path, encoding=encoding.replace("-sig", "")) == rows


def test_a_wrong_encoding_error_names_the_line_and_the_flag(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes("左\t右\t1\n".encode("gb18030") + b"\xff\xff\t\xff\t1\n")
    with pytest.raises(InputError, match=r"a\.tsv:2: not gb18030 \(byte 1 .* 0xff\); give the encoding"):
        rows_in(path, encoding="gb18030")
    with pytest.raises(InputError, match=r"a\.tsv:1: not UTF-8 .* looks like GB18030, and lines before it"):
        rows_in(path)
    path.write_bytes("怎么开户\t如何开户\t1\n".encode())
    with pytest.raises(InputError, match=r"not gb18030 .*; it is UTF-8, .* by iconv -f gb18030 -t UTF-8"):
        rows_in(path, encoding="gb18030")
    path.write_bytes(b"\xef\xbb\xbf" + "左\t右\t1\n".encode())
    with pytest.raises(InputError, match="byte-order mark of UTF-8, not gb18030; leave encoding out"):
        rows_in(path, encoding="gb18030")


def test_an_overlong_line_is_a_bad_row(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LONGEST_LINE", 1 << 20)
    path = tmp_path / "a.tsv"
    with open(path, "wb") as file:
        file.write("左\t右\t1\n".encode())
        file.truncate(1 << 30)  # a sparse file, which takes no disk space
    with open(path, "ab") as file:
        file.write("\n上\t下\t0\n".encode())
    with pytest.raises(InputError, match=r"a\.tsv:2: the line is above 1048576 bytes; cut it"):
        read_file(path, TWO)
    assert rows_in(path, skips=True) == [("左", "右", 1), ("上", "下", 0)]


def test_a_file_without_good_rows_is_refused_with_a_reason(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("左\t右\t甲\n上\t下\t乙\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"none of its rows is a pair; the first: .*a\.tsv:1: label '甲'"):
        rows_in(path, skips=True)


# Commands


def csv_of(path, rows, encoding="utf-8", bad=()):
    """``bad``: {place: line}."""
    lines = [excel([row]).replace("\r\n", "\n") for row in rows]
    for place, line in sorted(dict(bad).items()):
        lines.insert(place, line + "\n")
    path.write_bytes("".join(lines).encode(encoding))
    return str(path)


def events(folder, split="train"):
    read = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [event["loss"] for event in read if event["split"] == split]


TRAIN, DEV = list(toy_rows(90, seed=0)), list(toy_rows(41, seed=1))
BAD = {0: "左,右,7", 5: '"左"上,右,1', 60: "", 92: "左"}


@pytest.mark.parametrize("streaming", [False, True])
def test_training_on_encoded_csv_equals_training_on_tsv(tmp_path, capfd, streaming):
    config = train_config(tmp_path, max_steps=12, shuffle_buffer=32, streaming=streaming)
    train_pair(config)
    other = replace(
        config,
        train_file=csv_of(tmp_path / "train.csv", TRAIN, "gb18030", BAD),
        dev_file=csv_of(tmp_path / "dev.csv", DEV, "gb18030", {3: ",,"}),
        output_dir=str(tmp_path / "other"),
        encoding="gb18030",
    )
    assert exit_code_of(lambda: train_pair(other)) == 2  # --on_bad_row stop
    assert "train.csv:1: label '7'" in capfd.readouterr().err and not (tmp_path / "other").exists()
    other = replace(other, on_bad_row="skip")
    train_pair(other)
    assert events(other.output_dir) == events(config.output_dir)
    assert events(other.output_dir, "valid") == events(config.output_dir, "valid")
    told = capfd.readouterr().err
    for split, lines in (("train", [1, 6, 61, 93]), ("dev", [4])):
        path = tmp_path / "other" / f"{split}.rejected.jsonl"
        notes = [json.loads(line) for line in path.read_text().splitlines()]
        assert [note["line"] for note in notes] == lines
        assert {note["file"] for note in notes} == {str(tmp_path / f"{split}.csv")}
        assert str(path) in told
    assert notes[0]["reason"].startswith("sentence1 is empty")
    assert ("train.csv: 4 rows are" if streaming else "train.csv: 4 of 94 rows are") in told
    assert not list(tmp_path.glob("*.rejected.jsonl"))  # nothing is written next to the input


def test_too_many_bad_rows_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(row_cache, "MOST_BAD", 3)
    config = train_config(tmp_path, max_steps=2, on_bad_row="skip")
    config = replace(config, train_file=csv_of(tmp_path / "train.csv", TRAIN, bad=BAD))
    with pytest.raises(InputError, match="4 rows are not pairs, more than 3; is it the right"):
        train_pair(config)


def test_rows_skipped_by_a_cache_are_reported_at_every_start(tmp_path, capfd):
    config = train_config(tmp_path, max_steps=2, on_bad_row="skip", cache_dir=str(tmp_path / "cache"))
    config = replace(config, train_file=csv_of(tmp_path / "train.csv", TRAIN, bad=BAD))
    train_pair(config)
    first = (tmp_path / "out/train.rejected.jsonl").read_bytes()
    capfd.readouterr()
    train_pair(replace(config, output_dir=str(tmp_path / "again")))
    assert "4 of 94 rows are not pairs" in capfd.readouterr().err
    assert (tmp_path / "again/train.rejected.jsonl").read_bytes() == first


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of an untrained model."""
    folder = tmp_path_factory.mktemp("model")
    return str(write_trained(folder / "trained"))


def by_predict(model, folder):
    def predict(path, output, **changes):
        flags = {"scores": True, "device": "cpu", "columns": "answers", **changes}
        predict_pair(PredictConfig(model, path, str(output), **flags))

    return predict


def by_run(model, folder):
    exported = ship(Path(model), folder / "ship")

    def run(path, output, **changes):
        flags = {"scores": True, "threads": 1, "columns": "answers", **changes}
        predict_pair(PredictConfig(str(exported), path, str(output), **flags))

    return run


@pytest.mark.parametrize("ask", [by_predict, by_run])
def test_every_row_gets_a_prediction_line_even_a_bad_one(tmp_path, model, ask, capfd):
    ask = ask(model, tmp_path)
    ask(str(write_pairs(tmp_path / "good.tsv", 41, seed=1, labels=False)), tmp_path / "good-answers.tsv")
    good = [line.split("\t") for line in (tmp_path / "good-answers.tsv").read_text().splitlines()]
    bad = {0: "左", 1: "", 20: '"左"上,右', 43: "左,右,上", 45: "左,"}
    path = csv_of(tmp_path / "a.csv", [row[:2] for row in DEV], "gb18030", bad)
    with pytest.raises(InputError, match=r"a\.csv:1: 1 column"):
        ask(path, tmp_path / "a-answers.tsv", encoding="gb18030")
    path = csv_of(
        tmp_path / "a.csv",
        [("text_a", "text_b"), *(row[:2] for row in DEV)],
        "gb18030",
        {place + 1: line for place, line in bad.items()},
    )
    with pytest.raises(InputError, match=r"a\.csv:2: 1 column"):
        ask(path, tmp_path / "a-answers.tsv", encoding="gb18030")
    assert not (tmp_path / "a-answers.tsv").exists()
    ask(path, tmp_path / "a-answers.tsv", encoding="gb18030", on_bad_row="skip")
    header, *lines = [line.split("\t") for line in (tmp_path / "a-answers.tsv").read_text().splitlines()]
    assert header == good[0] and [line[0] for line in lines] == list(map(str, range(46)))
    empty = [int(line[0]) for line in lines if line[1:] == [""] * (len(header) - 1)]
    assert empty == sorted(bad)
    assert [line[1:] for line in lines if int(line[0]) not in bad] == [line[1:] for line in good[1:]]
    notes = [
        json.loads(line) for line in (tmp_path / "a-answers.tsv.rejected.jsonl").read_text().splitlines()
    ]
    assert [note["line"] for note in notes] == [place + 2 for place in bad]
    assert "5 of 46 rows are not pairs and are left out" in capfd.readouterr().err


def test_evaluation_skips_bad_rows_and_reports_them(tmp_path, model, capfd):
    good = csv_of(tmp_path / "good.csv", DEV)
    bad = csv_of(tmp_path / "bad.csv", DEV, "gb18030", {2: "左,右,甲"})
    settings = {"device": "cpu", "bootstrap": 0}
    evaluate_pair(EvaluateConfig(model, good, str(tmp_path / "good.json"), **settings))
    settings.update(encoding="gb18030", on_bad_row="skip", report=str(tmp_path / "report"))
    evaluate_pair(EvaluateConfig(model, bad, str(tmp_path / "bad.json"), **settings))
    ours, theirs = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("bad", "good"))
    assert ours["rows"] == 41 and ours["loss"] == theirs["loss"]
    assert "1 of 42 rows are not pairs" in capfd.readouterr().err
    assert len((tmp_path / "bad.json.rejected.jsonl").read_text().splitlines()) == 1
    lines = (tmp_path / "report/errors.tsv").read_text().splitlines()[1:]
    content = Path(bad).read_bytes().decode("gb18030").splitlines()
    assert all(row.split("\t")[-2] in content[int(row.split("\t")[0]) - 1] for row in lines) and lines


def test_rejected_rows_are_separate_for_each_flag_of_evaluate(tmp_path, model):
    """--calibrate_on and --tune_on may name files that are called alike."""
    for name, bad in (("a", {2: "左,右,甲"}), ("b", {5: "左", 7: "右"})):
        (tmp_path / name).mkdir()
        csv_of(tmp_path / name / "dev.csv", DEV, bad=bad)
    files = {"calibrate_on": str(tmp_path / "a/dev.csv"), "tune_on": str(tmp_path / "b/dev.csv")}
    flags = {"device": "cpu", "bootstrap": 0, "on_bad_row": "skip", **files}
    evaluate_pair(EvaluateConfig(model, csv_of(tmp_path / "x.csv", DEV), str(tmp_path / "x.json"), **flags))
    for flag, lines in (("calibrate_on", [3]), ("tune_on", [6, 8])):
        notes = (tmp_path / f"x.json.{flag}.rejected.jsonl").read_text().splitlines()
        assert [json.loads(note)["line"] for note in notes] == lines
    assert len(list(tmp_path.glob("*.rejected.jsonl"))) == 2
