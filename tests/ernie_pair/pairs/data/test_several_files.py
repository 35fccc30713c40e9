"""Several files and folders of pairs as one: in their order, with errors and records of each."""

import json
from dataclasses import replace

import numpy as np
import pytest
from table_files import NAMES, ROWS, YES, book, csv_text, frame, put, tabbed
from tiny_pair import toy_rows, train_config

from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.results import files_of, paths_named
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.audit.audit_pairs import AuditPairsConfig, audit_pairs
from ernie_pair.pairs.data.in_memory_pairs import open_source
from ernie_pair.pairs.data.pair_records import RowRules
from ernie_pair.pairs.data.pair_source import PairSource, check_columns, labels_for
from ernie_pair.pairs.data.rejected import log_rejected
from ernie_pair.pairs.train.train_pair import train_pair


def source_of(name, labels=Labels.numbered(2), **rules):  # noqa: B008
    return PairSource("train_file", str(name), "train", labels, rules=RowRules(most_classes=20, **rules))


@pytest.fixture
def three(tmp_path):
    """A workbook, a .csv with words for labels and a comma in its name, and a folder with JSON lines."""
    words = frame(("文本1", "文本2", "标签"), words=YES)
    put(
        tmp_path / "a.xlsx",
        book([["标注表"], ["问题1", "问题2", "标签"], *((a, b, YES[y]) for a, b, y in ROWS)]),
    )
    put(tmp_path / "b,c.csv", words.to_csv(index=False))
    (tmp_path / "folder").mkdir()
    put(tmp_path / "folder" / "d.jsonl", frame(words=YES).to_json(orient="records", lines=True))
    put(tmp_path / "folder" / "readme.txt", "no pairs")
    return f"{tmp_path}/a.xlsx,{tmp_path}/b,c.csv,{tmp_path}/folder"


def test_files_of_any_form_are_one(three, tmp_path, capsys):
    source = source_of(three)
    check_columns([source])
    pairs = replace(source, labels=labels_for(source, "")).read()
    assert list(zip(pairs.left, pairs.right, pairs.labels)) == ROWS * 3
    assert [pairs.where(row).removeprefix(f"{tmp_path}/") for row in (0, 4, 8, 11)] == [
        "a.xlsx:3", "b,c.csv:2", "folder/d.jsonl:1", "folder/d.jsonl:4"]  # fmt: skip
    kept = pairs.rows(np.array([1, 9]))
    assert kept.where(1) == f"{tmp_path}/folder/d.jsonl:2"
    assert "1 of other endings, or too deep (readme.txt)" in capsys.readouterr().err
    named = open_source(train_config(tmp_path), "train", three.replace(",c.csv", ";").split(","), None)
    assert named.name == three.replace(",c.csv", ";") and len(source.read()) == 12


def test_the_record_covers_each_file(three, tmp_path):
    before = source_of(three).sha256(), source_of(three).sha256_of_ends()
    assert [path.name for path in files_of(three)] == ["a.xlsx", "b,c.csv", "d.jsonl", "readme.txt"]
    assert paths_named("~/x,y") == [*paths_named("~/x"), "y"] != ["~/x", "y"]
    with (tmp_path / "folder" / "d.jsonl").open("a") as file:
        file.write("\n")
    after = source_of(three).sha256(), source_of(three).sha256_of_ends()
    assert before[0] != after[0] and before[1] != after[1]


def test_a_bad_row_is_named_with_its_file(tmp_path):
    good, bad = (
        put(tmp_path / "a.tsv", tabbed([("左", "右", 1)])),
        put(tmp_path / "b.tsv", "左\t右\t1\n左\t\t1\n\t右\t1\n"),
    )
    with pytest.raises(InputError, match="b.tsv:2: sentence2 is empty; .*1 more row so, in line 3"):
        source_of(f"{good},{bad}").read()
    with pytest.raises(
        InputError, match=f"b.tsv:2: .*2 more rows so, in line 3, {good.with_name('c.tsv')}:1"
    ):
        source_of(f"{good},{bad},{put(tmp_path / 'c.tsv', tabbed([('左', '', 1)]))}").read()
    pairs = source_of(f"{good},{bad}", skips=True).read()
    log_rejected(pairs.path, pairs.bad, len(pairs), tmp_path / "out.rejected.jsonl")
    notes = [json.loads(line) for line in (tmp_path / "out.rejected.jsonl").open(encoding="utf-8")]
    assert [(note["file"], note["line"]) for note in notes] == [(str(bad), 2), (str(bad), 3)]


@pytest.mark.parametrize(
    "second, told",
    [
        (
            csv_text(words=YES),
            "b.csv has the labels 0=否,1=是, and .*a.csv has others; .*label_map='0=否,1=是,0=0,1=1'",
        ),
        (
            csv_text(NAMES[:2], [row[:2] for row in ROWS]),
            "b.csv has no column of labels, and .*a.csv has one",
        ),
        (
            csv_text(("甲", "乙", "丙")),
            "b.csv:1: its columns 甲, 乙, 丙 are not those of .*a.csv, 左, 右, 同",
        ),
        (None, "b.csv: no such file or folder; fix train_file"),
    ],
)
def test_files_that_disagree_are_named_together(tmp_path, second, told):
    names = ("左", "右", "同") if second and "甲" in second else NAMES
    first = put(tmp_path / "a.csv", csv_text(names))
    if second:
        put(tmp_path / "b.csv", second)
    source = source_of(f"{first},{tmp_path}/b.csv")
    with pytest.raises(InputError, match=told):
        check_columns([source])
        labels_for(source, "")
    if "0=0" in told:  # the answer works
        named = replace(source, labels=labels_for(source, "0=否,1=是,0=0,1=1")).read()
        assert named.known_labels.tolist() == [label for *_, label in ROWS] * 2


def test_commands_train_on_several_and_clean_only_one(tmp_path, capfd):
    config = train_config(tmp_path)
    rows = list(toy_rows(60, 0))
    first, second = (put(tmp_path / f"{n}.csv", csv_text(rows=rows[n * 30 : n * 30 + 30])) for n in (0, 1))
    config = replace(config, train_file=f"{first},{second}", max_steps=1)
    assert exit_code_of(lambda: train_pair(config)) == 0
    assert f"{first},{second}: 60 pairs" in capfd.readouterr().err
    audit = AuditPairsConfig(
        train_file=config.train_file, output_dir=str(tmp_path / "audit"), drop_leaks="exact"
    )
    with pytest.raises(InputError, match="drop_leaks cleans one file, and .* is several files"):
        audit_pairs(audit)
    assert audit_pairs(replace(audit, drop_leaks="none"))["files"]["train"]["rows"] == 60
