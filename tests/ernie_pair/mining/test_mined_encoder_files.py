"""Mined pairs by their first text: rows of FlagEmbedding and of sentence-transformers, read back here."""

import json
import logging

import pandas as pd
import pytest
from tiny_pair import write_rows

from ernie_pair.core.errors import InputError
from ernie_pair.mining.encoder_files import write_groups
from ernie_pair.mining.mine_pairs import MineConfig, mine_pairs
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.audit.new_pairs import NewPair
from ernie_pair.pairs.data.pair_records import Columns, RowRules
from ernie_pair.pairs.data.pair_source import PairSource

ROWS = [
    ("怎么开户", "如何开户", 1),
    ("如何开户", "开户怎么办理", 1),
    ("怎么开户", "怎么销户", 0),
    ("怎么销户", "如何销户", 1),
    ("几点下班", "营业到几点", 1),
]
NEW = [
    NewPair("甲", "乙", "same", "labelled"),
    NewPair("甲", "丙", "same", "labelled"),
    NewPair("甲", "丁", "different", "labelled"),
    NewPair("戊", "甲", "different", "labelled"),
    NewPair("甲", "己", "different", "near 0.5000"),
    NewPair("己", "庚", "different", "near 0.4000"),
    NewPair("天", "地", "same", "labelled"),
]


def mine(tmp_path, name, **flags):
    train = write_rows(tmp_path / "train.tsv", ROWS)
    flags = {"min_similarity": 0.01, "max_similarity": 1, **flags}
    mine_pairs(MineConfig(train_file=str(train), output_file=str(tmp_path / name), **flags))
    return tmp_path / name


def pairs_in(path):
    source = PairSource("train_file", str(path), "train", Labels.numbered(2), Columns())
    pairs = PairSource(**{**vars(source), "rules": RowRules(of_encoders=path.stem != "pairs")}).read()
    return {*zip(pairs.left, pairs.right, pairs.known_labels.tolist())}


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".xlsx", ".jsonl", ".parquet"])
def test_a_column_per_negative_is_read_back(tmp_path, ending):
    path = mine(tmp_path, f"anchors{ending}", format="anchor_positive_negative", per_text=3)
    found = pairs_in(path)
    assert ("怎么开户", "如何开户", 1) in found and ("如何开户", "开户怎么办理", 1) in found
    assert ("怎么开户", "怎么销户", 0) in found and ("怎么开户", "如何销户", 0) in found
    assert not any("几点下班" in pair for pair in found)  # which has no negative


def test_lists_of_texts_are_read_back_and_hold_the_same_pairs(tmp_path):
    groups = pairs_in(mine(tmp_path, "groups.jsonl", format="query_pos_neg"))
    pairs = pairs_in(mine(tmp_path, "pairs.jsonl", include_labelled=True))
    assert groups <= pairs | {(b, a, 0) for a, b, label in pairs if not label}
    rows = [json.loads(line) for line in (tmp_path / "groups.jsonl").read_text().splitlines()]
    assert all(list(row) == ["query", "pos", "neg"] and row["pos"] and row["neg"] for row in rows)
    with pytest.raises(InputError, match="format query_pos_neg has lists of texts; name a file .* .jsonl"):
        mine(tmp_path, "groups.tsv", format="query_pos_neg")


def test_every_row_has_all_negatives_and_the_hardest_come_first(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path = tmp_path / "anchors.csv"
    again = NewPair("甲", "乙", "different", "near 0.9")  # a match is none of its negatives
    write_groups(path, path, "anchor_positive_negative", [*NEW, again], "same", 2)
    assert pd.read_csv(path).to_numpy().tolist() == [["甲", "乙", "己", "丁"], ["甲", "丙", "己", "丁"]]
    write_groups(path, path, "anchor_positive_negative", NEW, "same", 5)
    assert pd.read_csv(path).iloc[0, 2:].tolist() == ["己", "丁", "戊", "己", "丁"]
    assert caplog.messages[0].split("; ") == [
        "1 text, with 2 matches",
        "left out: 1 texts with a match and no negative, 1 negatives of texts without one, "
        "1 less hard negatives above --per_text 2",
    ]


def test_pairs_without_negatives_make_no_file(tmp_path):
    with pytest.raises(InputError, match="no text has a match and a negative"):
        dev_file = str(write_rows(tmp_path / "dev.tsv", [("怎么开户", "怎么销户", 0)]))
        mine(tmp_path, "groups.jsonl", format="query_pos_neg", max_similarity=0.01, dev_file=dev_file)
    assert not (tmp_path / "groups.jsonl").exists()
