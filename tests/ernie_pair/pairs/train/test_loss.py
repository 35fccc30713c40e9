"""The loss of the flags: against its formulas, for classes, scores and candidates; and FGM's step."""

import numpy as np
import paddle
import pytest
from reference_loss import cross_entropies
from scipy.special import log_softmax, logsumexp
from tiny_pair_job import run, tiny_job, weights

from ernie_pair.core.errors import InputError
from ernie_pair.inference.token_rows import Batch
from ernie_pair.pairs.config.pair_config import RANKING_LOSSES, PairConfig
from ernie_pair.pairs.train.loss import Fgm, ListwiseLoss, MarginLoss, PairLoss, SquaredError, ranking_loss_of

IDS = np.arange(1, 16).reshape(5, 3)
BATCH = Batch(IDS, IDS * 0, np.array([0, 2, 1, 2, 0]))
WEIGHTS = np.array([1.0, 2.5, 0.0], dtype=np.float32)


class Model:
    """Logits computed from the ids, with noise on the second half of a doubled batch."""

    def __init__(self, noise=0.0):
        self.noise, self.asked = noise, []
        self.logits = np.random.default_rng(3).normal(size=(16, 3)).astype(np.float32)

    def __call__(self, ids, types):
        self.asked.append(ids.numpy())
        logits = self.logits[ids.numpy()[:, 0]]
        logits[len(BATCH.labels) :] += self.noise * np.arange(3, dtype=np.float32)
        self.answer = paddle.to_tensor(logits, stop_gradient=False)
        return self.answer


def test_without_weights_the_loss_is_the_mean_cross_entropy():
    model = Model()
    answer = PairLoss()(model, BATCH)
    assert len(model.asked) == 1 and np.array_equal(model.asked[0], IDS)
    labels = paddle.to_tensor(BATCH.labels)
    assert float(answer.loss) == float(paddle.nn.functional.cross_entropy(model.answer, labels))
    loss, divergence, right = answer.numbers.tolist()
    assert right == np.sum(model.answer.numpy().argmax(1) == BATCH.labels) and answer.rows == len(
        BATCH.labels
    )
    assert loss == float(answer.loss) and divergence == 0.0 and PairLoss().weight_of(BATCH) == 1.0


def test_each_row_is_weighted_by_its_class():
    model, objective = Model(), PairLoss(class_weights=WEIGHTS)
    answer = objective(model, BATCH)
    weights = WEIGHTS[BATCH.labels]
    expected = (weights * cross_entropies(model.answer.numpy(), BATCH.labels)).sum() / weights.sum()
    assert float(answer.loss) == pytest.approx(expected, rel=1e-6)
    assert objective.weight_of(BATCH) == weights.sum() == 4.5
    answer.loss.backward()
    assert (model.answer.grad.numpy()[BATCH.labels == 2] == 0).all()


def test_rows_of_zero_weight_give_zero_loss_and_gradient():
    only = Batch(IDS[:2], IDS[:2] * 0, np.array([2, 2]))
    model, objective = Model(), PairLoss(class_weights=WEIGHTS)
    answer = objective(model, only)
    answer.loss.backward()
    assert float(answer.loss) == 0.0 and objective.weight_of(only) == 0.0
    assert (model.answer.grad.numpy() == 0).all()


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_rdrop_adds_the_symmetric_divergence_of_two_passes(weights):
    model = Model(noise=0.7)
    answer = PairLoss(rdrop_alpha=3.0, class_weights=weights)(model, BATCH)
    assert np.array_equal(model.asked[0], np.concatenate([IDS, IDS])) and len(model.asked) == 1
    first, second = np.split(model.answer.numpy(), 2)
    log_p, log_q = (log_softmax(logits.astype(np.float64), axis=1) for logits in (first, second))
    both_ways = (np.exp(log_p) * (log_p - log_q)).sum(1) + (np.exp(log_q) * (log_q - log_p)).sum(1)
    entropy = (cross_entropies(first, BATCH.labels) + cross_entropies(second, BATCH.labels)) / 2
    rows = np.ones(5) if weights is None else weights[BATCH.labels]
    _, divergence, right = answer.numbers.tolist()
    assert divergence == pytest.approx((rows * both_ways / 2).sum() / rows.sum(), rel=1e-5)
    expected = (rows * (entropy + 3.0 * both_ways / 2)).sum() / rows.sum()
    assert float(answer.loss) == pytest.approx(expected, rel=1e-5) and divergence > 0.05
    assert right == np.sum(model.answer.numpy().argmax(1) == np.tile(BATCH.labels, 2))
    assert answer.rows == 2 * len(BATCH.labels)


