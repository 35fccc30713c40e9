"""The distillation loss, compared with sums written out in numpy."""

import numpy as np
import paddle
import pytest
from reference_loss import TableModel, cross_entropies
from scipy.special import log_softmax

from ernie_pair.inference.token_rows import Batch
from ernie_pair.pairs.config.distill_config import DistillConfig
from ernie_pair.pairs.distill.distill import DistillLoss, map_layers, soft_losses

IDS = np.array([[1, 5, 2, 7, 2], [1, 6, 2, 8, 2], [1, 4, 2, 3, 2], [1, 9, 2, 3, 2]])
TYPES = np.array([[0, 0, 0, 1, 1]] * 4)
LABELS = np.array([0, -1, 2, -1])
TAUGHT = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
WEIGHTS = np.array([2.0, 1.0, 0.5], dtype=np.float32)
FILES = {"teacher": "t", "train_file": "a", "dev_file": "b", "output_dir": "o", "device": "cpu"}


class Teacher:
    """The logits of TAUGHT, for the rows of IDS in their order."""

    asked = 0

    def __call__(self, ids, types):
        assert np.array_equal(ids.numpy(), IDS)
        self.asked += 1
        return paddle.to_tensor(TAUGHT)


def loss_of(weights=None, teacher=None, **flags):
    return DistillLoss(DistillConfig(**FILES, **flags), teacher, weights)


def soft(logits, temperature=2.0, taught=TAUGHT):
    log_p, log_q = (log_softmax(a.astype(np.float64) / temperature, axis=1) for a in (taught, logits))
    return temperature**2 * (np.exp(log_p) * (log_p - log_q)).sum(axis=1)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_unlabelled_rows_learn_only_from_the_teacher(weights, share):
    model = TableModel()
    loss = loss_of(weights, soft_weight=share, hidden_weight=1.0 if share == 0 else 0.0, temperature=3.0)
    loss.distance = None
    answer = loss(model, Batch(IDS, TYPES, LABELS, TAUGHT))
    logits = model.answer.numpy()
    shares = np.where(LABELS < 0, 1.0, share)
    rows = (1 - shares) * cross_entropies(logits, np.maximum(LABELS, 0)) + shares * soft(logits, 3.0)
    counts = np.ones(4) if weights is None else np.where(LABELS < 0, 1.0, weights[LABELS])
    assert float(answer.loss) == pytest.approx((rows * counts).sum() / counts.sum(), rel=1e-5)
    assert loss.weight_of(Batch(IDS, TYPES, LABELS)) == (1.0 if weights is None else counts.sum())
    right = np.where(LABELS < 0, TAUGHT.argmax(axis=1), LABELS) == logits.argmax(axis=1)
    told = answer.numbers.tolist()
    assert told[2] == right.sum() and answer.rows == 4
    assert told[3] == pytest.approx((soft(logits, 3.0) * counts).sum() / counts.sum(), rel=1e-5)


def test_temperature_does_not_shrink_soft_target_gradients():
    """It is t (q - p), of about the same size at any temperature t: hence the factor t^2 of the loss."""
    logits = paddle.to_tensor(np.zeros((4, 3), np.float32), stop_gradient=False)
    for temperature in (1.0, 4.0):
        soft_losses(logits, paddle.to_tensor(TAUGHT), temperature).sum().backward()
        p = np.exp(log_softmax(TAUGHT.astype(np.float64) / temperature, axis=1))
        np.testing.assert_allclose(logits.grad.numpy(), temperature * (1 / 3 - p), atol=1e-5)
        logits.clear_gradient()


@pytest.mark.parametrize(
    "flags", [{"rdrop_alpha": 1.0}, {"symmetric": "consistency"}, {"symmetric": "average"}, {}]
)
def test_cached_and_live_teacher_logits_give_the_same_loss(flags):
    losses = []
    for teacher, logits in ((None, TAUGHT), (Teacher(), None)):
        answer = loss_of(teacher=teacher, **flags)(TableModel(), Batch(IDS, TYPES, LABELS, logits))
        losses.append(answer.numbers.tolist())
    assert losses[0] == losses[1] and teacher.asked == 1


def test_both_rdrop_passes_are_compared_with_the_teacher():
    model = TableModel()
    answer = loss_of(rdrop_alpha=1.0, soft_weight=1.0)(model, Batch(IDS, TYPES, LABELS, TAUGHT))
    assert float(answer.loss) == pytest.approx(soft(model.answer.numpy()[:4]).mean(), rel=1e-5)
    assert answer.rows == 8


@pytest.mark.parametrize(
    "student, teacher, kind, layers",
    [
        (2, 4, "uniform", [1, 3]),
        (3, 12, "uniform", [3, 7, 11]),
        (3, 5, "uniform", [0, 2, 4]),
        (2, 5, "last", [3, 4]),
        (3, 3, "uniform", [0, 1, 2]),
        (3, 3, "last", [0, 1, 2]),
    ],
)
def test_every_student_layer_maps_to_a_teacher_layer(student, teacher, kind, layers):
    assert map_layers(student, teacher, kind, "it") == layers
