"""Runs killed with SIGKILL at many random moments end exactly as an uninterrupted run; both halves."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from halves import HALVES
from tiny_pretrain import events

SEED = 2024
OFTEN = {"checkpoint_steps": 7, "eval_freq": 50, "logging_freq": 3}
SETTINGS = {
    "pretraining": {**OFTEN, "eval_iters": 1, "save_steps": 40, "num_workers": 1, "global_batch_size": 8},
    "pairs": {**OFTEN, "batch_size": 8, "learning_rate": 5e-3, "rdrop_alpha": 1.0, "device": "cpu"},
}


def start(half, settings, output):
    return subprocess.Popen(
        [sys.executable, str(half.script), *half.words(half.folder / output, **settings)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def published(output):
    return sorted(int(path.name[5:]) for path in (output / "checkpoints").glob("step_*"))


def of_session(session):
    """The processes of a session that are still running."""
    wanted = ["pgrep", "-s", str(session), "-r", "R,S,D,T"]
    return subprocess.run(wanted, capture_output=True, text=True).stdout.split()


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if name.startswith("paddle")}


def killed(half, settings, early, seconds):
    """Start the run and kill all of it ``seconds`` after its start, or after its first line of the log.

    Returns its standard error, and whether it had finished.
    """
    process, events_file = start(half, settings, "cut"), half.folder / "cut" / "metrics.jsonl"
    begun = time.time()
    while not early and process.poll() is None:
        if events_file.exists() and events_file.stat().st_mtime > begun:
            break
        time.sleep(0.01)
    time.sleep(seconds)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    _, said = process.communicate()
    time.sleep(0.2)
    assert not of_session(process.pid)
    return said, process.returncode == 0


@pytest.mark.parametrize(
    "name, kills, max_steps",
    [
        pytest.param("pretraining", 30, 1500, marks=pytest.mark.slow),
        pytest.param("pairs", 30, 2500, marks=pytest.mark.slow),
        ("pairs", 3, 300),
    ],
)
def test_a_run_resumed_after_many_kills_is_bit_identical(tmp_path, name, kills, max_steps):
    half, settings = HALVES[name](tmp_path), {**SETTINGS[name], "max_steps": max_steps}
    whole = start(half, settings, "whole")
    assert whole.communicate()[1] and whole.returncode == 0
    rng, output, shared = random.Random(SEED), tmp_path / "cut", shared_memory()
    for kill in range(kills):
        before, early = published(output), rng.random() < 0.2
        said, done = killed(half, settings, early, rng.uniform(0, 4 if early else 0.8))
        assert not done, f"seed {SEED}: the run was done before kill {kill}; make it longer"
        assert set(before[-2:]) <= set(published(output)) or len(published(output)) >= 3
        assert "error:" not in said and "Traceback" not in said, said
        if "resumed" in said:
            assert f"step_{before[-1]:08d}: " in said
    last = start(half, settings, "cut")
    assert last.communicate()[1] and last.returncode == 0
    assert_same_end(output, tmp_path / "whole")
    assert not [path for path in (output / "checkpoints").iterdir() if path.name.startswith(".")]
    assert shared_memory() <= shared


def assert_same_end(output, whole):
    assert events(output) == events(whole)
    for path in sorted((whole / "model_last").iterdir()):
        if path.name != "MANIFEST.json":
            assert (output / "model_last" / path.name).read_bytes() == path.read_bytes(), path.name
    assert exports_of(output) == exports_of(whole)


def exports_of(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(("model_", "best-")))
