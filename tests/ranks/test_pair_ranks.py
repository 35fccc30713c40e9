"""Two processes under Paddle's launcher against one process, on the CPU."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from run_files import events
from tiny_pair import write_model, write_pairs
from tiny_pretrain import level_here, needs_kernels

from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.pair.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.pair.train.train_pair import train_pair
from ernie_pair.score.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.score.evaluation.evaluation_report import FILES
from ernie_pair.score.evaluation.predict_pair import predict_pair
from ernie_pair.weights.weight_files import from_safetensors

pytestmark = pytest.mark.ranks

# Trains, stops at the given step, and writes a hash of the weights of each process.
TRAIN = """
import hashlib, json, os, sys
from data_tools.options.cli import exit_code_of
from ernie_pair.pair.train import loss as objective
from ernie_pair.pair.train import train_pair as run
from ernie_pair.pair.config.pair_config import TrainConfig

flags, stop_at, told, poisoned = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
entropy = objective.F.cross_entropy

class Job(run.PairJob):
    def step(self, batches, number, stop):
        if number == stop_at:
            os._exit(9)
        is_poisoned = number == poisoned and self.process_group.rank == 1
        poison = float("nan") if is_poisoned else 1.0
        objective.F.cross_entropy = lambda *given, **settings: entropy(*given, **settings) * poison
        return super().step(batches, number, stop)

    def evaluate(self, split):
        weights = b"".join(parameter.numpy().tobytes() for parameter in self.model.parameters())
        open(f"{told}.{self.process_group.rank}", "w").write(hashlib.sha256(weights).hexdigest())
        return super().evaluate(split)

run.PairJob = Job
sys.exit(exit_code_of(lambda: run.train_pair(TrainConfig(**flags))))
"""

ASK = """
import json, sys
from data_tools.options.cli import exit_code_of
from ernie_pair.pair.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.score.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.score.evaluation.predict_pair import predict_pair

def ask():
    evaluate_pair(EvaluateConfig(**json.loads(sys.argv[1])))
    predict_pair(PredictConfig(**json.loads(sys.argv[2])))

sys.exit(exit_code_of(ask))
"""

# The first process, which holds the rendezvous store, exits.
# Rank 0 runs in a child, as the launcher stops the others once one of its own processes has ended.
LOST = """
import os, sys, time
from data_tools.options.cli import exit_code_of
from ernie_pair.train.process_group import join_process_group
from ernie_pair.runtime.processes.world import launched_world

def meet():
    process_group = join_process_group(launched_world())
    process_group.barrier()
    if process_group.rank == 0:
        os._exit(9)
    while True:
        process_group.barrier()

if os.environ["PADDLE_TRAINER_ID"] == "0" and os.fork():
    os.wait()
    while not os.path.exists("told"):
        time.sleep(0.1)
    os._exit(9)
