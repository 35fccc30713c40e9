"""Encoders are trained and measured on the files that their libraries read and write."""

import json
import logging

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from tiny_embedding import OTHER, embedding_config, random_text, write_files

from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.embed_config import EvaluateEmbeddingConfig
from ernie_pair.embeddings.train.contrastive import describe_step, texts_of_pairs
from ernie_pair.embeddings.train.embedding_config import EmbeddingConfig
from ernie_pair.embeddings.train.embedding_trainer import EmbeddingTrainer
from ernie_pair.embeddings.train.train_embedding import EmbeddingTask, train_embedding
from ernie_pair.evaluation.embeddings.evaluate_embedding import evaluate_embedding
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.data.in_memory_pairs import GivenPairs
from ernie_pair.pairs.data.pair_records import Columns, RowRules
from ernie_pair.runtime.processes.world import World


def toy_rows(count=12, seed=0):
    """(text, its match, two other texts)."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        text = random_text(rng)
        yield text, "".join(OTHER[letter] for letter in text), random_text(rng), random_text(rng)


ROWS = list(toy_rows())
FORMS = {
    "query_pos_neg.jsonl": [{"query": a, "pos": [b], "neg": [c, d]} for a, b, c, d in ROWS],
    "anchor_positive.jsonl": [{"anchor": a, "positive": b} for a, b, _, _ in ROWS],
    "anchor_positive_negatives.jsonl": [
        {"anchor": a, "positive": b, "negative_1": c, "negative_2": d} for a, b, c, d in ROWS
    ],
    "anchor_positive_negative_label.tsv": [
        {"anchor": a, "positive": b, "negative": c, "label": 1} for a, b, c, _ in ROWS
    ],
    "two_columns.csv": [{"question": a, "answer": b} for a, b, _, _ in ROWS],
}
WITHOUT_NEGATIVES = ("anchor_positive.jsonl", "two_columns.csv")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_files(tmp_path_factory.mktemp("forms"))
    for name, rows in FORMS.items():
        if name.endswith(".jsonl"):
            lines = [json.dumps(row, ensure_ascii=False) for row in rows]
            (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        else:
            frame = pd.DataFrame(rows)
            frame.to_csv(folder / name, index=False, sep="\t" if name.endswith(".tsv") else ",")
    return folder


def opened(folder, **changes):
    task = EmbeddingTask(embedding_config(folder, batch_size=4, **changes))
    task.open_model()
    task.open_data(World())
    return task.data


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_trained_on(folder, name, caplog):
    caplog.set_level(logging.INFO)
    data = opened(folder, train_file=str(folder / name), dev_file=str(folder / "anchor_positive.jsonl"))
    assert data.num_rows == len(ROWS) and len(data.dev.retrieval.queries) == len(ROWS)
    count = 0 if name in WITHOUT_NEGATIVES else len(ROWS)
    assert f"; {count} of them have hard negatives" in caplog.text
    assert "with a pair of the training file" in caplog.text  # a leak, without a command that cannot run
    assert "audit pairs" not in caplog.text and "no pair of class" not in caplog.text
    (batch,) = next(data.updates(0))
    assert batch.step.num_pairs == 4 and batch.step.has_negatives


@pytest.mark.parametrize("make", [list, pd.DataFrame, Dataset.from_list], ids=["list", "frame", "dataset"])
def test_a_trainer_takes_the_same_rows_from_python(folder, tmp_path, make):
    flags = {"model_type": "ernie", "from_scratch": True, "batch_size": 4, "max_steps": 2, "max_seq_len": 16}
    config = EmbeddingConfig(str(tmp_path / "out"), device="cpu", **flags)
    rows = make(FORMS["query_pos_neg.jsonl"])
    trainer = EmbeddingTrainer(folder / "model", config, rows, make(FORMS["anchor_positive.jsonl"]))
    assert 0 <= trainer.train().metrics["mrr"] <= 1


def test_no_match_of_a_query_is_a_negative_of_it():
    rows = [{"query": "问", "pos": ["甲", "乙", "丙"], "neg": ["丁", "乙"]}, {"query": "天", "pos": ["地"]}]
    given = GivenPairs("t", rows, Labels.numbered(2), Columns(), RowRules(of_encoders=True))
    texts = texts_of_pairs(given.read(), None, "t")
    assert [texts.texts[n] for n in texts.negatives[texts.texts.index("问")]] == ["丁"]
    pairs = np.arange(len(texts))
    negatives = [texts.negatives_of(pair, 0, 2) for pair in pairs.tolist()]
    step = describe_step(texts, pairs, negatives)
    compared = [{texts.texts[n] for n in step.numbers[len(pairs) :][~step.is_hidden[pair]]} for pair in pairs]
    assert compared == [
        {"甲", "地", "丁"},
        {"乙", "地", "丁"},
        {"丙", "地", "丁"},
        {"甲", "乙", "丙", "地", "丁"},
    ]


def test_the_negatives_that_are_of_no_use_are_counted(caplog):
    caplog.set_level(logging.INFO)
    rows = [("问", "甲", 1), ("问", "乙", 0), ("问", "甲", 0), ("天", "地", 0), ("上", "下", 1)]
    given = GivenPairs("t", rows, Labels.numbered(2))
    texts_of_pairs(given.read(), None, "t")
    told = "t: 2 of 3 negatives are not used: the first texts of 1 have no match, and 1 are matches of theirs"
    assert told in caplog.text


def test_graded_objectives_read_a_pair_per_row(folder, caplog):
    caplog.set_level(logging.INFO)
    with pytest.raises(InputError, match="no label; each row needs a number"):
        opened(folder, train_file=str(folder / "anchor_positive.jsonl"), objective="cosent")
    path = folder / "graded_with_negative.csv"
    lines = (folder / "graded.tsv").read_text().splitlines()
    path.write_text(
        "sentence1,sentence2,score,negative\n"
        + "".join(",".join(line.split("\t")) + ",甲\n" for line in lines)
    )
    graded = {"objective": "cosent", "dev_file": str(folder / "graded_dev.tsv")}
    assert opened(folder, train_file=str(path), **graded).num_rows == len(lines)
    assert (
        f"{path}: reads sentence1 and sentence2 as the texts, score as the label; not read: negative"
        in caplog.messages
    )


def test_a_model_is_measured_on_rows_without_labels(folder, tmp_path):
    train_embedding(embedding_config(folder, max_steps=2, output_dir=str(tmp_path / "out")))
    for name in ("query_pos_neg.jsonl", "two_columns.csv"):
        files = {"model_path": str(tmp_path / "out"), "input_file": str(folder / name)}
        asked = EvaluateEmbeddingConfig(**files, device="cpu")
        assert evaluate_embedding(asked)["queries"] == len(ROWS)
