"""Loops of a user's own on two processes against one, and against the trainer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from places import ROOT, SUPPORT
from run_own_loops import DEV, LOOPS, TRAIN, main
from tiny_pair import write_model

from ernie_pair import PairConfig, PairTrainer
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST

pytestmark = pytest.mark.ranks

SCRIPT = Path(__file__).with_name("run_own_loops.py")
OF_GRADIENTS = [name for name in LOOPS if name != "zero2"]  # which averages them on every process


def losses_of(folder, names):
    """{1 or 2 processes: {loop: its losses and metrics}}, one global batch size."""
    write_model(folder / "model")
    main(folder, folder / "one.json", 8, *names)
    done = subprocess.run(
        [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
        + ["--log_dir", str(folder / "log"), str(SCRIPT), str(folder), str(folder / "two.json"), "4", *names],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{SUPPORT}:{ROOT}"},
    )
    logs = [log.read_text()[-1500:] for log in sorted((folder / "log").glob("workerlog.*"))]
    assert done.returncode == 0, "\n".join(logs) or done.stderr
    return {
        count: json.loads((folder / file).read_text()) for count, file in ((1, "one.json"), (2, "two.json"))
    }


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    return losses_of(tmp_path_factory.mktemp("loops"), OF_GRADIENTS)


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_a_loop_on_two_processes_has_the_losses_of_one(losses, name):
    assert_equal(losses, name)


@pytest.mark.slow
def test_a_loop_with_a_sharded_state_has_the_losses_of_one(tmp_path):
    assert_equal(losses_of(tmp_path, ["zero2"]), "zero2")


def assert_equal(losses, name):
    one, two = losses[1][name], losses[2][name]
    if name != "weighted":  # the mean over micro-batches is not that over weights
        np.testing.assert_allclose(two["losses"], one["losses"], rtol=0, atol=1e-6)
    assert one["losses"][0] != one["losses"][-1] and two["accuracy"] == one["accuracy"]
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-6)


def test_loops_and_the_trainer_have_the_same_losses(losses, tmp_path):
    config = PairConfig(
        str(tmp_path / "out"),
        model_type="ernie",
        from_scratch=True,
        max_steps=6,
        batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=5e-3,
        dropout=0.0,
        device="cpu",
        logging_freq=1,
    )
    trainer = PairTrainer(write_model(tmp_path / "model"), config, TRAIN, DEV)
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    for name in ("flags", "own", "paddle"):
        np.testing.assert_allclose(losses[1][name]["losses"], logged, rtol=1e-6)
    assert list((tmp_path / "out").rglob(MANIFEST))
