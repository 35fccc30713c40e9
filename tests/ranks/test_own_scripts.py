"""A script of one's own under `ernie-pair launch` and under Paddle's launcher, as the tutorials start it."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from places import ROOT
from run_files import events, files_of
from tiny_pair import write_model, write_pairs
from waiting import until

pytestmark = pytest.mark.ranks
LAUNCH = ("ernie_pair", "launch")
PADDLES = ("paddle.distributed.launch",)

# As in the tutorials: it joins the processes before anything else, and has flags called like those of launch.
TRAINS = """
import argparse

import paddle
from settings import SETTINGS

from ernie_pair import PairConfig, PairTrainer, set_seed

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir")
    parser.add_argument("--gpus")
    args = parser.parse_args()
    paddle.set_device("cpu")
    if paddle.distributed.get_world_size() > 1:
        paddle.distributed.init_parallel_env()
    set_seed(3)
    config = PairConfig(args.output_dir, device="cpu", **SETTINGS)
    result = PairTrainer("model", config, "train.tsv", "dev.tsv").train()
    print("rank", paddle.distributed.get_rank(), "step", result.step, "gpus", args.gpus, flush=True)
"""
SETTINGS = {"model_type": "ernie", "from_scratch": True, "max_steps": 4, "batch_size": 8, "eval_freq": 2}

# Without a word of this package. Rank 1 leaves a child behind that only its launcher can end.
PLAIN = """
import os, subprocess, sys, time
import paddle
import paddle.distributed as dist

dist.init_parallel_env()
for step in range(10**6):
    dist.all_reduce(paddle.ones([2]))
    if step == 5 and dist.get_rank() == 1:
        subprocess.Popen(["sleep", "300"])
        {fault}
    if step == 5:
        open(f"ready.{os.getpid()}", "w").close()
    time.sleep(0.01)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "settings.py").write_text(f"SETTINGS = {SETTINGS}\n")
    (tmp_path / "scripts" / "my_train.py").write_text(TRAINS)
    write_model(tmp_path / "model")
    write_pairs(tmp_path / "train.tsv", 90, seed=0)
    write_pairs(tmp_path / "dev.tsv", 41, seed=1)
    return tmp_path


def start(folder, *words, **environment):
    started_in = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "STARTED_IN": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, words)],
        cwd=folder,
        env={**os.environ, **started_in, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder, *words):
    process = start(folder, *words)
    said, told = process.communicate(timeout=240)
    assert process.returncode == 0, said + told
    return said


def left_in(folder):
    """Return the processes that were started with ``folder`` in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"STARTED_IN={folder}" in entry.read_text(errors="replace"):
                found.append(int(entry.parent.name))
    return found


def test_both_launchers_run_a_training_script_alike(folder):
    script = ("scripts/my_train.py", "--gpus", "of the script", "--output_dir")
    said = run(folder, *LAUNCH, "--nproc_per_node", 2, "--log_dir", "ours", *script, "a")
    assert "rank 0 step 4 gpus of the script" in said
    assert "rank 1 step 4 gpus of the script" in (folder / "ours" / "workerlog.1").read_text()
    run(folder, *PADDLES, "--nproc_per_node", 2, "--log_dir", "theirs", *script, "b")
    assert events(folder / "a") == events(folder / "b")
    assert files_of(folder / "a" / "model_last") == files_of(folder / "b" / "model_last")


def test_a_script_is_launched_in_a_single_process(folder):
    said = run(folder, *LAUNCH, "scripts/my_train.py", "--gpus", "none", "--output_dir", "out")
    assert "rank 0 step 4 gpus none" in said and not (folder / "log").exists()


@pytest.mark.parametrize(
    "fault, code, fate",
    [
        ("os.kill(os.getpid(), 9)", 6, "was killed by SIGKILL"),
        ("raise KeyError('一个错误')", 1, "ended with exit code 1"),
    ],
    ids=["killed", "a traceback"],
)
def test_a_lost_process_ends_the_launch_with_a_line(tmp_path, fault, code, fate):
    (tmp_path / "plain.py").write_text(PLAIN.replace("{fault}", fault))
    process = start(tmp_path, *LAUNCH, "--processes", 2, "plain.py", COLD="1")  # its group is killed
    said, told = process.communicate(timeout=120)
    assert process.returncode == code, told
    last = told.splitlines()[-1]
    assert last.startswith("error: rank 1 (pid ") and last.endswith(f"{fate}; see log/workerlog.1")
    assert said.count("KeyError: '一个错误'") == (code == 1)
    assert not left_in(tmp_path)


@pytest.mark.parametrize("number, code", [("SIGTERM", 143), ("SIGKILL", -9), ("SIGHUP", 143)])
def test_a_stopped_launcher_leaves_no_process_behind(tmp_path, number, code):
    (tmp_path / "plain.py").write_text(PLAIN.replace("{fault}", "pass"))
    process = start(tmp_path, *LAUNCH, "--processes", 2, "plain.py", COLD="1")  # its group is killed
    until(lambda: len(list(tmp_path.glob("ready.*"))) == 2, 120)
    process.send_signal(signal.Signals[number])
    if code > 0:
        told = process.communicate(timeout=20)[1]
        assert told.splitlines()[-1] == "stopped by SIGTERM; what each process printed is in log"
        assert not left_in(tmp_path)
    assert process.wait(20) == code
    ranks = [int(path.suffix[1:]) for path in tmp_path.glob("ready.*")]
    until(lambda: not set(ranks) & set(left_in(tmp_path)), 20)
    for pid in left_in(tmp_path):  # of a launcher that was killed itself: a child of a rank goes on
        os.kill(pid, signal.SIGKILL)
