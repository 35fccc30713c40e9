"""Loops of a user's own on two processes against one, and against the trainer."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import paddle
import pytest
from group_sharding_on_cpu import group_sharding_on_cpu
from launched import launch
from paddle.nn.functional import cross_entropy
from tiny_pair import toy_rows, write_model

from ernie_pair import PairConfig, PairTrainer
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST

pytestmark = pytest.mark.ranks

TRAIN, DEV = list(toy_rows(90, seed=0)), list(toy_rows(41, seed=1))
CHANGES = {"weighted": {"class_weights": "1,2.5"}, "scaled": {"use_amp": True, "amp_dtype": "float32"}}
SETTINGS = {
    "model_type": "ernie", "from_scratch": True, "max_steps": 6, "gradient_accumulation_steps": 2,
    "learning_rate": 5e-3, "dropout": 0.0, "device": "cpu",
}  # fmt: skip


def average(value):
    tensor = paddle.to_tensor([value])
    if paddle.distributed.get_world_size() > 1:
        paddle.distributed.all_reduce(tensor)
    return tensor.item() / paddle.distributed.get_world_size()


def loss_of_the_flags(parts, batch):
    return parts.loss(batch)


def loss_of_its_own(parts, batch):
    return cross_entropy(parts.forward(batch), paddle.to_tensor(batch.labels))


def loss_of_two_passes(parts, batch):
    """Two forward passes of a micro-batch, whose losses are added."""
    return loss_of_its_own(parts, batch) + 0.5 * loss_of_its_own(parts, batch)


def of_parts(loss_of):
    """A loop over the parts, micro-batch by micro-batch."""

    def losses_of_steps(parts):
        for _, batches in parts.steps:
            losses = []
            for batch in batches:
                losses.append(loss_of(parts, batch))
                parts.backward(losses[-1])
            parts.update()
            yield np.mean([float(loss) for loss in losses])

    return losses_of_steps


LOOPS = {
    "own": of_parts(loss_of_its_own),
    "twice": of_parts(loss_of_two_passes),
    **dict.fromkeys(("flags", "weighted", "scaled", "zero2"), of_parts(loss_of_the_flags)),
}
OF_GRADIENTS = [name for name in LOOPS if name != "zero2"]  # which averages them on every process


def run_loops(folder, batch_size, names):
    """{loop: its losses, the mean of each step over all processes, and the metrics at the end}."""
    return {name: run_loop(name, folder, batch_size) for name in names}


def run_loop(name, folder, batch_size):
    config = PairConfig(
        str(folder / f"out_{name}"), batch_size=batch_size, **{**SETTINGS, **CHANGES.get(name, {})}
    )
    is_sharded = name == "zero2" and paddle.distributed.get_world_size() > 1
    with group_sharding_on_cpu() if is_sharded else nullcontext():
        trainer = PairTrainer(folder / "model", config, TRAIN, DEV)
        if is_sharded:
            trainer.config = replace(trainer.config, sharding="stage2", device="gpu")
        parts = trainer.open_parts()
        losses = [average(loss) for loss in LOOPS[name](parts)]
        metrics = trainer.evaluate()
        trainer.save_model(folder / f"saved_{name}_{batch_size}")
    return {"losses": losses, "accuracy": metrics["accuracy"], "loss": metrics["loss"]}


def both(folder, names):
    """The results of one process and of two with half the batch size each."""
    write_model(folder / "model")
    return run_loops(folder, 8, names), launch(folder, run_loops, folder, 4, names)[0]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return both(tmp_path_factory.mktemp("loops"), OF_GRADIENTS)


@pytest.mark.parametrize("name", [*OF_GRADIENTS, pytest.param("zero2", marks=pytest.mark.slow)])
def test_a_loop_on_two_processes_has_the_losses_of_one(results, tmp_path, name):
    one, two = (result[name] for result in (both(tmp_path, [name]) if name == "zero2" else results))
    if name != "weighted":  # the mean over micro-batches is not that over weights
        np.testing.assert_allclose(two["losses"], one["losses"], rtol=0, atol=1e-6)
    assert one["losses"][0] != one["losses"][-1] and two["accuracy"] == one["accuracy"]
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-6)


def test_loops_and_the_trainer_have_the_same_losses(results, tmp_path):
    config = PairConfig(str(tmp_path / "out"), batch_size=8, logging_freq=1, **SETTINGS)
    trainer = PairTrainer(write_model(tmp_path / "model"), config, TRAIN, DEV)
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    for name in ("flags", "own"):
        np.testing.assert_allclose(results[0][name]["losses"], logged, rtol=1e-6)
    assert list((tmp_path / "out").rglob(MANIFEST))
