"""Indexes built from vectors written by ernie-pair embed."""

import json
import os
import shutil

import numpy as np
import pytest
from children import WITHOUT_TRAINING, output_of
from tiny_search import texts_of, write_embedder, write_exports, write_lines
from tiny_ship import random_texts, write_trained

from ernie_pair.core.errors import InputError, NumbersError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.embeddings.embed_config import EmbedConfig, EvaluateEmbeddingConfig
from ernie_pair.embeddings.open_embedder import EmbedderOptions, open_embedder
from ernie_pair.evaluation.embeddings.embed import embed
from ernie_pair.evaluation.embeddings.evaluate_embedding import evaluate_embedding
from ernie_pair.evaluation.scorer import load
from ernie_pair.inference.token_rows import BatchRules
from ernie_pair.inference.vector_files import VECTORS_JSON
from ernie_pair.kernels.encoder_layer import ModelState
from ernie_pair.mining.mine_pairs import MineConfig, mine_pairs
from ernie_pair.models.networks import kernel_path
from ernie_pair.retrieval.build_index import IndexConfig, make_index
from ernie_pair.retrieval.search_texts import SearchConfig, search_texts
from ernie_pair.retrieval.searcher import PairSearcher
from ernie_pair.service.serve import ServeConfig, _open_models

pytest.importorskip("faiss")
pytest.importorskip("fastapi")
TEXTS = texts_of(80)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A folder with the model, texts.txt, and its vectors in float16 and in int8."""
    folder = tmp_path_factory.mktemp("stored")
    model = str(write_embedder(folder / "model"))
    texts = str(write_lines(folder / "texts.txt", TEXTS))
    for dtype in ("float16", "int8"):
        embed(EmbedConfig(model_path=model, input_file=texts, output_dir=str(folder / dtype), dtype=dtype))
    return folder


def indexed(stored, folder, dtype="float16", texts="texts.txt"):
    make_index(IndexConfig(str(stored / texts), str(folder / "index"), vectors=str(stored / dtype)))
    return folder / "index"


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_stored_vectors_give_the_same_hits_as_the_model(stored, tmp_path, dtype):
    texts, model = str(stored / "texts.txt"), str(stored / "model")
    make_index(IndexConfig(texts, str(tmp_path / "own"), embedding_model=model))
    of_both = [
        PairSearcher(index, stored / "model", threads=1).search(TEXTS[5], top_k=5)
        for index in (tmp_path / "own", indexed(stored, tmp_path, dtype))
    ]
    assert of_both[0][0].id == of_both[1][0].id == "5"
    close = [[hit.similarity for hit in hits] for hits in of_both]
    assert np.abs(np.subtract(*close)).max() < (0.001 if dtype == "float16" else 0.02)
    about = [json.loads((tmp_path / name / "index.json").read_text()) for name in ("own", "index")]
    assert about[0]["fingerprint"] == about[1]["fingerprint"]
    assert about[0]["max_seq_len"] == about[1]["max_seq_len"] > 0


def test_texts_with_ids_give_the_same_vectors_and_keep_ids(stored, tmp_path):
    rows = ["id\ttext", *(f"q{place}\t{text}" for place, text in enumerate(TEXTS))]
    texts, vectors = write_lines(tmp_path / "faq.tsv", rows), tmp_path / "vectors"
    embed(EmbedConfig(model_path=str(stored / "model"), input_file=str(texts), output_dir=str(vectors)))
    of_plain = stored / "float16" / "vectors.npy"
    assert (vectors / "vectors.npy").read_bytes() == of_plain.read_bytes()
    make_index(IndexConfig(str(texts), str(tmp_path / "index"), vectors=str(vectors)))
    assert PairSearcher(tmp_path / "index", stored / "model", threads=1).search(TEXTS[5])[0].id == "q5"


def test_vectors_of_another_file_are_refused(stored, tmp_path):
    write_lines(stored / "other.txt", reversed(TEXTS))
    with pytest.raises(InputError, match="80 vectors of another file than .*other.txt, with 80 texts"):
        indexed(stored, tmp_path, texts="other.txt")
    assert os.listdir(tmp_path) == []


def test_a_nan_in_stored_vectors_gives_exit_code_4(stored, tmp_path):
    """Its checksum is right."""
    folder = shutil.copytree(stored / "float16", stored / "spoiled")
    path, about = folder / "vectors.npy", folder / VECTORS_JSON
    before, array = sha256_of_file(path), np.load(path)
    array[5, 3] = np.nan
    np.save(path, array)
    about.write_text(
        about.read_text(encoding="utf-8").replace(before, sha256_of_file(path)), encoding="utf-8"
    )
    with pytest.raises(NumbersError, match="the vector of text 5 is NaN, infinite or zero"):
        indexed(stored, tmp_path, "spoiled")
    assert os.listdir(tmp_path) == []


def test_the_service_refuses_an_index_of_another_model(stored, tmp_path):
    index, other = indexed(stored, tmp_path), write_trained(tmp_path / "other", initializer_range=0.2)
    with pytest.raises(InputError, match="are of another model"):
        _open_models(ServeConfig(index=index, embedding_model=other))
    with pytest.raises(InputError, match="index holds vectors; name their model with embedding_model"):
        _open_models(ServeConfig(index=index))


# --- the threads of the trained models of a search


@pytest.fixture
def taken(monkeypatch):
    """The thread counts given to Paddle's own kernels and to the fused ones of each model, in order."""
    told = []
    monkeypatch.setattr(kernel_path, "set_math_threads", told.append)
    change = ModelState.__setattr__

    def changed(state, name, value):
        change(state, name, value)
        if name == "threads":
            told.append(value)

    monkeypatch.setattr(ModelState, "__setattr__", changed)
    return told


