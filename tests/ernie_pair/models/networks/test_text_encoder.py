"""The vectors of a trained model: their values, their fingerprint, and what is refused."""

import json

import numpy as np
import paddle
import pytest
from safetensors.numpy import save_file
from tiny_pair import write_model
from tiny_ship import write_trained

from data_tools.files.errors import CheckpointError, InputError, NumbersError
from ernie_pair.embedding.open_embedder import EmbedderOptions, open_embedder
from ernie_pair.inference.embedder import unit_rows
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.weights.weight_files import read_weights

TEXTS = ["今天气很好", "我", "", "你她它" * 30, "昨天很坏"]


def options(**changes):
    return EmbedderOptions(**{"max_seq_len": 20, **changes})


def fingerprint_of(folder, **changes):
    return open_embedder(folder, options=options(**changes)).fingerprint


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_trained(tmp_path_factory.mktemp("encoder") / "model")


def test_vectors_have_length_1_and_do_not_depend_on_the_batch(model):
    embedder = open_embedder(model, options=options())
    found = embedder.embed(TEXTS)
    assert found.shape == (5, 32) and found.dtype == np.float32
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
    assert np.abs(found - alone).max() < 1e-5
    assert embedder.num_cut == 2 and embedder.embed([]).shape == (0, 32)


@pytest.mark.parametrize("family", ["ernie_gram", "bert", "roberta", "electra", "distilbert", "albert"])
@pytest.mark.parametrize("pooling", ["mean", "first_token"])
def test_any_model_family_computes_vectors(tmp_path, family, pooling):
    folder = write_trained(tmp_path / "model", family)
    embedder = open_embedder(folder, options=options(pooling=pooling))
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (5, 32) and np.abs(vectors[0] - vectors[1]).max() > 1e-3


def test_pooling_matches_paddlenlps_hidden_states(model):
    from paddlenlp.transformers import ErnieModel

    theirs = ErnieModel.from_pretrained(str(model))
    theirs.eval()
    embedder = open_embedder(model, options=options(), kernels=KernelFlags("plain"))
    ids = [embedder.model.tokenizer.cls_id, *embedder.model.tokenizer.encode_batch([TEXTS[0]])[0]]
    ids = paddle.to_tensor([[*ids, embedder.model.tokenizer.sep_id]])
    with paddle.no_grad():
        states = theirs(ids, paddle.zeros_like(ids))[0].numpy()[0]
    first = open_embedder(model, options=options(pooling="first_token")).embed(TEXTS[:1])[0]
    mean = embedder.embed(TEXTS[:1])[0]
    assert np.abs(mean - states.mean(axis=0) / np.linalg.norm(states.mean(axis=0))).max() < 1e-5
    assert np.abs(first - states[0] / np.linalg.norm(states[0])).max() < 1e-5


def test_the_fingerprint_is_that_of_the_vectors_alone(model, tmp_path):
    known = fingerprint_of(model)
    assert known == fingerprint_of(model, batch_size=3)
    others = [fingerprint_of(model, pooling="first_token"), fingerprint_of(model, max_seq_len=30)]
    others.append(fingerprint_of(write_trained(tmp_path / "m", initializer_range=0.2)))
    assert len({known, *others}) == 4 and all(len(one) == 64 for one in others)
    arrays = read_weights(model / "model_state.pdparams")
    folder = write_model(tmp_path / "bare", **_config_of(model))
    save_file({k: v for k, v in arrays.items() if "classifier" not in k}, str(folder / "model.safetensors"))
    assert fingerprint_of(folder) == fingerprint_of(model)


def _config_of(folder):
    return json.loads((folder / "config.json").read_text())


REFUSED = {
    "no folder": ({}, "absent", "is not a folder"),
    "an unknown length": ({"dim": 7}, "", "was trained for vectors of length 32"),
    "an unknown pooling": ({"pooling": "median"}, "", "is not one of mean, first_token"),
    "too many tokens": ({"max_seq_len": 500}, "", "is not from 3 to the 128 positions"),
}


@pytest.mark.parametrize("changes, name, reason", REFUSED.values(), ids=REFUSED)
def test_invalid_embedder_options_are_refused(model, changes, name, reason):
    with pytest.raises(InputError, match=reason):
        open_embedder(model / name if name else model, options=options(**changes))


def test_bad_texts_vectors_and_weights_are_refused(model, tmp_path):
    embedder = open_embedder(model, options=options())
    for wrong in ("今天", [1], [None]):
        with pytest.raises(InputError, match="a list of texts"):
            embedder.embed(wrong)
    for wrong in (np.nan, np.inf, 0):
        with pytest.raises(NumbersError, match="the vector of text 1 is NaN, infinite or zero"):
            unit_rows(np.array([[1, 1], [wrong, wrong * 0 if wrong == 0 else 1]], np.float32), "model")
    arrays = read_weights(model / "model_state.pdparams")
    folder = write_model(tmp_path / "bare", **_config_of(model))
    kept = {name: array for name, array in arrays.items() if "layers.0.norm1" not in name}
    save_file(kept, str(folder / "model.safetensors"))
    with pytest.raises(CheckpointError, match="norm1"):
        open_embedder(folder, options=options())
