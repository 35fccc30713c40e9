"""A PairClassifier is asked, and answers, as PaddleNLP's classifiers are and do."""

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F
from paddlenlp.transformers.model_outputs import SequenceClassifierOutput
from tiny_pair import write_model

from data_tools.files.errors import InputError
from ernie_pair.models.labels import Labels
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.spec import read_spec

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


def test_without_token_types_all_are_zero(build):
    model, (ids, _) = build(), tensors()
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


def test_return_dict_gives_the_object_of_paddlenlp(build):
    model, (ids, types) = build(), tensors()
    found = model(ids, types, labels=paddle.to_tensor([1, 0]), return_dict=True)
    assert isinstance(found, SequenceClassifierOutput)
    assert float(found.loss) == float(model(ids, types, labels=paddle.to_tensor([1, 0]))[0])
    assert model(ids, types, return_dict=True).loss is None


def test_the_loss_of_regression_is_the_squared_error(build):
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
