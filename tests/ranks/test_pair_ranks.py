"""Two processes under Paddle's launcher against one process, on the CPU."""

import hashlib
import json
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from launched import in_turn, launch
from run_files import events
from tiny_pair import train_config
from tiny_pretrain import level_here, needs_kernels

from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.evaluation.evaluation_report import FILES
from ernie_pair.evaluation.predict_pair import predict_pair
from ernie_pair.pairs.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.pairs.train import loss as objective
from ernie_pair.pairs.train import train_pair as run
from ernie_pair.runtime.cpu import LEVEL_ASKED
from ernie_pair.runtime.processes.world import launched_world
from ernie_pair.training.process_group import join_process_group
from ernie_pair.weights.weight_files import from_safetensors

pytestmark = pytest.mark.ranks


def train_watched(config, stop_at=0, poisoned=0, levels=None):
    """Train; returns a hash of the weights of this process at each evaluation.

    All exit at step ``stop_at``; the loss of the second is NaN in step ``poisoned``; ``levels``: the kernels
    of each.
    """
    rank, entropy, hashes = launched_world().rank, objective.F.cross_entropy, []
    if levels:
        os.environ[LEVEL_ASKED] = levels[rank]

    class Task(run.PairTask):
        def step(self, batches, number, stop):
            if number == stop_at:
                os._exit(9)
            poison = float("nan") if number == poisoned and rank == 1 else 1.0
            objective.F.cross_entropy = lambda *values, **settings: entropy(*values, **settings) * poison
            return super().step(batches, number, stop)

        def evaluate(self, split):
            weights = b"".join(parameter.numpy().tobytes() for parameter in self.model.parameters())
            hashes.append(hashlib.sha256(weights).hexdigest())
            return super().evaluate(split)

    run.PairTask = Task
    run.train_pair(config)
    return hashes


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    steps = {"max_steps": 12, "eval_freq": 4, "checkpoint_steps": 4}
    return train_config(tmp_path_factory.mktemp("ranks"), learning_rate=5e-3, dropout=0.0, **steps)


def train_two(config, name, fails=False, **watched):
    """Train on two processes with half the batch size each; returns their output folder."""
    folder = Path(config.output_dir).parent
    two = replace(config, batch_size=config.batch_size // 2, output_dir=str(folder / name))
    results = launch(folder, partial(train_watched, **watched), two, fails=fails)
    assert fails or (results[0] == results[1] and results[0]), "the processes hold other weights"
    return folder / name


@pytest.fixture(scope="module")
def one(config):
    run.train_pair(config)
    return Path(config.output_dir)


def weights(folder):
    path = folder / "checkpoints" / "step_00000012" / "model.safetensors"
    return from_safetensors(path.read_bytes(), str(path))


def train_losses(folder):
    return {event["step"]: event["loss"] for event in events(folder, "train")}


def test_training_on_two_processes_matches_one(config, one):
    """And both hold the same weights, which `train_two` compares."""
    two = train_two(config, "two")
    ours, theirs = weights(two), weights(one)
    assert max(np.abs(ours[name] - theirs[name]).max() for name in theirs) < 2e-5
    assert train_losses(two) == pytest.approx(train_losses(one), abs=1e-5)


def test_two_killed_processes_resume_to_the_same_end(config):
    with_dropout = replace(config, dropout=0.1)
    whole = train_two(with_dropout, "whole")
    train_two(with_dropout, "cut", stop_at=7, fails=True)
    cut = train_two(with_dropout, "cut")
    assert weights(cut).keys() == weights(whole).keys()
    assert all(np.array_equal(weights(cut)[name], array) for name, array in weights(whole).items())
    assert train_losses(cut) == train_losses(whole)


def test_two_processes_evaluate_and_predict_exactly_as_one(config, one, monkeypatch):
    (best,) = one.glob("best-*")
    folder = one.parent
    flags = {"model_path": str(best), "input_file": config.dev_file, "batch_size": 8, "device": "cpu"}

    def calls(name):
        metrics = {"output_file": str(folder / f"{name}.metrics"), "report": str(folder / f"{name}.report")}
        changed = {"robustness": "typo order", "robustness_file": str(folder / f"{name}.changed.tsv")}
        predictions = {"output_file": str(folder / f"{name}.predictions.tsv"), "scores": True}
        evaluate = EvaluateConfig(**flags, **metrics, **changed, bootstrap=50)
        return (evaluate_pair, evaluate), (predict_pair, PredictConfig(**flags, **predictions))

    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")  # the date on the HTML page
    launch(folder, in_turn, *calls("two"))
    in_turn(*calls("one"))
    for name in ("metrics", "predictions.tsv", "changed.tsv", *(f"report/{file}" for file in FILES)):
        one_file, two_file = ((folder / f"{run}.{name}").read_bytes() for run in ("one", "two"))
        if name == "report/report.html":  # it shows the flags, which contain the paths of the other files
            two_file = two_file.replace(str(folder / "two.").encode(), str(folder / "one.").encode())
        assert two_file == one_file, name


def lose_the_first():
    """The first process, which holds the rendezvous store, exits; the other meets it in vain.

    The first runs in a child, as the launcher stops the others once one of its own processes has ended.
    """
    if launched_world().is_first and os.fork():
        os.wait()
        while not os.path.exists("ended"):
            time.sleep(0.1)
        os._exit(9)

    def meet():
        process_group = join_process_group(launched_world())
        process_group.barrier()
        if process_group.rank == 0:
            os._exit(9)
        while True:
            process_group.barrier()

    code = exit_code_of(meet)
    Path("ended").touch()
    sys.exit(code)


def test_a_collective_without_its_peer_is_a_one_line_error(tmp_path):
    _, log = launch(tmp_path, lose_the_first, fails=True)
    # Paddle 3.3 prints its flags before this line.
    assert "\nerror: rank 1: the connection to the other processes broke (" in "\n" + log
    assert '  File "' not in log  # the launcher's signal may have arrived during the exit


UNLIKE = [("avx512_bf16", "none"), pytest.param(("avx512", "avx2"), marks=pytest.mark.slow)]


@needs_kernels
@pytest.mark.parametrize("levels", UNLIKE, ids="-".join)
def test_all_processes_fall_back_to_the_same_kernels(config, levels):
    if levels[1] == "avx2" and level_here() == "avx2":
        pytest.skip("this processor has one level alone")
    folder = train_two(replace(config, max_steps=2), f"unlike-{levels[1]}", levels=levels)
    manifest = json.loads((folder / "model_last" / MANIFEST).read_text())
    assert manifest["topology"]["kernels"] == "plain"
    log = (folder.parent / "log" / "workerlog.0").read_text()
    assert "another process of this run cannot use these kernels" in log


def test_a_nan_loss_of_one_rank_stops_both_at_the_same_step(config):
    folder = train_two(config, "poisoned", poisoned=6, fails=True)
    for rank in (0, 1):
        log = (folder.parent / "log" / f"workerlog.{rank}").read_text()
        assert log.count("the loss of step 6 (samples 80 to 95) is nan") == 1
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_00000004"]


def test_both_processes_skip_an_update_that_is_nan_on_one(config):
    folder = train_two(replace(config, on_nan="skip"), "skipping", poisoned=6)
    state = json.loads((folder / "model_last" / "state.json").read_text())
    assert state["skipped_updates"] == 1 and all(np.isfinite(a).all() for a in weights(folder).values())
