"""FGM: the step that moves the embedding, and that it is undone."""

import numpy as np
import paddle
import pytest
from tiny_pair_job import run, tiny_job, weights, write_files

from data_tools.files.errors import InputError
from ernie_pair.pair.train.loss import Fgm

EMBEDDING = "ernie.embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("tiny"))


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
