"""Vectors of folders of sentence-transformers: pooling, steps, prompts, and all that uses them."""

import json
import logging
import shutil
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from places import SUPPORT
from run_files import events
from tiny_embedding import embedding_config, write_matches
from tiny_models import WIDTH, change, write_sentence
from tiny_pair import CHARACTERS
from tiny_search import write_lines
from tiny_ship import write_trained

from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.embed_config import EmbedConfig, EvaluateEmbeddingConfig, ExportEmbeddingConfig
from ernie_pair.embeddings.mteb_encoder import MtebEncoder
from ernie_pair.embeddings.open_embedder import EmbedderOptions, log_drift, open_embedder
from ernie_pair.embeddings.train.embedding_config import EmbeddingConfig
from ernie_pair.embeddings.train.embedding_trainer import EmbeddingTrainer
from ernie_pair.embeddings.train.train_embedding import train_embedding
from ernie_pair.evaluation.embeddings.embed import embed
from ernie_pair.evaluation.embeddings.evaluate_embedding import evaluate_embedding
from ernie_pair.evaluation.embeddings.export_embedding import export_embedding
from ernie_pair.evaluation.scorer import load
from ernie_pair.inference.token_rows import encode_single_texts
from ernie_pair.inference.vector_files import open_vectors
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.embedding_json import NORMALIZE, POOLINGS, Step, full_prompts
from ernie_pair.models.networks.text_encoder import build_text_encoder, load_text_weights
from ernie_pair.models.source import open_model
from ernie_pair.retrieval.build_index import IndexConfig, make_index
from ernie_pair.retrieval.searcher import PairSearcher

TEXTS = [
    "".join(CHARACTERS[place : place + size]) for place, size in ((0, 5), (3, 1), (7, 12), (2, 3), (9, 15))
]
SETTINGS = "config_sentence_transformers.json"
PROMPTS = {"query": TEXTS[1], "passage": TEXTS[3]}


def states_of(folder, texts=TEXTS, length=20):
    """The last hidden states of each text, float32 [tokens, D], by another way: one text at a time."""
    source = open_model(str(folder), model_type="")
    model = build_text_encoder(source, 0, 0.0)
    load_text_weights(model, source)
    model.eval()
    tokenizer = open_embedder(folder).model.tokenizer
    rows = encode_single_texts(texts, tokenizer, length)
    found = []
    for place in range(len(texts)):
        batch = rows.batch(np.array([place]))
        with paddle.no_grad():
            found.append(model.encoder(*map(paddle.to_tensor, batch[:2]))[0].numpy()[0])
    return found


