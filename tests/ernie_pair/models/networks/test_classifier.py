"""The pair classifier compared with PaddleNLP's own, and the weights it accepts or rejects."""

import pickle

import numpy as np
import paddle
import pytest
from paddlenlp import transformers
from tiny_pair import VOCAB, write_model

from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.models.families import FAMILIES
from ernie_pair.models.networks.classifier import build_classifier, load_classifier, load_initial_weights
from ernie_pair.models.source import open_model
from ernie_pair.runtime.device import quiet_libraries
from ernie_pair.weights.weight_files import read_weights

PRETRAINED = ("ernie", "ernie_gram")

quiet_libraries()
IDS = paddle.to_tensor([[1, 5, 6, 2, 7, 8, 2], [1, 9, 2, 4, 2, 0, 0]])
TYPES = paddle.to_tensor([[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0]])


def source_of(folder, family="ernie", from_scratch=False):
    return open_model(str(folder), model_type=family, from_scratch=from_scratch)


def fresh(folder, family="ernie", seed=7, dropout=0.1):
    return build_classifier(source_of(write_model(folder), family, from_scratch=True), seed, dropout)


def class_of(family, kind):
    return getattr(transformers, FAMILIES[family].class_start + kind)


def peer(family, kind, **changes):
    settings = {"vocab_size": len(VOCAB), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    settings.update(intermediate_size=64, max_position_embeddings=128, type_vocab_size=2, **changes)
    if family == "ernie_gram":
        settings["embedding_size"] = 32
    config = class_of(family, "Config")(**settings)
    return class_of(family, kind)(config)


def save_peer(model, folder):
    model.save_pretrained(str(folder))
    write_vocab = "".join(f"{token}\n" for token in VOCAB)
    (folder / "vocab.txt").write_text(write_vocab, encoding="utf-8")
    return folder


def logits_of(model):
    model.eval()
    with paddle.no_grad():
        return model(IDS, TYPES).numpy()


def test_weights_saved_inside_data_parallel_load_as_their_own(tmp_path, caplog):
    model, folder = fresh(tmp_path / "m"), tmp_path / "saved"
    folder.mkdir()
    model.write(folder, tmp_path / "m" / "vocab.txt")
    (weights,) = folder.glob("*.pdparams")
    arrays = read_weights(weights)
    weights.write_bytes(pickle.dumps({f"module.{name}": array for name, array in arrays.items()}))
    caplog.set_level("INFO")
    assert np.array_equal(logits_of(load_classifier(str(folder))[0]), logits_of(model))
    assert "all names begin with module." in caplog.text


@pytest.mark.parametrize("family", PRETRAINED)
def test_logits_are_those_of_paddlenlp_to_the_bit(tmp_path, family):
    model, folder = fresh(tmp_path / "m", family), tmp_path / "saved"
    folder.mkdir()
    model.write(folder, tmp_path / "m" / "vocab.txt")
    theirs = class_of(family, "ForSequenceClassification").from_pretrained(str(folder))
    again, vocab_file = load_classifier(str(folder))
    assert vocab_file == folder / "vocab.txt"
    assert np.array_equal(logits_of(theirs), logits_of(model))
    assert np.array_equal(logits_of(again), logits_of(model))
    theirs = peer(family, "ForSequenceClassification")
    ours, _ = load_classifier(str(save_peer(theirs, tmp_path / "theirs")))
    assert np.array_equal(logits_of(theirs), logits_of(ours))


def test_pretraining_heads_are_ignored_with_a_message(tmp_path):
    theirs = peer("ernie", "ForPretraining")
    model = fresh(tmp_path / "m")
    said = load_initial_weights(model, source_of(save_peer(theirs, tmp_path / "pretrained")))
    assert "the classifier is new" in said
    assert "weights of the pretraining heads are ignored" in said
    mine, its = model.state_dict(), theirs.state_dict()
    shared = [name for name in mine if name.startswith("ernie.")]
    assert all(np.array_equal(mine[name].numpy(), its[name].numpy()) for name in shared)


def test_starting_without_weights_needs_from_scratch(tmp_path):
    folder = write_model(tmp_path / "m")
    with pytest.raises(InputError, match="holds no weights .* from_scratch=True"):
        source_of(folder)
    said = load_initial_weights(fresh(folder), source_of(folder, from_scratch=True))
    assert said == "start from random weights (--from_scratch true)"


@pytest.mark.parametrize("kind", ["ForSequenceClassification", "Model"])
def test_weights_of_the_other_family_are_refused(tmp_path, kind):
    folder = save_peer(peer("ernie", kind), tmp_path / "ernie")
    with pytest.raises(CheckpointError, match="holds ernie weights; leave model_type out"):
        source_of(folder, "ernie_gram")


@pytest.mark.parametrize("lost", ["ernie.pooler.dense.bias", "classifier.bias"])
def test_a_file_with_a_weight_missing_is_refused(tmp_path, lost):
    theirs = peer("ernie", "ForSequenceClassification")
    folder = save_peer(theirs, tmp_path / "theirs")
    state = {name: value for name, value in theirs.state_dict().items() if name != lost}
    paddle.save(state, str(folder / "model_state.pdparams"))
    with pytest.raises(CheckpointError, match=rf"1 missing: {lost}"):
        load_initial_weights(fresh(tmp_path / "m"), source_of(folder))


@pytest.mark.parametrize("fault", ["damaged", "another size", "no classifier", "the other family"])
def test_a_file_that_does_not_fit_is_refused(tmp_path, fault):
    kind = "Model" if fault == "no classifier" else "ForSequenceClassification"
    folder = save_peer(peer("ernie", kind), tmp_path / "theirs")
    if fault == "damaged":
        path = folder / "model_state.pdparams"
        path.write_bytes(path.read_bytes()[:1000])
        reason = "is damaged"
    elif fault == "another size":
        write_model(folder, hidden_size=48, model_type="ernie")
        reason = r"of another shape: .*\(35, 32\) instead of \(35, 48\)"
    elif fault == "no classifier":
        reason = "holds no classifier"
    else:
        write_model(folder)  # a config.json that names none
        reason = r"39 missing: ernie_gram\.embeddings.* unknown: ernie\.emb"
    with pytest.raises(CheckpointError, match=reason):
        if fault == "the other family":
            load_initial_weights(fresh(tmp_path / "m", "ernie_gram"), source_of(folder, "ernie_gram"))
        else:
            load_classifier(str(folder))


def test_a_path_without_a_model_is_refused(tmp_path):
    with pytest.raises(InputError, match="model_path .* is not a folder"):
        load_classifier(str(tmp_path / "absent"))
    with pytest.raises(InputError, match="no config.json and no vocab.txt; .* vocab.txt or tokenizer.json$"):
        load_classifier(str(tmp_path))
    with pytest.raises(InputError, match="no config.json .*, and ernie-pair new-model creates one$"):
        open_model(str(tmp_path), model_type="ernie", from_scratch=True)


@pytest.mark.parametrize("changes", [{"hidden_size": 33}, {"num_hidden_layers": "two"}, {"num_labels": 1}])
def test_an_invalid_model_config_is_refused(tmp_path, changes):
    with pytest.raises(InputError, match=r"config\.json"):
        source = source_of(write_model(tmp_path / "m", **changes), from_scratch=True)
        build_classifier(source, seed=0, dropout=0.1)


def test_the_seed_determines_the_initial_weights(tmp_path):
    first, same, other = (fresh(tmp_path / "m", seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(logits_of(first), logits_of(same))
    assert not np.array_equal(logits_of(first), logits_of(other))


@pytest.mark.parametrize("family", PRETRAINED)
def test_dropout_sets_all_three_rates(tmp_path, family):
    model = fresh(tmp_path / "m", family, dropout=0.25)
    layer = model.encoder.encoder.layers[0]
    assert [model.dropout.p, layer.dropout1.p, layer.self_attn.dropout] == [0.25, 0.25, 0.25]
