"""Labelled pairs are split by query: no text stands in two files, and no row is lost."""

import json
import shutil

import pytest

from ernie_pair.core.errors import InputError
from ernie_pair.experiments.split_pairs import SplitPairsConfig, split_pairs


def write_rows(path, queries=100, label=lambda number: str(number % 2)):
    rows = [
        f"问题{query}\t候选{query}之{place}\t{label(query + place)}\n"
        for query in range(queries)
        for place in range(3)
    ]
    path.write_text("".join(rows), encoding="utf-8")
    return rows


def read(folder):
    files = sorted(path for path in folder.glob("*.jsonl"))
    return {
        path.stem: [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in files
    }


def test_no_query_is_in_two_files_and_no_row_is_lost(tmp_path):
    rows = write_rows(tmp_path / "all.tsv")
    flags = {"train_file": str(tmp_path / "all.tsv"), "output_dir": str(tmp_path / "out")}
    split_pairs(SplitPairsConfig(**flags, dev_share=0.2, test_share=0.1))
    files = read(tmp_path / "out")
    assert {name: len(found) for name, found in files.items()} == {"train": 210, "dev": 60, "test": 30}
    queries = {name: {row["text_a"] for row in found} for name, found in files.items()}
    assert not queries["train"] & queries["dev"] and not (queries["train"] | queries["dev"]) & queries["test"]
    for row in (row for each in files.values() for row in each):
        name, _, line = row["origin"].rpartition(":")
        assert rows[int(line) - 1] == f"{row['text_a']}\t{row['text_b']}\t{row['label']}\n"
        rows[int(line) - 1] = name
    assert rows == [str(tmp_path / "all.tsv")] * 300  # each row once


def test_a_seed_draws_the_rows_and_a_rerun_has_nothing_to_do(tmp_path, capsys):
    write_rows(tmp_path / "all.tsv")
    for name, seed in (("one", 1), ("one", 1), ("two", 2)):
        split_pairs(
            SplitPairsConfig(train_file=str(tmp_path / "all.tsv"), output_dir=str(tmp_path / name), seed=seed)
        )
    assert capsys.readouterr().err.count("nothing to do") == 1
    one, two = read(tmp_path / "one"), read(tmp_path / "two")
    assert list(one) == ["dev", "train"] and one["dev"] != two["dev"]


def test_rows_of_a_file_that_grows_stay_where_they_are(tmp_path, capsys):
    rows = write_rows(tmp_path / "all.tsv")
    shares = {"train_file": str(tmp_path / "all.tsv"), "dev_share": 0.2, "test_share": 0.1}
    split_pairs(SplitPairsConfig(**shares, output_dir=str(tmp_path / "v1")))
    before = {name: {row["text_a"] for row in found} for name, found in read(tmp_path / "v1").items()}
    ask = {name: sorted(queries)[0] for name, queries in before.items()}
    new = [f"新{query}\t又{query}之{place}\t{query % 2}\n" for query in range(40) for place in range(3)]
    new += [f"{ask['test']}\t测试的新说法\t1\n", f"{ask['train']}\t{ask['test']}\t0\n"]
    (tmp_path / "all.tsv").write_text("".join([*new, *reversed(rows)]), encoding="utf-8")
    kept = {**shares, "keep": str(tmp_path / "v1"), "seed": 7}
    split_pairs(SplitPairsConfig(**kept, output_dir=str(tmp_path / "v2")))
    after = read(tmp_path / "v2")
    for name, queries in before.items():
        assert queries <= {row["text_a"] for row in after[name]}
        assert not {row["text_a"] for row in after[name]} & {*ask.values()} - {ask[name]}
    assert "测试的新说法" in {row["text_b"] for row in after["test"]}
    assert {name: len(found) for name, found in after.items()} == {"train": 294, "dev": 84, "test": 43}
    told = "300 of 422 rows were in {} and stay where they were; 1 new rows would join rows of two files"
    assert told.format(tmp_path / "v1") in capsys.readouterr().err
    with pytest.raises(InputError, match="keep .* has no test.jsonl; give the folder"):
        shutil.rmtree(tmp_path / "v2") or (tmp_path / "v1" / "test.jsonl").unlink()
        split_pairs(SplitPairsConfig(**kept, output_dir=str(tmp_path / "v2")))


def test_names_of_classes_and_scores_are_kept(tmp_path):
    write_rows(tmp_path / "named.tsv", label=lambda number: "否是"[number % 2])
    write_rows(tmp_path / "scores.tsv", label=lambda number: f"{number / 8}")
    for name, flags in (("named", {"label_map": "0=否,1=是"}), ("scores", {"are_scores": True})):
        paths = {"train_file": str(tmp_path / f"{name}.tsv"), "output_dir": str(tmp_path / name)}
        split_pairs(SplitPairsConfig(**paths, **flags))
    labels = {row["label"] for each in read(tmp_path / "named").values() for row in each}
    assert labels == {"否", "是"}
    scores = sorted(float(row["label"]) for each in read(tmp_path / "scores").values() for row in each)
    assert scores[0] == 0 and scores[-1] == 101 / 8


def test_chains_through_most_rows_are_cut(tmp_path, capsys):
    rows = [f"问题{query}\t同一个答案\t{query % 2}\n问题{query}\t答案{query}\t1\n" for query in range(60)]
    (tmp_path / "all.tsv").write_text("".join(rows), encoding="utf-8")
    split_pairs(SplitPairsConfig(train_file=str(tmp_path / "all.tsv"), output_dir=str(tmp_path / "out")))
    assert "rows of one first text stay together instead" in capsys.readouterr().err
    files = read(tmp_path / "out")
    assert not {row["text_a"] for row in files["train"]} & {row["text_a"] for row in files["dev"]}


def test_pairs_of_two_queries_cannot_be_split(tmp_path):
    write_rows(tmp_path / "all.tsv", queries=2)
    with pytest.raises(InputError, match="its 6 rows share their texts in so few groups that none fits into"):
        split_pairs(SplitPairsConfig(train_file=str(tmp_path / "all.tsv"), output_dir=str(tmp_path / "out")))
    assert not list((tmp_path / "out").glob("*.jsonl"))
    with pytest.raises(InputError, match="leave nothing to split"):
        SplitPairsConfig(train_file="a.tsv", output_dir="out", dev_share=0)
