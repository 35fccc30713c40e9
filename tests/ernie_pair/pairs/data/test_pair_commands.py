"""Whole commands on files of pairs: rows that are left out or end them, and files as people have them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from asked import evaluated, json_lines_in, predicted
from children import command
from pandas import DataFrame
from run_files import events
from table_files import YES, book, csv_text, put, tabbed
from tiny_pair import DEV, TRAIN, VOCAB, toy_rows, train_config, write_model, write_pairs
from tiny_ship import ship, write_trained

from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError
from ernie_pair.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.pairs.audit.audit_pairs import AuditPairsConfig, audit_pairs
from ernie_pair.pairs.config.ask_config import EvaluateConfig
from ernie_pair.pairs.data.encoded_pairs import encode_pairs
from ernie_pair.pairs.data.pair_source import read_pairs
from ernie_pair.pairs.train.train_pair import train_pair

USERS = ("用户问题", "标准问题", "是否匹配")


def written(path, content):
    return str(put(path, content))


@pytest.fixture
def config(tmp_path):
    return train_config(tmp_path, max_steps=1, batch_size=4)


def csv_of(path, rows, encoding="utf-8", bad=()):
    """``bad``: {place: line}."""
    written_as = [csv_text(rows=[row], names=range(len(row)), header=False) for row in rows]
    for place, line in sorted(dict(bad).items()):
        written_as.insert(place, line + "\n")
    return written(path, "".join(written_as).encode(encoding))


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
    told = capfd.readouterr().err
    for split, lines in (("train", [1, 6, 61, 93]), ("dev", [4])):
        path = tmp_path / "other" / f"{split}.rejected.jsonl"
        notes = json_lines_in(path)
        assert [note["line"] for note in notes] == lines
        assert {note["file"] for note in notes} == {str(tmp_path / f"{split}.csv")}
        assert str(path) in told
    assert notes[0]["reason"].startswith("sentence1 is empty")
    assert ("train.csv: 4 rows are" if streaming else "train.csv: 4 of 94 rows are") in told
    assert not list(tmp_path.glob("*.rejected.jsonl"))  # nothing is written next to the input


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
    folder = tmp_path_factory.mktemp("model")
    return str(write_trained(folder / "trained"))


@pytest.mark.parametrize("is_exported", [False, True])
def test_every_row_gets_a_prediction_line_even_a_bad_one(tmp_path, model, is_exported, capfd):
    folder, out = ship(Path(model), tmp_path / "ship") if is_exported else model, tmp_path / "a-answers.tsv"
    good_pairs = write_pairs(tmp_path / "good.tsv", 41, seed=1, labels=False)
    good = predicted(folder, good_pairs, tmp_path / "good-answers.tsv", scores=True)
    bad = {0: "左", 1: "", 20: '"左"上,右', 43: "左,右,上", 45: "左,"}
    path = csv_of(tmp_path / "a.csv", [row[:2] for row in DEV], "gb18030", bad)
    with pytest.raises(InputError, match=r"a\.csv:1: 1 column"):
        predicted(folder, path, out, encoding="gb18030")
    path = csv_of(
        tmp_path / "a.csv",
        [("text_a", "text_b"), *(row[:2] for row in DEV)],
        "gb18030",
        {place + 1: line for place, line in bad.items()},
    )
    with pytest.raises(InputError, match=r"a\.csv:2: 1 column"):
        predicted(folder, path, out, encoding="gb18030")
    assert not out.exists()
    found = predicted(folder, path, out, encoding="gb18030", on_bad_row="skip", scores=True)
    assert list(found) == list(good) and found.pop("index") == tuple(map(str, range(46)))
    for name, cells in found.items():
        assert [row for row in range(46) if not cells[row]] == sorted(bad)
        assert tuple(filter(None, cells)) == good[name]
    notes = json_lines_in(tmp_path / "a-answers.tsv.rejected.jsonl")
    assert [note["line"] for note in notes] == [place + 2 for place in bad]
    assert "5 of 46 rows are not pairs and are left out" in capfd.readouterr().err


def test_evaluation_skips_bad_rows_and_reports_them(tmp_path, model, capfd):
    good = csv_of(tmp_path / "good.csv", DEV)
    bad = csv_of(tmp_path / "bad.csv", DEV, "gb18030", {2: "左,右,甲"})
    settings = {"encoding": "gb18030", "on_bad_row": "skip", "report": str(tmp_path / "report")}
    theirs, ours = evaluated(model, good), evaluated(model, bad, tmp_path / "bad.json", **settings)
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
    evaluated(model, csv_of(tmp_path / "x.csv", DEV), tmp_path / "x.json", on_bad_row="skip", **files)
    for flag, lines in (("calibrate_on", [3]), ("tune_on", [6, 8])):
        notes = json_lines_in(tmp_path / f"x.json.{flag}.rejected.jsonl")
        assert [note["line"] for note in notes] == lines
    assert len(list(tmp_path.glob("*.rejected.jsonl"))) == 2


def test_a_huge_pair_is_truncated_and_keeps_both_texts(tmp_path, config, capfd):
    long = [f"{'今' * 20_000}\t{'天' * 15_000}\t1", f"今\t{'天' * 35_000}\t0", "今\t天\t1"]
    path = written(tmp_path / "long.tsv", "\n".join(long) + "\n")
    assert exit_code_of(lambda: train_pair(replace(config, train_file=path, max_seq_len=16))) == 0
    assert f"{path}: cut to --max_seq_len: 2 pairs" in capfd.readouterr().err
    tokenizer = WordPiece.from_file(Path(config.model_name_or_path) / "vocab.txt")
    rows = encode_pairs(read_pairs(path, 2), tokenizer, 16)
    tokens = [[VOCAB[index] for index in row if index] for row in rows.batch(np.arange(3)).input_ids]
    kept = [(row.count("今"), row.count("天"), len(row)) for row in tokens]
    assert kept == [(7, 6, 16), (1, 12, 16), (1, 1, 5)]


def test_a_blank_line_is_rejected_before_predicting(tmp_path, model):
    path, out = written(tmp_path / "test.tsv", "今天\t明天\n\n今天\t明天\n"), tmp_path / "predictions.tsv"
    with pytest.raises(InputError, match="test.tsv:2: the line is blank; remove it, so that rows"):
        predicted(model, path, out)
    assert not out.exists()


# From files as people have them


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


def find_best(folder):
    return str(next((folder / "out").glob("best*/**/config.json")).parent)


def test_a_run_begins_with_the_files_alone_and_resumes(trained):
    folder, done = trained
    assert done.code == 0, done.told
    assert "train.csv: its labels are words: 否 = 0, 是 = 1" in done.told
    assert json.loads((Path(find_best(folder)) / "config.json").read_text())["id2label"] == {
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
    put(path, book([["编号", *USERS], *([n, a, b, YES[c]] for n, (a, b, c) in enumerate(toy_rows(9, 5)))]))
    measured = evaluated(find_best(folder), path)
    assert measured["rows"] == 9
    labels = predicted(find_best(folder), path, tmp_path / "p.tsv")["predicted_label"]
    assert len(labels) == 9 and set(labels) <= {"是", "否"}
    other = people(tmp_path / "other.csv", toy_rows(9, 5), {0: "乙", 1: "甲"})
    asked = EvaluateConfig(find_best(folder), other, str(tmp_path / "o.json"), device="cpu")
    assert exit_code_of(lambda: evaluate_pair(asked)) == 2
    told = capfd.readouterr().err
    assert "label '乙' is not one of 否, 是, 0, 1" in told and "if 甲 is, label_map='0=乙,1=甲'" in told
    assert not (tmp_path / "o.json").exists()
    assert evaluate_pair(replace(asked, label_map="0=乙,1=甲"))["confusion"] == measured["confusion"]
    with pytest.raises(InputError, match="names class 2, and the model has 2, numbered from 0: 否, 是"):
        evaluate_pair(replace(asked, output_file="", label_map="0=乙,1=甲,2=丙"))


def test_the_audit_shows_each_word_and_knows_mixed_ones(tmp_path, capsys):
    words = ["否", "不匹配", "匹配", "是"]
    path = tmp_path / "mixed.tsv"
    put(path, tabbed([(f"甲{n}", f"乙{n}", word) for n, word in enumerate(words * 2)]))
    audit_pairs(AuditPairsConfig(str(path)))
    told = capsys.readouterr().out.splitlines()
    assert told[0].endswith("; 否 = 0, 不匹配 = 0, 匹配 = 1, 是 = 1")
    assert [line.rpartition(" | ")[2] for line in told[1:4]] == words[:3]


def test_the_audit_keeps_lines_of_utf_16_and_no_sheets(tmp_path, capsys):
    rows = [("一", "二", 1), ("一", "二", 1), ("三", "四", 0)]
    put(tmp_path / "a.txt", tabbed(rows).replace("\n", "\r\n").encode("utf-16"))
    out = tmp_path / "out"
    config = AuditPairsConfig(str(tmp_path / "a.txt"), output_dir=str(out), drop_leaks="exact")
    audit_pairs(config)
    assert (out / "a.txt").read_bytes() == "\ufeff一\t二\t1\r\n三\t四\t0\r\n".encode("utf-16-le")
    put(tmp_path / "a.xlsx", book(rows))
    with pytest.raises(InputError, match="keeps lines as they are, and it has none; save it as .csv"):
        audit_pairs(replace(config, train_file=str(tmp_path / "a.xlsx")))
