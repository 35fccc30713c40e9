"""Two processes under Paddle's launcher against one process, static graph over gloo on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_pretrain import events, flags, write_corpus, write_model

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "run_pretrain_static.py"
PLAIN = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "max_steps": 5}

# Runs one rank and tells what weights it ended with.
TELL = """
import hashlib, os, sys
from data_tools.command_line import run_command
from ernie_pair.pretrain import job, run
from ernie_pair.pretrain.config import PretrainConfig

class Job(job.PretrainJob):
    def evaluate(self, split):
        weights = b"".join(array.tobytes() for array in self.weights().values())
        open(f"{os.environ['TOLD']}.{self.world.rank}", "w").write(hashlib.sha256(weights).hexdigest())
        return super().evaluate(split)

job.PretrainJob = Job
run_command(run.pretrain, PretrainConfig)
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    model = write_model(folder / "model")
    write_corpus(folder / "data", model)
    (folder / "tell.py").write_text(TELL)
    return folder


def one_process(world, output, **changes):
    words = flags(world / "model", world / "data", world / output, **{**PLAIN, **changes})
    subprocess.run([sys.executable, str(SCRIPT), *words], check=True, capture_output=True, timeout=300)
    return world / output


def two_processes(world, output, script=SCRIPT, **changes):
    words = flags(world / "model", world / "data", world / output, **{**PLAIN, "dp_degree": 2, **changes})
    launch = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
    log = ["--log_dir", str(world / f"{output}_log")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOLD": str(world / f"{output}_told")}
    done = subprocess.run(
        [*launch, *log, str(script), *words], capture_output=True, text=True, timeout=300, env=environment
    )
    return done, world / output


def largest_difference(one, other):
    a, b = (load_file(folder / "model_last" / "static_vars.safetensors") for folder in (one, other))
    assert a.keys() == b.keys()
    return max(np.abs(a[name] - b[name]).max() for name in a)


@pytest.fixture(scope="module")
def single(world):
    return one_process(world, "single", micro_batch_size=16)


@pytest.mark.parametrize(
    "layout",
    [
        {"micro_batch_size": 8},
        {"micro_batch_size": 4, "global_batch_size": 16},
        {"micro_batch_size": 4, "global_batch_size": 16, "use_recompute": "true"},
    ],
    ids=["dp", "dp-merge", "dp-merge-recompute"],
)
def test_two_processes_give_the_answer_of_one(world, single, layout):
    name = f"double_{len(layout)}"
    done, output = two_processes(world, name, world / "tell.py", **layout)
    assert done.returncode == 0, done.stdout[-2000:]
    told = {(world / f"{name}_told.{rank}").read_text() for rank in (0, 1)}
    assert len(told) == 1, "the ranks ended with different weights"
    assert largest_difference(single, output) < 2e-5
    for one, other in zip(events(single), events(output)):
        assert one["lm_loss"] == pytest.approx(other["lm_loss"], abs=1e-5)
        assert one["lm_accuracy"] == pytest.approx(other["lm_accuracy"])


def test_two_processes_cut_in_two_equal_two_processes_in_one_go(world):
    dropout = {"hidden_dropout_prob": 0.1, "micro_batch_size": 4, "global_batch_size": 16, "decay_steps": 5}
    _, whole = two_processes(world, "whole", **dropout)
    two_processes(world, "cut", **{**dropout, "max_steps": 3})
    done, cut = two_processes(world, "cut", **dropout)
    assert done.returncode == 0
    train = [[event for event in events(folder) if event["split"] == "train"] for folder in (whole, cut)]
    assert train[0] == train[1]
    assert largest_difference(whole, cut) == 0


def test_a_fault_of_the_user_is_one_line_in_the_log_of_the_first_rank(world):
    done, output = two_processes(world, "refused", micro_batch_size=8, min_lr=1)
    assert done.returncode != 0 and not output.exists()
    assert "error: --min_lr 1.0 is above" in (world / "refused_log" / "workerlog.0").read_text()