code = exit_code_of(meet)
open("told", "w").close()
sys.exit(code)
"""


# The second of two processes has no kernels, or kernels of another level than the first.
UNLIKE = """
import os
os.environ["ERNIE_PAIR_KERNELS_LEVEL"] = {levels}[int(os.environ["PADDLE_TRAINER_ID"])]
"""


def launch(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess:
    script = folder / "launched.py"
    script.write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
        + ["--log_dir", str(folder / "log"), str(script), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def logs_of(folder: Path) -> str:
    return "".join(path.read_text()[-2000:] for path in sorted((folder / "log").glob("workerlog.*")))


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return TrainConfig(
        model_name_or_path=str(write_model(folder / "model")),
        model_type="ernie",
        from_scratch=True,
        train_file=str(write_pairs(folder / "train.tsv", 90, seed=0)),
        dev_file=str(write_pairs(folder / "dev.tsv", 41, seed=1)),
        output_dir=str(folder / "one"),
        max_steps=12,
        batch_size=16,
        learning_rate=5e-3,
        dropout=0.0,
        eval_freq=4,
        logging_freq=1,
        checkpoint_steps=4,
        device="cpu",
    )


def train_two(
    config: TrainConfig, name: str, stop_at: int = 0, poisoned: int = 0, fails: bool = False, before: str = ""
) -> Path:
    """Train on two processes with half the batch size each; returns their output folder.

    Both exit at update ``stop_at``, and the loss of the second is NaN in update ``poisoned``. ``before``
    is run at the start of each.
    """
    folder = Path(config.output_dir).parent
    two = replace(config, batch_size=config.batch_size // 2, output_dir=str(folder / name))
    told = str(folder / f"{name}.told")
    done = launch(folder, before + TRAIN, json.dumps(asdict(two)), str(stop_at), told, str(poisoned))
    assert (done.returncode == 0) == (stop_at == 0 and not fails), done.stderr + logs_of(folder)
    return folder / name


@pytest.fixture(scope="module")
def one(config):
    train_pair(config)
    return Path(config.output_dir)


@pytest.fixture(scope="module")
def two(config):
    return train_two(config, "two")


def weights(folder: Path):
    path = folder / "checkpoints" / "step_00000012" / "model.safetensors"
    return from_safetensors(path.read_bytes(), str(path))


def train_losses(folder: Path):
    return {event["step"]: event["loss"] for event in events(folder, "train")}


def test_both_processes_hold_the_same_weights(two):
    first, second = (two.with_name(f"two.told.{rank}").read_text() for rank in (0, 1))
    assert first == second


def test_training_on_two_processes_matches_one(one, two):
    ours, theirs = weights(two), weights(one)
    assert max(np.abs(ours[name] - theirs[name]).max() for name in theirs) < 2e-5
    losses = train_losses(one)
    assert losses.keys() == train_losses(two).keys()
    assert max(abs(losses[step] - loss) for step, loss in train_losses(two).items()) < 1e-5


def test_two_killed_processes_resume_to_the_same_end(config, two):
    with_dropout = replace(config, dropout=0.1)
    whole = train_two(with_dropout, "whole")
    train_two(with_dropout, "cut", stop_at=7)
    cut = train_two(with_dropout, "cut")
    assert weights(cut).keys() == weights(whole).keys()
    assert all(np.array_equal(weights(cut)[name], array) for name, array in weights(whole).items())
    assert train_losses(cut) == train_losses(whole)


def test_two_processes_evaluate_and_predict_exactly_as_one(config, one, monkeypatch):
    (best,) = one.glob("best-*")
    folder = one.parent
    flags = {"model_path": str(best), "input_file": config.dev_file, "batch_size": 8, "device": "cpu"}

    def asked(run: str):
        """The flags of the two commands for the run of that name."""
        metrics = {"output_file": str(folder / f"{run}.metrics"), "report": str(folder / f"{run}.report")}
        changed = {"robustness": "typo order", "robustness_file": str(folder / f"{run}.changed.tsv")}
        predictions = {"output_file": str(folder / f"{run}.predictions"), "scores": True}
        return {**flags, **metrics, **changed, "bootstrap": 50}, {**flags, **predictions}

    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")  # the date on the HTML page
    done = launch(folder, ASK, *map(json.dumps, asked("two")))
    assert done.returncode == 0, done.stderr + logs_of(folder)
    metrics, predictions = asked("one")
    evaluate_pair(EvaluateConfig(**metrics))
    predict_pair(PredictConfig(**predictions))
    for name in ("metrics", "predictions", "changed.tsv", *(f"report/{file}" for file in FILES)):
        one_file, two_file = ((folder / f"{run}.{name}").read_bytes() for run in ("one", "two"))
        if name == "report/report.html":  # it shows the flags, which contain the paths of the other files
            two_file = two_file.replace(str(folder / "two.").encode(), str(folder / "one.").encode())
        assert two_file == one_file, name


def test_a_collective_without_its_peer_is_a_one_line_error(tmp_path):
    assert launch(tmp_path, LOST).returncode != 0
    said = (tmp_path / "log" / "workerlog.1").read_text()
    # Paddle 3 prints its flags before this line.
    assert "\nerror: rank 1: the connection to the other processes broke (" in "\n" + said
    assert '  File "' not in said  # the launcher's signal may have arrived during the exit


@needs_kernels
@pytest.mark.parametrize(
    "levels",
    [
        pytest.param(("avx512_bf16", "none"), id="none"),
        pytest.param(("avx512", "avx2"), id="avx2", marks=pytest.mark.slow),
    ],
)
def test_all_processes_fall_back_to_the_same_kernels(config, levels):
    if levels[1] == "avx2" and level_here() == "avx2":
        pytest.skip("this processor has one level alone")
    name = f"unlike-{levels[1]}"
    folder = train_two(replace(config, max_steps=2), name, before=UNLIKE.format(levels=levels))
    first, second = (folder.with_name(f"{name}.told.{rank}").read_text() for rank in (0, 1))
    assert first == second
    manifest = json.loads((folder / "model_last" / MANIFEST).read_text())
    assert manifest["topology"]["kernels"] == "plain"
    said = (folder.parent / "log" / "workerlog.0").read_text()
    assert "another process of this run cannot use these kernels" in said


def test_a_nan_loss_of_one_rank_stops_both_at_the_same_step(config):
    folder = train_two(config, "poisoned", poisoned=6, fails=True)
    for rank in (0, 1):
        said = (folder.parent / "log" / f"workerlog.{rank}").read_text()
        assert said.count("the loss of step 6 (samples 80 to 95) is nan") == 1
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_00000004"]


def test_both_processes_skip_an_update_that_is_nan_on_one(config):
    folder = train_two(replace(config, on_nan="skip"), "skipping", poisoned=6)
    first, second = (folder.with_name(f"skipping.told.{rank}").read_text() for rank in (0, 1))
    assert first == second
    state = json.loads((folder / "model_last" / "state.json").read_text())
    assert state["skipped_updates"] == 1 and all(np.isfinite(a).all() for a in weights(folder).values())