@pytest.mark.parametrize("threads", [0, 3])
def test_trained_models_use_the_threads_of_the_flag(tmp_path, taken, threads):
    model = str(write_trained(tmp_path / "model"))
    scorer = load(model, "cpu", threads)
    own = taken.copy()
    taken.clear()
    embedder = open_embedder(model, "cpu", EmbedderOptions(threads=threads))
    for told in (own, taken):
        assert (3 in told) == bool(threads) and (not threads or told[-1] == 3)
    assert len(scorer.score([("今天", "明天")])) == 1 and len(embedder.embed(["今天"])) == 1


def test_a_trained_regression_model_gives_its_score_range(tmp_path):
    asked = {"num_labels": 1, "problem_type": "regression", "label_range": [0.0, 5.0]}
    model = str(write_trained(tmp_path / "model", **asked))
    assert load(model, "cpu", 1).unit[1:] == (0.0, 5.0)


# --- exported models, without any training library

for library in ("faiss", "onnxruntime"):
    pytest.importorskip(library)

SEARCHED = """
folder = sys.argv[1]
models = ["--embedding_model", f"{folder}/encoder"]
_run(["index", "--input_file", f"{folder}/faq.tsv", *models, "--dim", "8", "--output_dir", f"{folder}/own"])
files = ["--input_file", f"{folder}/queries.txt", "--output_file", f"{folder}/answers.jsonl"]
_run(["search", "--index", f"{folder}/own", *models, "--model_path", f"{folder}/ship", *files])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_exports(tmp_path_factory.mktemp("exported"))
    texts = texts_of(60)
    write_lines(folder / "faq.tsv", (f"q{place}\t{text}" for place, text in enumerate(texts)))
    write_lines(folder / "queries.txt", texts[:4])
    return folder


def test_exported_models_search_without_a_framework(folder):
    output_of("-c", WITHOUT_TRAINING + SEARCHED, folder)
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    searcher = PairSearcher(folder / "own", folder / "trained", folder / "ship", threads=1)  # the same model
    for row, hits in zip(rows, searcher.search_many(row["query"] for row in rows)):
        assert [hit["id"] for hit in row["hits"]] == [hit.id for hit in hits]
        assert [hit["score"] for hit in row["hits"]] == pytest.approx([hit.score for hit in hits], abs=1e-4)


def test_every_command_that_asks_a_model_passes_batch_tokens_on(folder, tmp_path, monkeypatch):
    asked, holding = [], BatchRules.holding
    monkeypatch.setattr(BatchRules, "holding", lambda rules, most: asked.append(most) or holding(rules, most))
    texts, encoder, ship = (str(folder / name) for name in ("faq.tsv", "encoder", "ship"))
    pairs = write_lines(
        tmp_path / "pairs.tsv", (f"{a}\t{b}\t{n % 2}" for n, (a, b) in enumerate(random_texts(40)))
    )
    pairs, index, out = str(pairs), str(tmp_path / "index"), str(tmp_path / "out.tsv")
    models = {"embedding_model": encoder, "model_path": ship, "device": "cpu"}
    make_index(IndexConfig(texts, index, encoder, batch_tokens=70))
    search_texts(SearchConfig(index, encoder, model_path=ship, text="今天", batch_tokens=71))
    mine_pairs(MineConfig(pairs, out, **models, batch_tokens=72, min_similarity=0.01))
    embed(EmbedConfig(encoder, texts, str(tmp_path / "v"), batch_tokens=73, device="cpu"))
    evaluate_embedding(EvaluateEmbeddingConfig(encoder, pairs, batch_tokens=74, device="cpu"))
    assert sorted(set(asked)) == [70, 71, 72, 73, 74] and asked.count(71) == asked.count(72) == 2
    with pytest.raises(InputError, match="batch_size and batch_tokens exclude each other"):
        EmbedConfig(encoder, texts, index, batch_tokens=73, batch_size=9)
    with pytest.raises(InputError, match="batch_tokens is for a model, and none is given; leave it out"):
        MineConfig(pairs, out, batch_tokens=72)


def test_an_index_records_the_dimension_of_its_vectors(folder, tmp_path):
    config = IndexConfig(str(folder / "faq.tsv"), str(tmp_path / "index"), str(folder / "trained"), dim=8)
    make_index(config)
    assert json.loads((tmp_path / "index" / "index.json").read_text())["dim"] == 8
    for model in ("trained", "encoder"):
        (hit,) = PairSearcher(tmp_path / "index", folder / model, threads=1).search(texts_of(60)[7], top_k=1)
        assert hit.id == "q7" and hit.similarity == pytest.approx(1, abs=1e-4)
