"""Control tokens, added tokens and lengths of published folders, as in sentence-transformers 5.1.1."""

import json
import shutil

import numpy as np
import pytest
from places import SUPPORT
from tiny_models import change

from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.embed_config import ExportEmbeddingConfig
from ernie_pair.embeddings.open_embedder import open_embedder
from ernie_pair.evaluation.embeddings.export_embedding import export_embedding
from ernie_pair.inference.token_rows import encode_single_texts

FOLDERS = SUPPORT / "published"
EXPECTED = json.loads((FOLDERS / "expected.json").read_text(encoding="utf-8"))
MOST = 1e-5


def write(name, folder):
    shutil.copytree(FOLDERS / ("plain" if name == "max_len" else name), folder)
    if name == "max_len":
        (folder / "sentence_bert_config.json").unlink()
        change(folder / "tokenizer_config.json", model_max_length=None, max_len=12)
    return folder


@pytest.mark.parametrize("is_exported", [False, True], ids=["trained", "exported"])
@pytest.mark.parametrize("name", EXPECTED)
def test_ids_and_vectors_are_those_of_the_library(tmp_path, name, is_exported):
    folder = write(name, tmp_path / "model")
    if is_exported:
        pytest.importorskip("onnxruntime")
        export_embedding(ExportEmbeddingConfig(str(folder), str(tmp_path / "x")))
        folder = tmp_path / "x"
    embedder = open_embedder(folder)
    texts = [row["text"] for row in EXPECTED[name]]
    rows = encode_single_texts(texts, embedder.model.tokenizer, embedder.max_seq_len)
    ids = [rows.ids[first:last].tolist() for first, last in zip(rows.starts, rows.starts[1:])]
    assert ids == [row["ids"] for row in EXPECTED[name]]
    vectors = np.array([row["vector"] for row in EXPECTED[name]])
    assert np.abs(embedder.embed(texts) - vectors).max() < MOST


def test_a_row_of_padding_alone_is_no_nan(tmp_path):
    pytest.importorskip("onnxruntime")
    export_embedding(ExportEmbeddingConfig(str(FOLDERS / "plain"), str(tmp_path / "x")))
    rows = np.array([[6, 56, 7], [0, 0, 0]])
    for folder in (FOLDERS / "plain", tmp_path / "x"):
        vectors = open_embedder(folder).model.forward(rows, np.zeros_like(rows))
        assert np.isfinite(vectors).all() and not vectors[1].any()


def test_an_adapter_beside_the_weights_is_refused_by_its_name(tmp_path):
    folder = write("plain", tmp_path / "model")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(InputError, match=r"adapter_config\.json.*PEFT.*merge_and_unload"):
        open_embedder(folder)
