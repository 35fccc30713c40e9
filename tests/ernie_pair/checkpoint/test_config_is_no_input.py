"""A config.yaml records one particular run: what is made from its folder must not depend on it."""

import pytest

from ernie_pair.checkpoint.run_config import CONFIG_YAML
from ernie_pair.embedding.embed_config import EmbedConfig, ExportEmbeddingConfig
from ernie_pair.mining import mine_pairs
from ernie_pair.score.embeddings import embed, export_embedding
from ernie_pair.score.evaluation import predict_pair
from ernie_pair.score.evaluation.predict_pair import RunConfig
from ernie_pair.score.evaluation.scorer import results_of
from ernie_pair.score.export import export_pair
from ernie_pair.score.export.export_config import ExportConfig
from ernie_pair.search import build_index, search_texts


@pytest.fixture
def model(tmp_path):
    """A folder with a weight file and the files that describe it."""
    (tmp_path / "model").mkdir()
    for name in ("model.safetensors", "config.json", "README.md", CONFIG_YAML):
        (tmp_path / "model" / name).write_text("x")
    return tmp_path / "model"


def run(model, out):
    return results_of("run", RunConfig(model, "pairs.tsv", out / "predictions.tsv"))


def export(model, out):
    return export_pair._results(ExportConfig(model, out), "export", {"model_path": [model]}, out)


def index(model, out):
    return build_index._results(build_index.IndexConfig("texts.txt", out, model_path=model), out)


def index_of_vectors(model, out):
    return build_index._results(build_index.IndexConfig("texts.txt", out, vectors=model), out)


def search(model, out):
    files = {"queries_file": "queries.txt", "answers_file": out / "answers.jsonl"}
    return search_texts._results(search_texts.SearchConfig(index=out / "index", model_path=model, **files))


def vectors(model, out):
    return embed._results(EmbedConfig(model_path=model, input_file="texts.txt", output_dir=out), out)


def export_of_embedding(model, out):
    return export_embedding._results(ExportEmbeddingConfig(model, out), out)


def mine(model, out):
    return mine_pairs._results(
        mine_pairs.MineConfig("train.tsv", output_file=out / "new.tsv", embedding_model=model)
    )


MAKERS = (run, export, index, index_of_vectors, search, vectors, export_of_embedding, mine)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_files_that_only_describe_a_model_are_not_inputs(model, tmp_path, make):
    names = {path.name for paths in make(model, tmp_path).inputs.values() for path in paths}
    assert names == {"model.safetensors", "config.json"}


def test_the_model_hash_ignores_config_yaml(model):
    before = predict_pair._hash_of(model)
    (model / CONFIG_YAML).write_text("y")
    assert predict_pair._hash_of(model) == before
    (model / "config.json").write_text("y")
    assert predict_pair._hash_of(model) != before
