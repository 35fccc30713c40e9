"""Thirty times kill -9 at a random moment, and the end is the end of the run that nobody touched."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_pretrain import events, flags, write_corpus, write_model

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "scripts" / "run_pretrain_static.py"
SEED, KILLS = 2024, 30
SETTINGS = {"max_steps": 1500, "checkpoint_steps": 7, "eval_freq": 50, "eval_iters": 1, "save_steps": 40}
SETTINGS.update(num_workers=1, global_batch_size=8, logging_freq=3)


def start(world, output):
    words = flags(world / "model", world / "data", world / output, **SETTINGS)
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *words],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def published(output):
    return sorted(int(path.name[5:]) for path in (output / "checkpoints").glob("step_*"))


def of_session(session):
    """The processes of a session that still run."""
    wanted = ["pgrep", "-s", str(session), "-r", "R,S,D,T"]
    return subprocess.run(wanted, capture_output=True, text=True).stdout.split()


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if name.startswith("paddle")}


def killed(world, early, seconds):
    """Start the run and kill all of it ``seconds`` after its start, or after its first line of the log.

    What it said, and whether it had finished.
    """
    process, events_file = start(world, "cut"), world / "cut" / "metrics.jsonl"
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


def test_a_run_killed_again_and_again_ends_like_one_that_was_not(tmp_path):
    write_corpus(tmp_path / "data", write_model(tmp_path / "model"))
    whole = start(tmp_path, "whole")
    assert whole.communicate()[1] and whole.returncode == 0
    rng, output, shared = random.Random(SEED), tmp_path / "cut", shared_memory()
    for kill in range(KILLS):
        before, early = published(output), rng.random() < 0.2
        said, done = killed(tmp_path, early, rng.uniform(0, 4 if early else 0.8))
        assert not done, f"seed {SEED}: the run was done before kill {kill}; make it longer"
        assert set(before[-2:]) <= set(published(output)) or len(published(output)) >= 3
        assert "error:" not in said and "Traceback" not in said, said
        if "resumed" in said:
            assert f"step_{before[-1]:08d}: step {before[-1]}," in said
    last = start(tmp_path, "cut")
    assert last.communicate()[1] and last.returncode == 0
    assert events(output) == events(tmp_path / "whole")
    for path in sorted((tmp_path / "whole" / "model_last").iterdir()):
        if path.name != "MANIFEST.json":
            assert (output / "model_last" / path.name).read_bytes() == path.read_bytes(), path.name
    assert sorted(p.name for p in output.glob("model_*")) == sorted(
        p.name for p in (tmp_path / "whole").glob("model_*")
    )
    assert not [path for path in (output / "checkpoints").iterdir() if path.name.startswith(".")]
    assert shared_memory() <= shared