BY_HAND = {
    "mean": lambda one: one.mean(axis=0),
    "cls": lambda one: one[0],
    "max": lambda one: one.max(axis=0),
    "mean_sqrt_len_tokens": lambda one: one.sum(axis=0) / np.sqrt(len(one)),
    "weightedmean": lambda one: np.average(one, axis=0, weights=np.arange(1, len(one) + 1)),
    "lasttoken": lambda one: one[-1],
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_sentence(tmp_path_factory.mktemp("plain") / "m", steps=())


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    told = {"prompts": PROMPTS, "default_prompt": "query"}
    return write_sentence(tmp_path_factory.mktemp("asked") / "m", "cls", **told)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_each_pooling_is_that_of_the_hidden_states(plain):
    assert set(BY_HAND) == set(POOLINGS)
    states = states_of(plain)
    for name, by_hand in BY_HAND.items():
        found = open_embedder(plain, options=EmbedderOptions(pooling=name)).embed(TEXTS)
        assert np.abs(found - np.stack(list(map(by_hand, states)))).max() < 2e-5, name
    several = open_embedder(plain, options=EmbedderOptions(pooling="lasttoken+max")).embed(TEXTS)
    assert several.shape == (5, 2 * WIDTH)
    assert np.abs(several[:, WIDTH:] - np.stack([one.max(axis=0) for one in states])).max() < 2e-5


def test_steps_are_computed_in_their_order(tmp_path):
    steps = (Step("dense", 8), NORMALIZE, Step("dense", 6, False, "relu", True), Step("truncate", 4))
    folder = write_sentence(tmp_path / "m", "mean", steps)
    embedder = open_embedder(folder)
    layers = [layer.numpy() for layer in load_dense(folder)]
    vectors = np.stack([one.mean(axis=0) for one in states_of(folder)])
    made = unit(np.tanh(vectors @ layers[0] + layers[1]))
    made = np.maximum(made @ layers[2], 0) + made @ layers[3]
    assert embedder.dim == 4 and np.abs(embedder.embed(TEXTS) - made[:, :4]).max() < 5e-6


def load_dense(folder):
    from ernie_pair.models.sentence_transformers import read_sentence_folder

    arrays = read_sentence_folder(folder).dense_arrays()
    names = ["0.linear.weight", "0.linear.bias", "1.linear.weight", "1.residual.weight"]
    return [paddle.to_tensor(arrays[f"dense.{name}"].copy()) for name in names]


def test_a_flag_that_overrides_the_folder_is_told(asked, caplog):
    with caplog.at_level(logging.INFO):
        embedder = open_embedder(asked, options=EmbedderOptions(pooling="mean", max_seq_len=9))
    assert (embedder.settings.pooling, embedder.max_seq_len) == ("mean", 9)
    assert f"--pooling mean overrides cls, which {asked} says" in caplog.text
    assert f"--max_seq_len 9 overrides 20, which {asked} says" in caplog.text
    caplog.clear()
    open_embedder(asked)
    assert "overrides" not in caplog.text


def test_a_dense_layer_takes_no_other_number_of_poolings(tmp_path):
    folder = write_sentence(tmp_path / "m", "mean", (Step("dense", 8),))
    with pytest.raises(InputError, match=r"pooling max\+mean: the dense layer of this model takes 1 x 32"):
        open_embedder(folder, options=EmbedderOptions(pooling="max+mean"))


def test_a_prompt_stands_before_each_text(asked):
    embedder, bare = open_embedder(asked), open_embedder(asked, options=EmbedderOptions(prompt=""))
    by_hand = {name: bare.embed([text + one for one in TEXTS]) for name, text in PROMPTS.items()}
    assert np.array_equal(embedder.embed(TEXTS), by_hand["query"])
    assert np.array_equal(embedder.embed_queries(TEXTS), by_hand["query"])
    assert np.array_equal(embedder.embed_passages(TEXTS), by_hand["passage"])
    named = open_embedder(asked, options=EmbedderOptions(prompt_name="passage"))
    assert np.array_equal(named.embed(TEXTS), by_hand["passage"])
    assert embedder.fingerprint == named.fingerprint
    assert embedder.num_tokens(TEXTS[0]) == bare.num_tokens(TEXTS[0]) + 1
    with pytest.raises(InputError, match="prompt_name code: .* has no such prompt; its prompts are: query"):
        open_embedder(asked, options=EmbedderOptions(prompt_name="code"))
    with pytest.raises(InputError, match="exclude each other"):
        open_embedder(asked, options=EmbedderOptions(prompt_name="query", prompt="x"))


def test_a_pooling_without_the_prompt_is_refused_with_one(asked, tmp_path):
    folder = shutil.copytree(asked, tmp_path / "m")
    change(folder / "1_Pooling" / "config.json", include_prompt=False)
    assert open_embedder(folder).embed_queries.__self__.embed(TEXTS, "").shape == (5, WIDTH)
    with pytest.raises(InputError, match="leaves the tokens of a prompt out of its pooling"):
        open_embedder(folder).embed_queries(TEXTS)


def test_an_opened_model_packs_its_weights_once(plain):
    state = open_embedder(plain).model.layer.fused_state
    assert state is None or state.is_constant


def test_texts_are_lower_cased_where_the_folder_says_so(plain, tmp_path):
    folder = shutil.copytree(plain, tmp_path / "m")
    change(folder / "sentence_bert_config.json", do_lower_case=True)
    settings = open_embedder(folder).settings
    assert settings.texts_read(["ΑΣ Ab"], "X") == ["xας ab"]
    assert settings.texts_read(["Ab"], "") == ["ab"]


def embed_config(folder, texts, output, **flags):
    places = {"model_path": str(folder), "input_file": str(texts), "output_dir": str(output)}
    return EmbedConfig(device="cpu", **places, **flags)


def test_embed_writes_vectors_as_they_are_and_with_their_prompt(plain, asked, tmp_path):
    texts = write_lines(tmp_path / "texts.txt", TEXTS)
    embed(embed_config(plain, texts, tmp_path / "v"))
    found = open_vectors(tmp_path / "v").rows(0, 5)
    assert np.abs(found - open_embedder(plain).embed(TEXTS)).max() < 2e-3
    assert np.abs(np.linalg.norm(found, axis=1) - 1).min() > 0.1
    assert json.loads((tmp_path / "v" / "vectors.json").read_text())["unit"] is False
    embed(embed_config(asked, texts, tmp_path / "w", prompt_name="passage"))
    about = json.loads((tmp_path / "w" / "vectors.json").read_text())
    assert about["prompt"] == PROMPTS["passage"] and "unit" not in about
    wanted = open_embedder(asked).embed_passages(TEXTS)
    assert np.abs(open_vectors(tmp_path / "w").rows(0, 5) - wanted).max() < 1e-3
    with pytest.raises(InputError, match="prompt=passage and not None|prompt .* None|prompt_name"):
        embed(embed_config(asked, texts, tmp_path / "w"))


def index_of(folder, tmp_path, **flags):
    texts = write_lines(tmp_path / "texts.txt", TEXTS)
    make_index(IndexConfig(str(texts), str(tmp_path / "index"), **{"embedding_model": str(folder), **flags}))
    return tmp_path / "index", json.loads((tmp_path / "index" / "index.json").read_text())


def test_queries_and_passages_of_a_search_have_own_prompts(asked, tmp_path):
    index, manifest = index_of(asked, tmp_path)
    assert manifest["prompt"] == PROMPTS["passage"] and "similarity" not in manifest
    embedder = open_embedder(asked)
    cosines = embedder.embed_queries(TEXTS[:1]) @ embedder.embed_passages(TEXTS).T
    hits = PairSearcher(index, asked).search(TEXTS[0], top_k=5)
    found = {hit.text: hit.score for hit in hits}
    assert np.abs([found[text] for text in TEXTS] - cosines[0]).max() < 1e-6


def test_products_are_compared_where_the_folder_says_so(plain, tmp_path):
    cosines = PairSearcher(index_of(plain, tmp_path)[0], plain).search(TEXTS[0], top_k=1)
    assert cosines[0].score == pytest.approx(1, abs=1e-5)
    folder = shutil.copytree(plain, tmp_path / "m")
    change(folder / SETTINGS, similarity_fn_name="dot")
    index, manifest = index_of(folder, tmp_path, overwrite=True)
    vectors = open_embedder(folder).embed(TEXTS)
    hits = PairSearcher(index, folder, threshold=2.5).search(TEXTS[0], top_k=5)
    products = {text: float(score) for text, score in zip(TEXTS, vectors[0] @ vectors.T) if score >= 2.5}
    assert manifest["similarity"] == "dot" and {hit.text for hit in hits} == set(products)
    assert hits[0].score == pytest.approx(max(products.values()), rel=1e-5)
    change(folder / SETTINGS, similarity_fn_name="manhattan")
    with pytest.raises(InputError, match="compares vectors by their manhattan distance, and only cosine and"):
        index_of(folder, tmp_path, overwrite=True)


def test_an_index_of_stored_vectors_tells_of_another_prompt(asked, tmp_path, capfd):
    texts = write_lines(tmp_path / "texts.txt", TEXTS)
    for name in PROMPTS:
        vectors = tmp_path / name
        embed(embed_config(asked, texts, vectors, prompt_name=name))
        index, manifest = index_of("", tmp_path, vectors=str(vectors), overwrite=True)
        assert manifest["prompt"] == PROMPTS[name]
        capfd.readouterr()
        PairSearcher(index, asked)
        assert ("its texts were read with the prompt" in capfd.readouterr().err) == (name == "query")


def test_an_evaluation_asks_with_the_prompt_of_queries(asked, tmp_path):
    write_matches(tmp_path / "dev.tsv", 30)
    found = []
    for folder in (asked, shutil.copytree(asked, tmp_path / "m")):
        if folder != asked:
            change(folder / SETTINGS, prompts={"query": PROMPTS["query"], "passage": PROMPTS["query"]})
        places = {"model_path": str(folder), "input_file": str(tmp_path / "dev.tsv")}
        output = tmp_path / f"{len(found)}.json"
        evaluate_embedding(EvaluateEmbeddingConfig(device="cpu", **places, output_file=str(output)))
        found.append(json.loads(output.read_text())["metrics"])
        trainer = EmbeddingTrainer(folder, EmbeddingConfig(str(tmp_path / "out"), device="cpu"))
        assert trainer.evaluate(tmp_path / "dev.tsv") == pytest.approx(found[-1], abs=1e-6)
    assert found[0] != found[1]


@pytest.mark.parametrize("pooling, steps", [
    ("max+lasttoken", (Step("dense", 8, activation="gelu"), NORMALIZE)),
    ("weightedmean+mean_sqrt_len_tokens", (Step("truncate", 40),)),
])  # fmt: skip
def test_an_exported_model_computes_the_same(tmp_path, pooling, steps):
    pytest.importorskip("onnxruntime")
    folder = write_sentence(tmp_path / "m", pooling, steps, prompts=PROMPTS)
    export_embedding(ExportEmbeddingConfig(str(folder), str(tmp_path / "x")))
    ours, exported = open_embedder(folder), open_embedder(tmp_path / "x")
    assert np.abs(exported.embed_passages(TEXTS) - ours.embed_passages(TEXTS)).max() < 1e-5
    assert exported.fingerprint == ours.fingerprint
    with pytest.raises(InputError, match="device gpu: this ONNX Runtime has no CUDA"):
        open_embedder(tmp_path / "x", "gpu")
    assert json.loads((tmp_path / "x" / "embedding.json").read_text())["format"] == 2


def test_what_is_no_folder_and_other_labels_are_refused(tmp_path):
    with pytest.raises(InputError, match="none is not a folder; give that of an embedding model"):
        open_embedder(tmp_path / "none")
    folder = write_trained(tmp_path / "m")
    change(folder / "config.json", model_type=None, architectures=None, init_class=None)
    with pytest.raises(InputError, match="neither model_type nor architectures .* write model_type there"):
        open_embedder(folder)
    with pytest.raises(InputError, match="label_map=.* does not name two classes"):
        EvaluateEmbeddingConfig(model_path="model", input_file="dev.tsv", label_map="0=a,1=b,2=c")


def test_training_goes_on_from_a_folder_and_writes_one(tmp_path):
    folder = write_sentence(tmp_path / "m", "cls", (Step("dense", 16),), prompts=PROMPTS, max_seq_len=18)
    write_matches(tmp_path / "train.tsv", 40)
    write_matches(tmp_path / "dev.tsv", 10, seed=1)
    flags = {"model_name_or_path": str(folder), "model_type": None, "from_scratch": False, "max_seq_len": 0}
    run = {"epochs": 1, "eval_freq": 1000, "dims": "4", "save_format": "both", "learning_rate": 1e-3}
    train_embedding(embedding_config(tmp_path, **flags, **run))
    ours = open_embedder(tmp_path / "out")
    theirs = open_embedder(tmp_path / "out" / "best" / "hugging_face")
    settings = ours.settings
    assert (settings.pooling, settings.max_seq_len, settings.dims) == ("cls", 18, (4, 16))
    assert full_prompts(settings) == PROMPTS and settings.is_unit and theirs.settings == settings
    assert ours.fingerprint == theirs.fingerprint
    assert np.abs(ours.embed_queries(TEXTS) - theirs.embed_queries(TEXTS)).max() < 1e-6
    (tmp_path / "out" / "best" / "hugging_face" / "embedding.json").unlink()
    alone = open_embedder(tmp_path / "out" / "best" / "hugging_face")
    assert np.abs(ours.embed(TEXTS) - alone.embed(TEXTS)).max() < 1e-6


def test_the_prompts_of_a_folder_are_trained_with(tmp_path):
    """Anchors are read as queries and the rest as passages: as with the prompts in the texts."""
    folder = write_sentence(tmp_path / "m", prompts=PROMPTS)
    bare = shutil.copytree(folder, tmp_path / "bare")
    change(bare / SETTINGS, prompts={})
    write_matches(tmp_path / "dev.tsv", 10, seed=1)
    rows = [line.split("\t") for line in write_matches(tmp_path / "train.tsv", 40).read_text().splitlines()]
    by_hand = [f"{PROMPTS['query']}{a}\t{PROMPTS['passage']}{b}\t{label}" for a, b, label in rows]
    write_lines(tmp_path / "by_hand.tsv", by_hand)
    losses = []
    for model, train in ((folder, "train"), (bare, "by_hand")):
        flags = {"model_name_or_path": str(model), "train_file": f"{tmp_path}/{train}.tsv", "max_steps": 2}
        flags["output_dir"] = str(tmp_path / f"out-{train}")
        train_embedding(embedding_config(tmp_path, model_type=None, from_scratch=False, dropout=0.0, **flags))
        losses.append([event["loss"] for event in events(tmp_path / f"out-{train}", "train")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6) and len(losses[0]) == 2


def test_vectors_of_embed_stand_for_the_texts_of_their_file(asked, tmp_path):
    """Where they are read with the prompt of the vectors; without mteb, which tests/peer asks itself."""
    texts, about = write_lines(tmp_path / "texts.txt", TEXTS), SimpleNamespace(type="Retrieval", name="Toy")
    places = {"input_file": str(texts), "output_dir": str(tmp_path / "v"), "model_path": str(asked)}
    embed(EmbedConfig(**places, prompt_name="passage"))
    np.save(tmp_path / "v" / "vectors.npy", 2 * np.load(tmp_path / "v" / "vectors.npy"))

    def read(encoder, kind):
        batches = [{"text": TEXTS[:2]}, {"text": TEXTS[2:]}]
        return encoder.encode(batches, task_metadata=about, prompt_type=kind)

    document, query = (SimpleNamespace(value=value) for value in ("document", "query"))
    plain, stored = (MtebEncoder(open_embedder(asked), given) for given in ({}, {tmp_path / "v": texts}))
    assert np.abs(read(stored, document) - 2 * read(plain, document)).max() < 1e-2
    assert np.array_equal(read(stored, query), read(plain, query))
    texts.write_bytes(b"\xff\n")
    with pytest.raises(InputError, match="is not the file that"):
        MtebEncoder(open_embedder(asked), {tmp_path / "v": texts})


@pytest.mark.parametrize("texts, precision", [(["今天"], "fp32"), ([], "bf16")])
def test_nothing_is_compared_with_float32_for_nothing(texts, precision):
    nobody = SimpleNamespace()  # asked for anything it would fail
    log_drift(
        nobody, texts, "absent", "cpu", EmbedderOptions(), KernelFlags(kernels="auto", precision=precision)
    )


# --- a classifier where an embedding model is wanted, and the other way round


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
    with pytest.raises(InputError, match=f"{folder} is an embedding model.*{folder} to serve"):
        load(str(folder), "cpu", 1)


# --- tokens of published folders

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
