"""SentenceTransformer opens what this package writes, and its vectors are the same."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from other_libraries.texts import sentences  # noqa: E402
from tiny_embedding import embedding_config, write_matches  # noqa: E402
from tiny_pair import CHARACTERS, write_model  # noqa: E402
from tiny_sentence import change, write_sentence  # noqa: E402

from ernie_pair.embedding.embed_config import ExportEmbeddingConfig  # noqa: E402
from ernie_pair.embedding.open_embedder import open_embedder  # noqa: E402
from ernie_pair.embedding.train.train_embedding import train_embedding  # noqa: E402
from ernie_pair.models.commands import ToHuggingFaceConfig, convert_to_hugging_face  # noqa: E402
from ernie_pair.models.embedding_json import NORMALIZE, Step  # noqa: E402
from ernie_pair.score.embeddings.export_embedding import export_embedding  # noqa: E402

MOST = 2e-6  # of numbers up to 1
TEXTS = ["".join(CHARACTERS[place : place + 1 + place % 9]) for place in range(12)] * 2 + ["你她" * 30]
PROMPTS = {"query": TEXTS[1], "document": TEXTS[3]}


def compare(newest, folder, ours, prompt_name=None):
    said, arrays = newest.ask("vectors", folder=folder, texts=TEXTS, prompt_name=prompt_name)
    prompt = None if prompt_name is None else ours.settings.prompts[prompt_name]
    there = arrays["vectors"]
    assert said["max_seq_length"] == ours.max_seq_len
    assert np.abs(ours.embed(TEXTS, prompt) - there).max() < MOST * max(1, np.abs(there).max())


@pytest.mark.parametrize("family", ["ernie", "bert", "roberta"])
def test_a_trained_model_is_opened_there(newest, tmp_path, family):
    write_model(tmp_path / "model", model_type=family, initializer_range=0.2, pad_token_id=0)
    write_matches(tmp_path / "train.tsv", 40)
    write_matches(tmp_path / "dev.tsv", 10, seed=1)
    run = {"epochs": 1, "eval_freq": 1000, "dims": "8", "learning_rate": 1e-3, "pooling": "cls+mean"}
    train_embedding(embedding_config(tmp_path, **run, model_type=family, save_format="hf"))
    ours = open_embedder(tmp_path / "out")
    assert ours.settings.dims == (8, 64)
    compare(newest, tmp_path / "out" / "best", ours)


def test_a_converted_model_is_opened_there(newest, tmp_path):
    write_model(tmp_path / "model", initializer_range=0.2, hidden_act="gelu")
    write_matches(tmp_path / "train.tsv", 40)
    write_matches(tmp_path / "dev.tsv", 10, seed=1)
    train_embedding(embedding_config(tmp_path, epochs=1, eval_freq=1000))
    convert_to_hugging_face(ToHuggingFaceConfig(str(tmp_path / "out"), str(tmp_path / "theirs")))
    ours = open_embedder(tmp_path / "out")
    compare(newest, tmp_path / "theirs", ours)
    assert open_embedder(tmp_path / "theirs").fingerprint == ours.fingerprint


STEPS = {
    "last_token+max": (
        Step("dense", 8, activation="silu"),
        NORMALIZE,
        Step("dense", 6, bias=False, activation="identity", residual=True),
    ),
    "weighted_mean+mean_sqrt_len+first_token": (Step("truncate", 50),),
    "mean": (Step("dense", 32, activation="relu", residual=True), NORMALIZE),
}


@pytest.mark.parametrize("pooling, steps", STEPS.items(), ids=STEPS)
@pytest.mark.parametrize("prompt_name", [None, *PROMPTS])
def test_modules_and_prompts_are_the_same_there(newest, tmp_path, pooling, steps, prompt_name):
    folder = write_sentence(tmp_path / "m", pooling, steps, prompts=PROMPTS, default_prompt="query")
    compare(newest, folder, open_embedder(folder), prompt_name)


VARIANTS = {
    "cls": (["cls"], False),
    "max": (["max"], True),
    "root": (["mean_sqrt_len_tokens"], True),
    "last": (["lasttoken"], False),
    "weighted": (["weightedmean"], False),
    "several": (["lasttoken", "cls", "mean"], False),
}


@pytest.mark.parametrize("modes, is_unit", VARIANTS.values(), ids=VARIANTS)
def test_a_published_model_with_other_modules(newest, minilm, tmp_path, modes, is_unit):
    for path in minilm.iterdir():
        if path.is_file():
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "modules.json").unlink()
    modules = json.loads((minilm / "modules.json").read_text())[: 3 if is_unit else 2]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    config = {"embedding_dimension": 384, "pooling_mode": modes, "include_prompt": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    (tmp_path / "2_Normalize").mkdir()
    texts = [*sentences(20), " ".join(sentences(40))]
    _, arrays = newest.ask("vectors", folder=tmp_path, texts=texts)
    there = arrays["vectors"]
    assert np.abs(open_embedder(tmp_path).embed(texts) - there).max() < MOST * max(1, np.abs(there).max())


def test_a_published_model_is_exported(newest, minilm, tmp_path):
    pytest.importorskip("paddle2onnx")
    texts = sentences(20)
    _, arrays = newest.ask("vectors", folder=minilm, texts=texts)
    export_embedding(ExportEmbeddingConfig(str(minilm), str(tmp_path / "x")))
    exported = open_embedder(tmp_path / "x")
    assert np.abs(exported.embed(texts) - arrays["vectors"]).max() < MOST
    assert exported.fingerprint == open_embedder(minilm).fingerprint


def test_a_plain_encoder_is_asked_by_its_mean(newest, tmp_path):
    folder = newest.make(tmp_path / "encoder", "bert")
    change(folder / "tokenizer_config.json", model_max_length=None)
    texts = [*sentences(20), " ".join(sentences(9))]
    said, arrays = newest.ask("vectors", folder=folder, texts=texts)
    ours = open_embedder(folder)
    assert ours.max_seq_len == said["max_seq_length"]
    there = arrays["vectors"]
    assert np.abs(ours.embed(texts) - there).max() < MOST * max(1, np.abs(there).max())
