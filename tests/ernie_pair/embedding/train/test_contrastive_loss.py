"""The loss of a step against the formula in numpy, and its gradient against finite differences."""

import numpy as np
import paddle
import pytest

from ernie_pair.embedding.train.contrastive import StepTexts, contrastive_loss

TEMPERATURE = 0.2


def step_of(num_pairs=5, num_hard=3, hidden=()):
    is_hidden = np.zeros((num_pairs, num_pairs + num_hard), dtype=bool)
    for place in hidden:
        is_hidden[place] = True
    return StepTexts(num_pairs, np.arange(2 * num_pairs + num_hard), is_hidden)


def expected(vectors, step, dim):
    rows = vectors[:, :dim].astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    scores = rows[: step.num_pairs] @ rows[step.num_pairs :].T / TEMPERATURE
    weights = np.where(step.is_hidden, 0, np.exp(scores))
    own = np.arange(step.num_pairs)
    return float(-np.log(weights[own, own] / weights.sum(axis=1)).mean())


def vectors_of(seed=0, rows=13, dim=8):
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


@pytest.mark.parametrize("hidden", [(), ((0, 1), (2, 5), (4, 7))])
@pytest.mark.parametrize("dims", [(8,), (2, 4, 8)])
def test_the_loss_matches_the_formula(hidden, dims):
    vectors, step = vectors_of(), step_of(hidden=hidden)
    found = contrastive_loss(paddle.to_tensor(vectors), step, dims, TEMPERATURE)
    wanted = np.mean([expected(vectors, step, dim) for dim in dims])
    assert float(found[0]) == pytest.approx(wanted, rel=1e-5)


def test_a_masked_candidate_has_no_gradient():
    step = step_of(hidden=[(row, 6) for row in range(5)])
    vectors = paddle.to_tensor(vectors_of(), stop_gradient=False)
    contrastive_loss(vectors, step, (8,), TEMPERATURE)[0].backward()
    gradient = vectors.grad.numpy()
    assert np.abs(gradient[5 + 6]).max() < 1e-20 and gradient[5 + 5].any()


def test_the_gradient_matches_finite_differences():
    step, vectors = step_of(hidden=((1, 3),)), vectors_of(1)
    tensor = paddle.to_tensor(vectors, stop_gradient=False)
    contrastive_loss(tensor, step, (4, 8), TEMPERATURE)[0].backward()
    for place in ((0, 0), (7, 3), (12, 6)):
        moved = [vectors.astype(np.float64).copy() for _ in "ab"]
        moved[0][place] += 1e-5
        moved[1][place] -= 1e-5
        up, down = (np.mean([expected(one, step, dim) for dim in (4, 8)]) for one in moved)
        assert tensor.grad.numpy()[place] == pytest.approx((up - down) / 2e-5, rel=1e-3, abs=1e-6)


def test_right_counts_anchors_whose_positive_ranks_first():
    vectors = np.concatenate([np.eye(5, 8), np.eye(5, 8), np.zeros((3, 8))]).astype(np.float32)
    vectors[10:, 7] = 1
    assert float(contrastive_loss(paddle.to_tensor(vectors), step_of(), (8,), TEMPERATURE)[1]) == 5
    vectors[[5, 6]] = vectors[[6, 5]]
    assert float(contrastive_loss(paddle.to_tensor(vectors), step_of(), (8,), TEMPERATURE)[1]) == 3
