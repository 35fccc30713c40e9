"""Real pretraining runs of a tiny model that are stopped by a signal."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import ROOT
from tiny_pretrain import events, flags, write_corpus, write_model

SCRIPT = ROOT / "scripts" / "run_pretrain_static.py"
SETTINGS = {"max_steps": 60, "checkpoint_steps": 20, "eval_freq": 7, "num_workers": 1, "save_steps": 16}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    write_corpus(folder / "data", write_model(folder / "model"))
    return folder


def start(world, output, **changes):
    words = flags(world / "model", world / "data", world / output, **{**SETTINGS, **changes})
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *words],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLD": "1"},  # the test looks at its child processes
    )


def end_of(process):
    _, said = process.communicate(timeout=120)
    return process.returncode, said.splitlines()


@pytest.fixture(scope="module")
def whole(world):
    process = start(world, "whole")
    assert end_of(process)[0] == 0
    return world / "whole"


def wait_for_update(output, step):
    """Wait until update ``step`` appears in the log."""
    deadline, path = time.monotonic() + 100, output / "metrics.jsonl"
    while time.monotonic() < deadline:
        if path.exists() and f'"train", "step": {step},' in path.read_text():
            return
        time.sleep(0.002)
    pytest.fail(f"no update {step}")


def same(output, whole):
    assert events(output) == events(whole)
    ours, theirs = (sorted((folder / "model_last").iterdir()) for folder in (output, whole))
    assert [path.name for path in ours] == [path.name for path in theirs]
    for one, other in zip(ours, theirs):
        assert one.name == "MANIFEST.json" or one.read_bytes() == other.read_bytes(), one.name
    exports = [sorted(path.name for path in folder.glob("model_[0-9]*")) for folder in (output, whole)]
    assert exports[0] == exports[1]


def children_of(pid):
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
    return [int(child) for child in found]


@pytest.mark.parametrize(
    "number, code, group",
    [
        pytest.param(signal.SIGTERM, 143, False, id="SIGTERM"),
        pytest.param(signal.SIGINT, 130, True, id="Ctrl-C", marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 143, True, id="the terminal closes", marks=pytest.mark.slow),
    ],
)
def test_repeated_stop_signals_lose_no_step(world, whole, number, code, group):
    output = world / number.name
    process = start(world, number.name)
    wait_for_update(output, 5)
    workers = children_of(process.pid)
    for _ in range(6):
        (os.killpg if group else os.kill)(process.pid, number)
        time.sleep(0.01)
    stopped, said = end_of(process)
    step = [event["step"] for event in events(output) if event["split"] == "train"][-1]
    assert stopped == code, said
    assert said[-1] == f"stopped by {number.name} after step {step}, saved; run the same command to continue"
    state = json.loads((output / "model_last" / "state.json").read_text())
    assert state["step"] == step < 60
    assert workers and not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert not list((output / "checkpoints").glob(".tmp-*"))
    assert end_of(start(world, number.name))[0] == 0
    same(output, whole)


@pytest.mark.slow
def test_a_suspended_run_continues_with_identical_results(world, whole):
    process = start(world, "asleep")
    wait_for_update(world / "asleep", 5)
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(20)
    os.kill(process.pid, signal.SIGCONT)
    assert end_of(process)[0] == 0
    same(world / "asleep", whole)