def test_the_divergence_gradient_matches_finite_differences():
    """Compared with finite differences in float64."""
    first = np.random.default_rng(0).normal(size=(2, 3))
    second = first + 0.3

    def loss_of(logits):
        p, q = log_softmax(logits[:2], axis=1), log_softmax(logits[2:], axis=1)
        return np.mean(((np.exp(p) - np.exp(q)) * (p - q)).sum(1)) / 2

    second[:, 0] -= 1.0
    whole = np.concatenate([first, second])
    tensor = paddle.to_tensor(whole.astype(np.float32), stop_gradient=False)
    batch = Batch(IDS[:2], IDS[:2] * 0, np.array([0, 1]))
    gradients = []
    for alpha in (1.0, 3.0):
        PairLoss(rdrop_alpha=alpha)(lambda ids, types: tensor, batch).loss.backward()
        gradients.append(tensor.grad.numpy().copy())
        tensor.clear_gradient()
    slope = (gradients[1] - gradients[0]) / 2
    for place in np.ndindex(*whole.shape):
        step = np.zeros_like(whole)
        step[place] = 1e-5
        assert slope[place] == pytest.approx((loss_of(whole + step) - loss_of(whole - step)) / 2e-5, abs=1e-5)


SCORES = np.array([[0.5], [-1.0], [2.0], [0.0], [3.0]], np.float32)
SCORED_IDS = np.arange(5)[:, None]
QUERIES = np.array([[1, 0], [0, 0], [0, 1], [1, 1], [1, 1]])  # the label and the query of each row


def ask(loss, labels):
    outputs = paddle.to_tensor(SCORES, stop_gradient=False)
    answer = loss(lambda ids, types: outputs[ids[:, 0]], Batch(SCORED_IDS, SCORED_IDS, labels))
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


def of_one_query(loss, scores, labels):
    """The loss of a query by its formula, in loops and float64."""
    log_shares = log_softmax(scores)
    if loss in ("listwise", "listnet"):
        wanted = labels / labels.sum() if loss == "listwise" else np.exp(log_softmax(labels))
        return -(wanted * log_shares).sum()
    gains = {rank: 1 / np.log2(rank + 2) for rank in range(len(scores))}
    ideal = sum(gains[rank] * label for rank, label in enumerate(sorted(labels, reverse=True)))
    rank_of = {place: rank for rank, place in enumerate(np.argsort(-scores))}
    found = []
    for one, other in np.argwhere(labels[:, None] > labels):
        value = max(0.0, 0.7 - scores[one] + scores[other])
        if loss != "margin":
            value = np.log1p(np.exp(scores[other] - scores[one]))
        if loss == "lambdarank":
            value *= (labels[one] - labels[other]) * abs(gains[rank_of[one]] - gains[rank_of[other]]) / ideal
        found.append(value)
    return np.mean(found)


@pytest.mark.parametrize("name", RANKING_LOSSES)
def test_ranking_losses_of_grades_equal_their_formulas(name):
    """Of groups of any size together; the gradient is the slope of the loss."""
    margin = {"margin": 0.7} if name == "margin" else {}
    loss = ranking_loss_of(PairConfig("out", target="ranking", ranking_loss=name, **margin))
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(2, 40, rng.integers(1, 6))
        groups = np.repeat(np.arange(len(sizes)), sizes)
        grades = rng.integers(0, 4, len(groups))
        for group in range(len(sizes)):  # each has an order
            grades[np.flatnonzero(groups == group)[:2]] = [0, 3]
        scores = rng.normal(size=(len(groups), 1)).astype(np.float32)
        outputs = paddle.to_tensor(scores, stop_gradient=False)
        ids = np.arange(len(groups))[:, None]
        batch = Batch(ids, ids, np.stack([grades, groups], axis=1))
        answer = loss(lambda ids, types, outputs=outputs: outputs, batch)
        parts = [
            (scores[groups == group, 0].astype(np.float64), grades[groups == group].astype(np.float64))
            for group in range(len(sizes))
        ]
        wanted = np.mean([of_one_query(name, *part) for part in parts])
        assert float(answer.loss) == pytest.approx(wanted, abs=1e-6, rel=1e-6)
        assert answer.rows == len(sizes)
        assert answer.numbers.tolist()[2] == sum(of[score.argmax()] > 0 for score, of in parts)
        answer.loss.backward()
        assert np.isfinite(outputs.grad.numpy()).all()
        if name != "lambdarank":  # its weights are constants of the gradient
            place, step = int(rng.integers(len(groups))), 1e-5
            mine = groups == groups[place]
            moved = [scores[mine, 0] + sign * step * (np.flatnonzero(mine) == place) for sign in (1, -1)]
            up, down = (of_one_query(name, each, grades[mine].astype(np.float64)) for each in moved)
            slope = (up - down) / (2 * step) / len(sizes)
            assert outputs.grad.numpy()[place, 0] == pytest.approx(slope, abs=1e-5)


