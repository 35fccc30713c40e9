"""The losses of train-embedding are those of sentence-transformers, on the same vectors."""

import numpy as np
import paddle
import pytest
from other_libraries.families import scores_there
from other_libraries.texts import sentences

from ernie_pair.embeddings.train.contrastive import StepTexts, step_loss
from ernie_pair.embeddings.train.embedding_config import EmbeddingConfig
from ernie_pair.embeddings.train.objectives import GradedStep, TaughtStep, scores_of_teacher
from ernie_pair.training.process_group import ProcessGroup

MOST = 1e-6  # of a loss, and of the largest number of its gradient, in proportion
TEMPERATURE = 0.05
PAIRS = 12


def compare(newest, name, step, columns, labels=None):
    there, arrays = newest.ask("loss", name=name, vectors=columns.tolist(), labels=labels, scale=20.0)
    rows = paddle.to_tensor(columns.reshape(-1, columns.shape[2]), stop_gradient=False)
    loss, right = step_loss(rows, step, (columns.shape[2],), TEMPERATURE)
    loss.backward()
    assert float(loss) == pytest.approx(there, rel=MOST, abs=MOST)
    apart = np.abs(rows.grad.numpy() - arrays["gradient"].reshape(rows.shape)).max()
    assert apart <= 5 * MOST * np.abs(arrays["gradient"]).max() and np.abs(arrays["gradient"]).max() > 0
    assert 0 <= float(right) <= PAIRS


def split_columns(seed, count, dim=16):
    return np.random.default_rng(seed).normal(size=(count, PAIRS, dim)).astype(np.float32)


@pytest.mark.parametrize("dim", [16, 15])  # an odd one gets a zero
@pytest.mark.parametrize("name", ["CoSENTLoss", "AnglELoss"])
@pytest.mark.parametrize("levels", [3, 100])  # with ties, and with almost none
def test_the_losses_of_graded_pairs_are_theirs(newest, name, levels, dim):
    columns = split_columns(levels, 2, dim)
    scores = np.random.default_rng(1).integers(levels, size=PAIRS) / np.float32(levels)
    step = GradedStep(PAIRS, np.arange(2 * PAIRS), scores, name == "AnglELoss")
    compare(newest, name, step, columns, scores.tolist())


@pytest.mark.parametrize("negatives", [1, 3])
@pytest.mark.parametrize("name", ["MarginMSELoss", "DistillKLDivLoss"])
def test_the_losses_of_a_teacher_are_theirs(newest, name, negatives):
    columns = split_columns(negatives, 2 + negatives)
    taught = (4 * np.random.default_rng(2).normal(size=(PAIRS, 1 + negatives))).astype(np.float32)
    candidates = np.arange(PAIRS, (2 + negatives) * PAIRS).reshape(1 + negatives, PAIRS).T
    step = TaughtStep(PAIRS, np.arange(columns[..., 0].size), candidates, taught, name == "DistillKLDivLoss")
    compare(newest, name, step, columns, taught.tolist())


@pytest.mark.parametrize("negatives", [0, 2])
def test_the_loss_of_in_batch_negatives_is_theirs(newest, negatives):
    columns = split_columns(negatives, 2 + negatives)
    is_hidden = np.zeros((PAIRS, (1 + negatives) * PAIRS), bool)
    step = StepTexts(PAIRS, np.arange(columns[..., 0].size), is_hidden)
    compare(newest, "MultipleNegativesRankingLoss", step, columns)


def test_a_published_cross_encoder_teaches_its_logits(newest, tmp_path):
    folder = newest.make(tmp_path / "model", "bert", kind="ForSequenceClassification", num_labels=1)
    texts = [text[:60] for text in sentences(20)]
    left, right = texts, texts[::-1]
    config = EmbeddingConfig(str(tmp_path / "out"), objective="kl", teacher=str(folder), device="cpu")
    found = scores_of_teacher(config, left, right, ProcessGroup())
    there = scores_there(newest, folder, left, right, 128)[:, 0].astype(np.float64)
    np.testing.assert_allclose(1 / (1 + np.exp(-found.astype(np.float64))), there, atol=1e-5)
    assert np.ptp(found) > 1e-3
