"""A classifier where an embedding model is wanted, and the other way round: which it is, and who takes it."""

import shutil

import pytest
from places import SUPPORT
from tiny_ship import write_trained

from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.embed_config import ExportEmbeddingConfig
from ernie_pair.embeddings.open_embedder import EmbedderOptions, open_embedder
from ernie_pair.evaluation.embeddings.export_embedding import export_embedding
from ernie_pair.evaluation.scorer import load


def test_of_a_classifier_it_is_said_what_its_vectors_are(tmp_path, caplog):
    folder = write_trained(tmp_path / "model")
    open_embedder(folder)
    assert f"{folder} is a classifier or reranker" in caplog.text
    assert f"predict, rank, search and serve with --model_path {folder}" in caplog.text
    caplog.clear()
    assert open_embedder(folder, options=EmbedderOptions(pooling="mean")).embed(["a"]).shape[0] == 1
    assert "classifier" not in caplog.text


@pytest.mark.parametrize("kind", ["of sentence-transformers", "exported"])
def test_an_embedding_model_classifies_no_pairs(tmp_path, kind):
    folder = tmp_path / "model"
    shutil.copytree(SUPPORT / "published" / "plain", folder)
    if kind == "exported":
        pytest.importorskip("onnxruntime")
        export_embedding(ExportEmbeddingConfig(str(folder), str(tmp_path / "x")))
        folder = tmp_path / "x"
    with pytest.raises(
        InputError, match=f"{folder} is an embedding model.*embedding_model {folder} to serve"
    ):
        load(str(folder), "cpu", 1)
