"""A config.yaml records one particular run: what is made from its folder must not depend on it."""

from types import SimpleNamespace

import pytest

from data_tools.files.results import Results
from ernie_pair.checkpoint.run_config import CONFIG_YAML
from ernie_pair.embedding.embed_config import EmbedConfig, ExportEmbeddingConfig
from ernie_pair.mining.mine_pairs import MineConfig, mine_pairs
from ernie_pair.score.embeddings.embed import embed
from ernie_pair.score.embeddings.export_embedding import export_embedding
from ernie_pair.score.evaluation.inference_model import InferenceModel
from ernie_pair.score.evaluation.predict_pair import RunConfig, predict_exported
from ernie_pair.score.export.export_config import ExportConfig
from ernie_pair.score.export.export_pair import export_pair
from ernie_pair.search import search_texts
from ernie_pair.search.build_index import IndexConfig, make_index


@pytest.fixture
def model(tmp_path):
    """A folder with a weight file and the files that describe it."""
    (tmp_path / "model").mkdir()
    for name in ("model.safetensors", "config.json", "README.md", CONFIG_YAML):
        (tmp_path / "model" / name).write_text("x")
    return tmp_path / "model"


def run(model, out):
    predict_exported(RunConfig(model, "pairs.tsv", out / "predictions.tsv"))


def export(model, out):
    export_pair(ExportConfig(model, out / "out"))


def index(model, out):
    make_index(IndexConfig("texts.txt", out / "out", model_path=model))


def index_of_vectors(model, out):
    make_index(IndexConfig("texts.txt", out / "out", vectors=model))


def search(model, out):
    files = {"queries_file": "queries.txt", "answers_file": out / "answers.jsonl"}
    search_texts._results(
        search_texts.SearchConfig(index=out / "index", model_path=model, **files)
    ).are_done()


def vectors(model, out):
    embed(EmbedConfig(model_path=model, input_file="texts.txt", output_dir=out / "out"))


def export_of_embedding(model, out):
    export_embedding(ExportEmbeddingConfig(model, out / "out"))


def mine(model, out):
    mine_pairs(MineConfig("train.tsv", output_file=out / "new.tsv", embedding_model=model))


MAKERS = (run, export, index, index_of_vectors, search, vectors, export_of_embedding, mine)


class Asked(Exception):
    """What a command would make its results of."""


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_files_that_only_describe_a_model_are_not_inputs(model, tmp_path, monkeypatch, make):
    def are_done(results):
        raise Asked(results.inputs)

    monkeypatch.setattr(Results, "are_done", are_done)
    with pytest.raises(Asked) as asked:
        make(model, tmp_path)
    names = {path.name for paths in asked.value.args[0].values() for path in paths}
    assert names == {"model.safetensors", "config.json"}


def test_the_model_hash_ignores_config_yaml(model):
    trained = SimpleNamespace(where=model, kernels=SimpleNamespace(name="plain"))
    before = InferenceModel.identity.fget(trained)
    (model / CONFIG_YAML).write_text("y")
    assert InferenceModel.identity.fget(trained) == before
    (model / "config.json").write_text("y")
    assert InferenceModel.identity.fget(trained) != before
