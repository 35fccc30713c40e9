"""Control tokens, added tokens, empty and odd texts on published weights: as in the libraries themselves."""

import json
import shutil
from random import Random

import numpy as np
import paddle
import pytest
from other_libraries.families import different_rows, rows_here
from other_libraries.texts import WITH_SYMBOLS, random_strings, sentences
from safetensors.numpy import load_file, save_file
from tiny_models import change

from ernie_pair.embeddings.open_embedder import open_embedder

MOST = 1e-5
FIRST = 30522  # the size of its vocabulary
ODD = [
    "",
    " ",
    "\u200b",
    "\x00",
    "[PAD]",
    "[PAD] [PAD]",
    "a[PAD]b",
    "[MASK] me",
    "[CLS][SEP]",
    "[UNK]",
    "x [SEP] y",
]
ADDED = [
    "[Q] how do I get a refund",
    "covid19 vaccine",
    "COVID19?",
    "[Q][Q]",
    "xcovid19",
    "[D] [PAD] [Q]",
    "VIP vip",
]
FLAGS = {"lstrip": False, "rstrip": False, "single_word": False}


def odd_texts(count):
    """Texts of every kind above, alone and inside others, strings drawn at random, and long ones."""
    rng, plain = Random(5), sentences(60, seed=3)
    texts = [*ODD, *ADDED, *WITH_SYMBOLS[:20], *random_strings(60, seed=4)]
    inserted = [*ODD, *ADDED]
    while len(texts) < count - 2:
        words = rng.choice(plain).split() or [""]
        words.insert(rng.randrange(len(words) + 1), rng.choice(inserted))
        texts.append(" ".join(words))
    return [*texts[: count - 2], " [PAD] ".join(plain), "[Q] " * 400]


@pytest.fixture(
    scope="module", params=["as it is", "added_tokens.json", "added_tokens_decoder", "additional"]
)
def folder(request, minilm, tmp_path_factory):
    """The published folder, and with tokens beside its tokenizer, for which its embeddings get three rows."""
    folder = tmp_path_factory.mktemp("peer") / "minilm"
    shutil.copytree(minilm, folder)
    if request.param == "as it is":
        return folder
    arrays, name = load_file(folder / "model.safetensors"), "embeddings.word_embeddings.weight"
    rows = np.random.default_rng(0).normal(0, 0.05, (3, 384)).astype(np.float32)
    arrays[name] = np.concatenate([arrays[name], rows])
    save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    change(folder / "config.json", vocab_size=FIRST + 3)
    settings = folder / "tokenizer_config.json"
    (folder / "special_tokens_map.json").unlink()
    if request.param == "additional":
        change(settings, additional_special_tokens=["[Q]", "[D]", "vip"])
        return folder
    (folder / "tokenizer.json").unlink()
    if request.param == "added_tokens.json":
        added = {"[Q]": FIRST, "[D]": FIRST + 1, "covid19": FIRST + 2}
        (folder / "added_tokens.json").write_text(json.dumps(added))
        change(settings, additional_special_tokens=["[Q]", "[D]"])
        return folder
    named = {str(index): (token, True) for index, token in enumerate(["[PAD]"])}
    named.update(
        {"100": ("[UNK]", True), "101": ("[CLS]", True), "102": ("[SEP]", True), "103": ("[MASK]", True)}
    )
    decoder = {
        key: {"content": token, "special": s, "normalized": False, **FLAGS}
        for key, (token, s) in named.items()
    }
    decoder["30522"] = {**FLAGS, "content": "[Q]", "special": True, "normalized": False, "rstrip": True}
    decoder["30523"] = {
        **FLAGS,
        "content": "covid19",
        "special": False,
        "normalized": False,
        "single_word": True,
    }
    decoder["30524"] = {**FLAGS, "content": "VIP", "special": False, "normalized": True}
    change(settings, added_tokens_decoder=decoder)
    return folder


def test_200_texts_have_the_vectors_of_sentence_transformers(newest, folder):
    texts = odd_texts(200)
    assert not different_rows(newest, folder, texts, max_length=256)
    embedder = open_embedder(folder)
    _, arrays = newest.ask("vectors", folder=folder, texts=texts)
    differences = np.abs(embedder.embed(texts) - arrays["vectors"]).max(axis=1)
    worst = int(differences.argmax())
    assert differences[worst] < MOST, (texts[worst], differences[worst])
    assert embedder.num_cut >= 2


def test_50_pairs_have_the_states_of_transformers(newest, folder):
    texts, length = odd_texts(100), 48
    left, right = texts[:50], texts[50:]
    assert not different_rows(newest, folder, left, right, length)
    _, arrays = newest.ask("outputs", folder=folder, texts=left, pairs=right, max_length=length)
    inside = arrays["attention_mask"][..., None]
    there = (arrays["last_hidden_state"] * inside).sum(axis=1) / inside.sum(axis=1)
    batch = rows_here(folder, left, right, length).batch(np.arange(50))
    layer = open_embedder(folder).model.layer
    with paddle.no_grad():
        here = layer(paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids)).numpy()
    assert np.abs(here - there).max() < MOST * max(1, np.abs(there).max())
