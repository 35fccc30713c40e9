"""Whoever evaluates a model on rows that it has learned is told so, and has the figures of the other rows."""

import json
from dataclasses import replace

import asked
import numpy as np
import pytest
from tiny_embedding import embedding_config, write_files
from tiny_pair import candidate_rows, toy_rows, train_config, write_rows

from ernie_pair.core.errors import CheckpointError
from ernie_pair.deployment.export_pair import ExportConfig, export_pair
from ernie_pair.embeddings.embed_config import EvaluateEmbeddingConfig
from ernie_pair.embeddings.train.train_embedding import train_embedding
from ernie_pair.evaluation.embeddings.evaluate_embedding import evaluate_embedding
from ernie_pair.experiments.compare_models import CompareModelsConfig, compare_models
from ernie_pair.models.commands import AverageConfig, average_checkpoints
from ernie_pair.models.model_card import describe_worth
from ernie_pair.pairs.audit.trained_pairs import hash_pairs, was_trained_on
from ernie_pair.pairs.data.pair_source import read_pairs
from ernie_pair.pairs.train.train_pair import train_pair

SEEN = list(toy_rows(90, seed=0))[:12]
NEW = list(toy_rows(30, seed=7))


@pytest.fixture(scope="module")
def folder(module_path):
    """The runs out/ of 90 pairs and child/, which began from it, of 30 others; test.tsv has rows of both."""
    config = train_config(module_path, epochs=1)
    train_pair(config)
    own = write_rows(module_path / "week2.tsv", NEW[:10])
    child = {"model_name_or_path": str(module_path / "out"), "from_scratch": False}
    train_pair(replace(config, **child, train_file=str(own), output_dir=str(module_path / "child")))
    turned = [(right, f" {left}", label) for left, right, label in SEEN]
    write_rows(module_path / "test.tsv", [*turned, *NEW])
    write_rows(module_path / "others.tsv", NEW[10:])
    return module_path


def test_rows_of_a_model_and_its_start_are_known_in_any_order(folder, capfd):
    first, both = (
        was_trained_on(str(folder / name), read_pairs(folder / "test.tsv", 2)) for name in ("out", "child")
    )
    assert first.tolist() == [True] * 12 + [False] * 30
    assert both.tolist() == [True] * 22 + [False] * 20
    found = asked.evaluated(folder / "child", folder / "test.tsv")
    alone = asked.evaluated(folder / "child", folder / "others.tsv")
    assert (
        found["trained_on"]["rows"] == 22 and found["trained_on"]["without"]["accuracy"] == alone["accuracy"]
    )
    assert found["trained_on"]["without"]["auc"] == alone["auc"] and "trained_on" not in alone
    assert (
        f"42 test pairs, 22 of which it was trained on ({alone['accuracy']:.4f} without them)"
        in found["verdict"]
    )
    assert f"22 of 42 rows were trained on by {folder / 'child'}" in capfd.readouterr().err


@pytest.mark.parametrize("known, other, is_better, told", [
    (9, 0.9, True, "it is better than counting"), (9, 0.55, False, "it has learned nothing"),
    (40, None, False, "it was measured on pairs that it has learned alone"),
])  # fmt: skip
def test_pairs_that_were_learned_prove_nothing(known, other, is_better, told):
    found = {"accuracy": 0.95, "shared_characters": {"accuracy": 0.6}, "rows": 40}
    found["trained_on"] = {"rows": known, "without": {} if other is None else {"accuracy": other}}
    line, better = describe_worth(found)
    assert line.startswith(told) and better == is_better and f"{known} of which it was trained on" in line


def test_an_export_and_an_average_know_them_too(folder, tmp_path):
    export_pair(ExportConfig(str(folder / "child"), str(tmp_path / "ship"), format="onnx"))
    average_checkpoints(AverageConfig([str(folder / "out"), str(folder / "child")], str(tmp_path / "mean")))
    for model in (tmp_path / "ship", tmp_path / "mean"):
        assert asked.evaluated(model, folder / "test.tsv")["trained_on"]["rows"] == 22


def test_models_are_compared_on_rows_that_none_has_learned(folder, tmp_path, capfd):
    models = f"old={folder / 'out'} new={folder / 'child'}"
    flags = {"bootstrap": 10, "threads": 1, "int8": "none"}
    compare_models(CompareModelsConfig(models, str(folder / "test.tsv"), str(tmp_path / "table"), **flags))
    old, new = json.loads((tmp_path / "table" / "models.json").read_text())["models"]
    for row, name in ((old, "out"), (new, "child")):
        assert row["accuracy_unseen"] == asked.evaluated(folder / name, folder / "others.tsv")["accuracy"]
    told = capfd.readouterr().err
    assert "12 of 42 rows were trained on by old" in told and "22 of 42 rows were trained on by new" in told


def test_an_encoder_is_measured_without_what_it_learned(tmp_path, capfd):
    config = embedding_config(write_files(tmp_path), epochs=1)
    train_embedding(config)
    rows = [
        line.split("\t")
        for name in ("train", "dev")
        for line in (tmp_path / f"{name}.tsv").read_text().splitlines()
    ]
    mixed = write_rows(tmp_path / "mixed.tsv", rows)
    flags = {"model_path": str(tmp_path / "out"), "device": "cpu"}
    whole, other = (
        evaluate_embedding(EvaluateEmbeddingConfig(input_file=str(file), **flags))
        for file in (mixed, tmp_path / "dev.tsv")
    )
    assert whole["trained_on"] == {"rows": 180, "without": other["metrics"]} and "trained_on" not in other
    assert "180 of 240 rows were trained on by" in capfd.readouterr().err


def test_a_query_with_one_learned_candidate_is_left_out_whole(folder, tmp_path):
    rows = list(candidate_rows(4, seed=3))
    rows[0] = (*SEEN[0][:2], 1)
    pairs = read_pairs(write_rows(tmp_path / "ranked.tsv", rows), 2).changed(
        groups=np.array([0, 0, *[1] * (len(rows) - 2)])
    )
    assert was_trained_on(str(folder / "out"), pairs).tolist() == [True, True, *[False] * (len(rows) - 2)]
    assert len(np.unique(hash_pairs(pairs))) == len(rows)


def test_a_damaged_list_is_named(folder, tmp_path):
    (tmp_path / "config.json").write_bytes((folder / "model" / "config.json").read_bytes())
    (tmp_path / "trained_pairs.npy").write_bytes(b"no array")
    with pytest.raises(CheckpointError, match="trained_pairs.npy .*remove it: evaluations then do not know"):
        was_trained_on(str(tmp_path), read_pairs(folder / "test.tsv", 2))
