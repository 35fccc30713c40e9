"""Single-output models of every family, in PaddleNLP's config format and in that of transformers."""

import json

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F
from paddlenlp.transformers.model_outputs import SequenceClassifierOutput
from tiny_pair import write_model, write_new

from data_tools.files.errors import InputError
from ernie_pair.models.hugging_face.settings import from_their_config, to_their_config
from ernie_pair.models.labels import Labels, labels_in
from ernie_pair.models.networks.classifier import PairClassifier, build_classifier, load_classifier
from ernie_pair.models.source import open_model
from ernie_pair.models.spec import FAMILIES, parse_spec, read_spec

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
    assert biases == ([] if family == "roformerv2" else [[2.5]])  # roformerv2 has no biases
    (tmp_path / "saved").mkdir()
    model.write(tmp_path / "saved", source.vocab_file)
    again, _ = load_classifier(str(tmp_path / "saved"))
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
    theirs = to_their_config(model.spec.config, "bert", {}, "here", "ForSequenceClassification")
    assert theirs["num_labels"] == 1 and theirs["problem_type"] == "regression"
    ours = from_their_config(json.loads(json.dumps(theirs)), "there")
    assert labels_in(ours) == labels and parse_spec(ours).target == labels.target
    # As transformers saves it again: label names instead of their number; unknown keys are kept.
    named = {**theirs, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    named.pop("num_labels")
    assert labels_in(from_their_config(named, "there")) == labels


def test_a_one_label_transformers_config_means_regression(tmp_path):
    model, _ = make(tmp_path, "bert", Labels.numbered(2))
    theirs = to_their_config(model.spec.config, "bert", {}, "here", "ForSequenceClassification")
    assert labels_in(from_their_config(theirs, "there")) == Labels.numbered(2)
    one = {**theirs, "id2label": {"0": "LABEL_0"}}
    assert labels_in(from_their_config(one, "there")) == Labels.scores()


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
