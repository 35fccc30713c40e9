"""Updates, evaluation and state of the pair job, on a tiny model; one process."""

import numpy as np
import paddle
import pytest
from tiny_pair import write_model, write_pairs

from data_tools.errors import CheckpointError, NumbersError
from data_tools.wordpiece import WordPiece
from ernie_pair.checkpoint import Checkpoints
from ernie_pair.loop import TrainState
from ernie_pair.model_folder import open_model
from ernie_pair.pair.config import TrainConfig
from ernie_pair.pair.data import encode_pairs, training_updates
from ernie_pair.pair.job import PairJob, _new_optimizer
from ernie_pair.pair.model import new_model
from ernie_pair.pair.pair_file import read_pairs
from ernie_pair.pair.peers import Alone
from ernie_pair.pair.scoring import logits_of
from ernie_pair.world import World

STEPS = 60


@pytest.fixture
def make(tmp_path):
    """make(consumed, **flags) -> a new job on the toy task, its training rows, and the updates to come."""
    folder = write_model(tmp_path / "model")
    pieces = WordPiece.from_file(folder / "vocab.txt")
    files = {
        name: write_pairs(tmp_path / f"{name}.tsv", 96, seed) for seed, name in enumerate(("train", "dev"))
    }
    rows = {name: encode_pairs(read_pairs(path, 2), pieces, 64) for name, path in files.items()}
    places = {"train_file": "t", "dev_file": "d", "output_dir": "o", "model_name_or_path": str(folder)}

    def build(consumed=0, **flags):
        settings = {"batch_size": 16, "learning_rate": 5e-3, "dropout": 0.1, "device": "cpu", **flags}
        config = TrainConfig(**places, **settings)
        source = open_model(str(folder), model_type="ernie", from_scratch=True)
        model = new_model(source, "ernie", config.seed, config.dropout)
        job = PairJob(config, model, rows["dev"], STEPS, Alone())
        updates = training_updates(rows["train"], config.seed, config.batch_size, World(), consumed)
        return job, rows["train"], updates

    return build


def run(job, updates, first, last):
    return [job.update(batches, step, 0)[0] for step, batches in zip(range(first, last + 1), updates)]


def weights(job):
    return {name: parameter.numpy() for name, parameter in job.model.named_parameters()}


def same(first, second):
    return all(np.array_equal(first[name], second[name]) for name in first)


def test_the_toy_task_is_learned(make):
    job, _, updates = make()
    metrics = run(job, updates, 1, STEPS)
    assert metrics[0]["loss"] > 0.6 and metrics[-1]["loss"] < 0.1
    valid = job.evaluate("valid")
    assert valid["accuracy"] > 0.95 and valid["f1"] > 0.95 and valid["loss"] < 0.2


def test_an_update_reports_the_loss_and_accuracy_before_it(make):
    job, rows, updates = make(dropout=0.0)
    (batch,) = batches = next(updates)
    job.model.eval()
    logits = job.model(paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids))
    loss = paddle.nn.functional.cross_entropy(logits, paddle.to_tensor(batch.labels))
    metrics, _ = job.update(batches, 1, 0)
    assert metrics["loss"] == float(loss)
    assert metrics["accuracy"] == np.mean(logits.numpy().argmax(1) == batch.labels)
    assert metrics["learning_rate"] == pytest.approx(5e-3 / 6)


@pytest.mark.parametrize("cut", [1, 4, 7])
def test_a_job_cut_in_two_ends_with_the_same_weights_bit_for_bit(tmp_path, make, cut):
    job, _, updates = make()
    whole = run(job, updates, 1, 9)
    half, _, updates = make()
    before = run(half, updates, 1, cut)
    checkpoints = Checkpoints(tmp_path / "out", World(), Alone().add)
    checkpoints.save(TrainState(cut, cut * 16), {}, half.state_files(), {})
    rest, _, updates = make(consumed=cut * 16)
    rest.restore(checkpoints.newest())
    checkpoints.close()
    assert before + run(rest, updates, cut + 1, 9) == whole
    assert same(weights(rest), weights(job))
    assert dict(rest.state_files()) == dict(job.state_files())


def test_an_evaluation_disturbs_nothing(make):
    quiet, _, updates = make()
    run(quiet, updates, 1, 4)
    asked, _, updates = make()
    for step in range(1, 5):
        asked.evaluate("valid")
        run(asked, updates, step, step)
    assert same(weights(quiet), weights(asked))


def test_the_state_of_another_model_is_refused_before_anything_is_set(tmp_path, make):
    job, _, updates = make()
    run(job, updates, 1, 1)
    files = dict(job.state_files())
    checkpoints = Checkpoints(tmp_path / "out", World(), Alone().add)
    files["optimizer.safetensors"] = files["model.safetensors"]
    checkpoints.save(TrainState(1, 16), {}, files.items(), {})
    other, _, _ = make(seed=5)
    before = weights(other)
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors holds another model"):
        other.restore(checkpoints.newest())
    assert same(weights(other), before)
    checkpoints.close()


def test_biases_and_norms_do_not_decay(make):
    job, _, _ = make()
    optimizer = _new_optimizer(job.model, weight_decay=0.5)
    optimizer.set_lr(0.1)
    before = weights(job)
    for parameter in job.model.parameters():
        parameter.sum().backward()
        parameter.clear_gradient(set_to_zero=True)
    optimizer.step()
    for name, after in weights(job).items():
        kept = "bias" in name or "norm" in name
        assert np.allclose(after, before[name] * (1 if kept else 0.95), rtol=1e-6), name


def test_no_update_has_a_rate_of_zero(make):
    job, _, _ = make(warmup_rate=0.1)
    rates = [job.learning_rate(step) for step in range(1, STEPS + 1)]
    assert rates[0] == pytest.approx(5e-3 / 6) and rates[5] == 5e-3
    assert rates[-1] == pytest.approx(5e-3 / (STEPS + 1 - 6))
    assert make(warmup_rate=0.0)[0].learning_rate(1) < 5e-3


@pytest.mark.parametrize("size", [2, 3, 5])
def test_processes_share_an_evaluation_without_changing_a_bit(make, size):
    job, rows, _ = make()

    class Share(Alone):
        def __init__(self, rank):
            self.rank, self.size = rank, size

    alone = logits_of(job.model, rows, 7, Alone())
    shares = [logits_of(job.model, rows, 7, Share(rank)) for rank in range(size)]
    assert np.array_equal(sum(shares), alone)


def test_logits_that_are_not_numbers_stop_the_run(make):
    job, rows, _ = make()
    job.model.classifier.bias.set_value(np.array([0, np.nan], dtype=np.float32))
    with pytest.raises(
        NumbersError, match=r"the logits of row 0 are \[.*nan\].*; the weights are damaged, train again"
    ):
        job.evaluate("valid")