EMBEDDING = "ernie.embeddings.word_embeddings.weight"


def embedding_with(gradient):
    table = paddle.nn.Embedding(4, 3)
    table.weight.set_value(np.full((4, 3), 0.1, dtype=np.float32))
    (table.weight * paddle.to_tensor(np.float32(gradient))).sum().backward()
    return table.weight


def moved_by(embedding, epsilon, average=lambda tensor: None):
    """(how far it was moved, how far it is off afterwards)"""
    before = embedding.numpy()
    with Fgm(embedding, epsilon, average).applied():
        within = embedding.numpy()
    return within - before, embedding.numpy() - before


def test_the_fgm_step_has_length_epsilon_and_is_undone_exactly():
    gradient = np.random.default_rng(1).normal(size=(4, 3))
    moved, left = moved_by(embedding_with(gradient), 0.3)
    np.testing.assert_allclose(moved, 0.3 * gradient / np.linalg.norm(gradient), atol=1e-7)
    assert (left == 0).all()


def test_the_step_follows_the_gradient_averaged_over_processes():
    gradient = np.ones((4, 3))

    def average(tensor):
        tensor.set_value(np.arange(12, dtype=np.float32).reshape(4, 3))

    embedding = embedding_with(gradient)
    moved, _ = moved_by(embedding, 1.0, average)
    np.testing.assert_allclose(moved, np.arange(12).reshape(4, 3) / np.sqrt(506), atol=1e-6)
    assert np.array_equal(embedding.grad.numpy(), gradient)  # its own gradient is unchanged


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_a_zero_or_nonfinite_gradient_moves_nothing(bad):
    gradient = np.zeros((4, 3))
    gradient[1, 1] = bad
    moved, left = moved_by(embedding_with(gradient), 0.3)
    assert (moved == 0).all() and (left == 0).all()


def test_the_embedding_is_restored_if_the_second_pass_fails():
    embedding = embedding_with(np.ones((4, 3)))
    before = embedding.numpy()
    with pytest.raises(KeyError), Fgm(embedding, 5.0, lambda tensor: None).applied():
        raise KeyError
    assert np.array_equal(embedding.numpy(), before)


def test_a_frozen_embedding_is_refused(folder):
    def freeze(model):
        model.encoder.embeddings.word_embeddings.weight.stop_gradient = True

    with pytest.raises(
        InputError, match="^fgm_epsilon=0.5 follows the gradient of the word embedding, which"
    ):
        tiny_job(folder, prepare=freeze, fgm_epsilon=0.5)


def test_the_update_adds_the_gradients_of_both_passes(folder):
    plain, both = (tiny_job(folder, dropout=0.0, fgm_epsilon=e) for e in (0.0, 1e-6))
    (first,), (second,) = run(plain, 1), run(both, 1)
    # Such a short step changes nothing: both passes give the same gradient.
    assert second["gradient_norm"] == pytest.approx(2 * first["gradient_norm"], rel=1e-3)
    assert second["loss"] == first["loss"] == pytest.approx(second["adversarial_loss"], rel=1e-5)


def test_the_adversarial_step_increases_the_loss(folder):
    tiny = tiny_job(folder, dropout=0.0, fgm_epsilon=0.05)
    metrics = run(tiny, 20)
    assert all(m["adversarial_loss"] > m["loss"] for m in metrics)
    other = tiny_job(folder, dropout=0.0)
    run(other, 20)
    assert not np.array_equal(weights(tiny.job)[EMBEDDING], weights(other.job)[EMBEDDING])
