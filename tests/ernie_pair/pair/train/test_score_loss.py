"""The losses of regression and ranking models, compared with NumPy."""

import numpy as np
import paddle
import pytest
from scipy.special import logsumexp

from ernie_pair.inference.token_rows import Batch
from ernie_pair.pair.train.loss import ListwiseLoss, MarginLoss, SquaredError

SCORES = np.array([[0.5], [-1.0], [2.0], [0.0], [3.0]], np.float32)
IDS = np.arange(5)[:, None]
QUERIES = np.array([[1, 0], [0, 0], [0, 1], [1, 1], [1, 1]])  # the label and the query of each row


def ask(loss, labels):
    outputs = paddle.to_tensor(SCORES, stop_gradient=False)
    answer = loss(lambda ids, types: outputs[ids[:, 0]], Batch(IDS, IDS, labels))
    answer.loss.backward()
    return answer, outputs.grad.numpy()[:, 0]


def test_regression_loss_is_the_mean_squared_error():
    labels = np.array([0.0, 1.0, 2.5, 0.0, 4.0])
    answer, gradient = ask(SquaredError(), labels)
    errors = SCORES[:, 0] - labels
    assert float(answer.loss) == pytest.approx((errors**2).mean()) and answer.rows == 5
    assert answer.numbers.tolist() == pytest.approx([(errors**2).mean(), 0.0, np.abs(errors).sum()])
    assert gradient == pytest.approx(2 * errors / 5)


def test_listwise_is_cross_entropy_over_the_candidates():
    answer, gradient = ask(ListwiseLoss(), QUERIES)
    first = logsumexp(SCORES[:2]) - 0.5
    second = logsumexp(SCORES[2:]) - (0.0 + 3.0) / 2
    assert float(answer.loss) == pytest.approx((first + second) / 2, abs=1e-6)
    assert answer.rows == 2 and answer.numbers.tolist()[2] == 2.0
    assert np.isfinite(gradient).all() and gradient[:2].sum() == pytest.approx(0, abs=1e-6)


def test_margin_loss_averages_the_missing_margins():
    answer, gradient = ask(MarginLoss(1.25), QUERIES)
    # 0.5 is 1.5 above -1; 0 is 3.25 short of being 1.25 above 2, and 3 is 0.25 short of it.
    assert float(answer.loss) == pytest.approx((0.0 + (3.25 + 0.25) / 2) / 2)
    assert gradient == pytest.approx([0, 0, 0.5, -0.25, -0.25])


def test_a_wrong_top_candidate_is_not_a_hit():
    labels = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [0, 1]])
    assert ask(ListwiseLoss(), labels)[0].numbers.tolist()[2] == 0.0
