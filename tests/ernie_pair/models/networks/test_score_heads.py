"""What models answer: one score, logits and losses as in PaddleNLP, and the vectors of texts."""

import json

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F
from paddlenlp.transformers.model_outputs import SequenceClassifierOutput
from safetensors.numpy import save_file
from tiny_pair import write_model, write_new
from tiny_ship import write_trained

from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.embeddings.open_embedder import EmbedderOptions, open_embedder
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.families import FAMILIES
from ernie_pair.models.hugging_face import config_from_hf, config_to_hf
from ernie_pair.models.labels import Labels, labels_in
from ernie_pair.models.networks.classifier import PairClassifier, build_classifier, load_classifier
from ernie_pair.models.source import open_model
from ernie_pair.models.spec import parse_spec, read_spec
from ernie_pair.runtime.processes.world import seed_of
from ernie_pair.weights.weight_files import read_weights

SCORED = Labels.scores((1.0, 4.0))


def make(tmp_path, family, labels):
    source = open_model(str(write_new(tmp_path / "model", family)), model_type=family, from_scratch=True)
    spec = source.spec.with_labels(labels)
    return build_classifier(type(source)(source.name, spec, source.vocab_file, None), 0, 0.0), source


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_outputs_one_score_and_can_be_reloaded(tmp_path, family):
    model, source = make(tmp_path, family, SCORED)
    ids = paddle.to_tensor(np.array([[1, 5, 2, 6, 2]]))
    model.eval()
    outputs = model(ids, paddle.zeros_like(ids)).numpy()
    assert outputs.shape == (1, 1)
    biases = [p.numpy().tolist() for name, p in model.named_parameters() if name == model._output_bias()]
    assert biases == [[2.5]]
    (tmp_path / "saved").mkdir()
    model.write(tmp_path / "saved", source.vocab_file)
    again, _ = load_classifier(str(tmp_path / "saved"))
    drawn = paddle.uniform([4]).tolist()
    paddle.seed(seed_of(0))  # which it begins with, and draws nothing that it would read then
    assert drawn == paddle.uniform([4]).tolist()
    assert again.spec.labels == SCORED
    assert np.array_equal(again(ids, paddle.zeros_like(ids)).numpy(), outputs)


def test_ranking_biases_freeze_and_new_labels_replace_old_ones(tmp_path):
    model, _ = make(tmp_path, "ernie", Labels.of_candidates())
    still = [name for name, parameter in model.named_parameters() if parameter.stop_gradient]
    assert still == ["classifier.bias"]
    spec = parse_spec({"vocab_size": 9, "num_labels": 2, "id2label": {"0": "no", "1": "yes"}})
    scored = spec.with_labels(SCORED)
    assert scored.target == "regression" and "id2label" not in scored.config
    back = scored.with_labels(Labels.numbered(3))
    assert back.target == "classification" and back.num_labels == 3
    assert not {"label_range", "problem_type", "pair_target"} & back.config.keys()


@pytest.mark.parametrize("labels", [SCORED, Labels.scores(), Labels.of_candidates()])
def test_transformers_reads_one_output_as_regression(tmp_path, labels):
    model, _ = make(tmp_path, "bert", labels)
    theirs = config_to_hf(model.spec.config, "bert", {}, "here", "ForSequenceClassification")
    assert theirs["num_labels"] == 1 and theirs["problem_type"] == "regression"
    ours = config_from_hf(json.loads(json.dumps(theirs)), "there")
    assert labels_in(ours) == labels and parse_spec(ours).target == labels.target
    # As transformers saves it again: label names instead of their number; unknown keys are kept.
    named = {**theirs, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    named.pop("num_labels")
    assert labels_in(config_from_hf(named, "there")) == labels


def test_a_one_label_transformers_config_means_regression(tmp_path):
    model, _ = make(tmp_path, "bert", Labels.numbered(2))
    theirs = config_to_hf(model.spec.config, "bert", {}, "here", "ForSequenceClassification")
    assert labels_in(config_from_hf(theirs, "there")) == Labels.numbered(2)
    one = {**theirs, "id2label": {"0": "LABEL_0"}}
    assert labels_in(config_from_hf(one, "there")) == Labels.scores()


@pytest.mark.parametrize("value", ["0,5", [5, 0], [0], [0, "5"], [0, float("inf")]])
def test_an_invalid_label_range_in_config_json_is_refused(value):
    with pytest.raises(InputError, match="label_range is .*, and takes the lowest and the highest label"):
        parse_spec({"vocab_size": 9, "num_labels": 1, "problem_type": "regression", "label_range": value})


# --- asked and answering as the classifiers of PaddleNLP


IDS = np.array([[1, 5, 6, 2, 7, 2], [1, 5, 2, 7, 2, 0]])
TYPES = np.array([[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0]])


@pytest.fixture
def build(tmp_path):
    def make(labels=None):
        folder = write_model(tmp_path / "model")
        spec = read_spec(folder / "config.json", folder / "vocab.txt").replace(model_type="ernie")
        paddle.seed(0)
        model = PairClassifier("ernie", spec if labels is None else spec.with_labels(labels))
        model.eval()
        return model

    return make


def tensors():
    return paddle.to_tensor(IDS), paddle.to_tensor(TYPES)


def test_without_labels_the_answer_is_logits_alone(build):
    model, (ids, types) = build(), tensors()
    expected = model(ids, types).numpy()
    assert expected.shape == (2, 2)
    mask = paddle.to_tensor((IDS != 0).astype(np.int64))
    asked = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask, "return_dict": False}
    assert np.array_equal(model(**asked).numpy(), expected)
    assert np.array_equal(model(ids, types, None, mask.astype("bool")).numpy(), expected)
    assert np.array_equal(model(ids).numpy(), model(ids, paddle.zeros_like(ids)).numpy())


