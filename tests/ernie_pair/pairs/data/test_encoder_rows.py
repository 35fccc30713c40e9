"""Rows for encoders: a text with its matches and hard negatives, in the forms that their libraries read."""

import json
import logging

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from ernie_pair.core.errors import InputError
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.data.in_memory_pairs import GivenPairs
from ernie_pair.pairs.data.pair_records import Columns, RowRules
from ernie_pair.pairs.data.pair_source import PairSource, labels_for

FLAG_EMBEDDING = [
    {"query": "怎么开户", "pos": ["如何开户", "开户怎么办"], "neg": ["几点下班", "如何退款"]},
    {"query": "能分期吗", "pos": ["可以分期付款吗"], "neg": []},
]
WANTED = [
    ("怎么开户", "如何开户", 1),
    ("怎么开户", "开户怎么办", 1),
    ("怎么开户", "几点下班", 0),
    ("怎么开户", "如何退款", 0),
    ("能分期吗", "可以分期付款吗", 1),
]
TUPLES = [
    {"anchor": "怎么开户", "positive": "如何开户", "negative": "几点下班", "negative_2": "如何退款"},
    {"anchor": "能分期吗", "positive": "可以分期付款吗", "negative": "如何开户", "negative_2": ""},
]
OF_TUPLES = [WANTED[0], *WANTED[2:], ("能分期吗", "如何开户", 0)]
RULES = RowRules(of_encoders=True)


def json_lines(rows) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read(given, rules=RULES, labels=Labels.numbered(2)):  # noqa: B008
    if isinstance(given, list) or hasattr(given, "columns"):
        source = GivenPairs("train_dataset", given, None, Columns(), rules)
    else:
        source = PairSource("train_file", str(given), "train", None, Columns(), rules)
    found = labels or labels_for(source, "", 2)
    return type(source)(**{**vars(source), "labels": found}).read()


def rows_of(pairs):
    return list(zip(pairs.left, pairs.right, pairs.known_labels.tolist()))


def write(path, rows):
    names = list(rows[0])
    cells = [[row.get(name) for name in names] for row in rows]
    if path.suffix == ".jsonl":
        path.write_text(json_lines(rows))
    elif path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".xlsx":
        book = openpyxl.Workbook()
        for row in [names, *cells]:
            book.active.append(row)
        book.save(path)
    else:
        mark = {".csv": ",", ".tsv": "\t"}[path.suffix]
        path.write_text("".join(mark.join(row) + "\n" for row in [names, *cells]))
    return path


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_lists_of_matches_and_negatives_are_read_as_pairs(tmp_path, ending):
    pairs = read(write(tmp_path / f"train{ending}", FLAG_EMBEDDING))
    assert rows_of(pairs) == WANTED
    assert np.unique(pairs.numbers).tolist() == [1, 2]


@pytest.mark.parametrize("ending", [".jsonl", ".tsv", ".csv", ".xlsx", ".parquet"])
def test_a_text_per_column_is_read_as_pairs(tmp_path, ending):
    assert sorted(rows_of(read(write(tmp_path / f"train{ending}", TUPLES)))) == sorted(OF_TUPLES)


@pytest.mark.parametrize("labels", [Labels.numbered(2), None], ids=["numbers", "found"])
def test_from_python_the_same_is_read(labels):
    assert rows_of(read(FLAG_EMBEDDING, labels=labels)) == WANTED
    assert sorted(rows_of(read(pd.DataFrame(TUPLES), labels=labels))) == sorted(OF_TUPLES)
    frame = pd.DataFrame({**row, "pos": np.array(row["pos"], object)} for row in FLAG_EMBEDDING)
    assert rows_of(read(frame, labels=labels)) == WANTED
    assert rows_of(read([("问", "答"), ("天", "地")])) == [("问", "答", 1), ("天", "地", 1)]


def test_pairs_without_labels_belong_together_and_that_is_said(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path = tmp_path / "faq.tsv"
    path.write_text("id\tquestion\tanswer\n7\t怎么开户\t如何开户\n8\t能分期吗\t可以分期\n")
    assert rows_of(read(path)) == [("怎么开户", "如何开户", 1), ("能分期吗", "可以分期", 1)]
    (tmp_path / "plain.tsv").write_text("怎么开户\t如何开户\n")
    assert rows_of(read(tmp_path / "plain.tsv")) == [("怎么开户", "如何开户", 1)]
    told = "no column is a label: the two texts of each row belong together"
    assert [line for line in caplog.messages if str(path) in line] == [
        f"{path}: reads question and answer as the texts; {told}; not read: id"
    ]
    last = caplog.messages[-1]
    assert "plain.tsv: no header: the first row is read as a pair (怎么开户, 如何开户); if it is" in last
    assert last.endswith(f"--text_a '怎么开户' --text_b '如何开户'; {told}")


@pytest.mark.parametrize("words", [("0", "1"), ("否", "是")])
def test_negatives_beside_a_label_are_used(tmp_path, words):
    path = tmp_path / "train.tsv"
    text = f"anchor\tpositive\tnegative\tlabel\n问\t答\t甲\t{words[1]}\n天\t地\t乙\t{words[0]}\n"
    path.write_text(text)
    found = [("问", "答", 1), ("问", "甲", 0), ("天", "地", 0), ("天", "乙", 0)]
    assert rows_of(read(path, labels=None)) == found


BAD = [
    ('{"query": "问", "pos": []}', "2: its list of matches is empty"),
    ('{"query": "问", "pos": ["答", 3]}', "2: sentence2 is 3, not a text"),
    ('{"query": "问", "pos": ["答"], "neg": [" "]}', "2: sentence2 is empty"),
    ('{"query": "问", "pos": ["答"], "neg": ["\\ud800"]}', r"2: a text has half of a character \(.ud800\)"),
    ('{"query": "问", "neg": ["甲"]}', "2: pos is missing"),
]


@pytest.mark.parametrize("line, fault", BAD, ids=[line for line, _ in BAD])
def test_a_bad_row_is_named_or_left_out(tmp_path, line, fault):
    path = tmp_path / "train.jsonl"
    path.write_text(f"{json_lines(FLAG_EMBEDDING[:1])}{line}\n")
    with pytest.raises(InputError, match=fault):
        read(path)
    pairs = read(path, RowRules(skips=True, of_encoders=True))
    assert len(pairs) == 4 and [bad.number for bad in pairs.bad] == [2]


def test_rows_with_and_without_labels_are_not_mixed(tmp_path):
    rows = [{"anchor": "问", "positive": "答"}] * 200 + [{"anchor": "天", "positive": "地", "label": 0}]
    with pytest.raises(InputError, match=":201: label is a label, and the first rows have none; label all"):
        read(write(tmp_path / "train.jsonl", rows))
    with pytest.raises(InputError, match=r"\[0\]: no label; each row needs"):
        read([("问", "答"), ("天", "地", 0)])


def test_a_list_written_as_text_is_refused(tmp_path):
    rows = [{"query": "问", "pos": "答", "neg": "['甲', '乙']"}]
    with pytest.raises(InputError, match=":2: neg is a list written as text; write JSON lines"):
        read(write(tmp_path / "train.tsv", rows))


def test_a_command_of_pairs_names_the_one_that_reads_lists(tmp_path):
    for given in (write(tmp_path / "train.jsonl", FLAG_EMBEDDING), FLAG_EMBEDDING):
        with pytest.raises(InputError, match="pos is a list of texts, .* ernie-pair train-embedding"):
            read(given, RowRules())