@pytest.mark.parametrize("shape", [[2], [2, 1]])
def test_with_labels_the_answer_is_loss_and_logits(build, shape):
    model, (ids, types) = build(), tensors()
    labels = paddle.to_tensor([1, 0]).reshape(shape)
    loss, logits = model(ids, types, labels=labels)
    assert np.array_equal(logits.numpy(), model(ids, types).numpy())
    assert float(loss) == float(F.cross_entropy(logits, paddle.to_tensor([1, 0])))
    loss.backward()
    assert model.classifier.weight.grad is not None


def test_return_dict_and_regression_answer_as_in_paddlenlp(build):
    model, (ids, types) = build(), tensors()
    found = model(ids, types, labels=paddle.to_tensor([1, 0]), return_dict=True)
    assert isinstance(found, SequenceClassifierOutput)
    assert float(found.loss) == float(model(ids, types, labels=paddle.to_tensor([1, 0]))[0])
    assert model(ids, types, return_dict=True).loss is None
    model, (ids, types) = build(Labels.scores((0.0, 5.0))), tensors()
    loss, outputs = model(ids, types, labels=paddle.to_tensor([1.0, 4.0]))
    wanted = np.mean((outputs.numpy()[:, 0] - [1.0, 4.0]) ** 2)
    assert float(loss) == pytest.approx(wanted)


def test_what_would_be_ignored_is_refused_in_one_line(build):
    model, (ids, types) = build(), tensors()
    with pytest.raises(InputError, match="position_ids: the model counts the positions itself"):
        model(ids, types, position_ids=types)
    for mask in (paddle.ones_like(ids), paddle.ones([2, 1, 1, 6])):
        with pytest.raises(InputError, match="attention_mask is not 1 on the tokens and 0 on the padding"):
            model(ids, types, attention_mask=mask)
    with pytest.raises(InputError, match="labels: a model for ranking learns from all candidates"):
        build(Labels.of_candidates())(ids, types, labels=paddle.to_tensor([1, 0]))


# --- the vectors of a trained model


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
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_any_model_family_computes_vectors(tmp_path, family, pooling):
    folder = write_trained(tmp_path / "model", family)
    embedder = open_embedder(folder, options=options(pooling=pooling))
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (5, 32) and np.abs(vectors[0] - vectors[1]).max() > 1e-3


def test_pooling_matches_paddlenlps_hidden_states(model):
    from paddlenlp.transformers import ErnieModel

    theirs = ErnieModel.from_pretrained(str(model))
    theirs.eval()
    embedder = open_embedder(model, options=options(), kernels=KernelFlags(kernels="plain"))
    ids = [embedder.model.tokenizer.cls_id, *embedder.model.tokenizer.encode_batch([TEXTS[0]])[0]]
    ids = paddle.to_tensor([[*ids, embedder.model.tokenizer.sep_id]])
    with paddle.no_grad():
        states = theirs(ids, paddle.zeros_like(ids))[0].numpy()[0]
    first = open_embedder(model, options=options(pooling="cls")).embed(TEXTS[:1])[0]
    mean = embedder.embed(TEXTS[:1])[0]
    assert np.abs(mean - states.mean(axis=0) / np.linalg.norm(states.mean(axis=0))).max() < 1e-5
    assert np.abs(first - states[0] / np.linalg.norm(states[0])).max() < 1e-5


def test_the_fingerprint_is_that_of_the_vectors_alone(model, tmp_path):
    known = fingerprint_of(model)
    assert known == fingerprint_of(model, batch_size=3)
    others = [fingerprint_of(model, pooling="cls"), fingerprint_of(model, max_seq_len=30)]
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
    "an unknown pooling": ({"pooling": "median"}, "", "is not one of mean, cls"),
    "too many tokens": ({"max_seq_len": 500}, "", "is not from 3 to the 128 positions"),
}


@pytest.mark.parametrize("changes, name, reason", REFUSED.values(), ids=REFUSED)
def test_invalid_embedder_options_are_refused(model, changes, name, reason):
    with pytest.raises(InputError, match=reason):
        open_embedder(model / name if name else model, options=options(**changes))


def test_weights_without_a_layer_norm_are_refused(model, tmp_path):
    arrays = read_weights(model / "model_state.pdparams")
    folder = write_model(tmp_path / "bare", **_config_of(model))
    kept = {name: array for name, array in arrays.items() if "layers.0.norm1" not in name}
    save_file(kept, str(folder / "model.safetensors"))
    with pytest.raises(CheckpointError, match="norm1"):
        open_embedder(folder, options=options())
