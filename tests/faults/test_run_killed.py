"""Runs that are killed at random moments, stopped by signals or suspended end as one that was left alone."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from halves import HALVES, Encoders, Run, assert_same_end, running_in, shared_memory
from waiting import children_of

SEED = 2024
OFTEN = {"checkpoint_steps": 7, "eval_freq": 50, "logging_freq": 3}
SETTINGS = {
    "pretraining": {**OFTEN, "eval_iters": 1, "save_steps": 40, "num_workers": 1, "global_batch_size": 8},
    "dynamic": {**OFTEN, "global_batch_size": 8, "graph": "dynamic"},
    "pairs": {**OFTEN, "batch_size": 8, "learning_rate": 5e-3, "rdrop_alpha": 1.0, "device": "cpu"},
    "encoders": {**OFTEN, "batch_size": 8, "learning_rate": 5e-3, "dims": "16", "device": "cpu"},
}


def published(output):
    return sorted(int(path.name[5:]) for path in (output / "checkpoints").glob("step_*"))


def kill(run, early, seconds):
    """Kill all of a run ``seconds`` after its start, or after its first line of the log."""
    begun, log = time.time(), run.output / "metrics.jsonl"
    while not early and run.process.poll() is None:
        if log.exists() and log.stat().st_mtime > begun:
            break
        time.sleep(0.01)
    time.sleep(seconds)
    assert run.process.poll() is None, f"seed {SEED}: the run ended before it was killed: {run.printed()}"
    os.killpg(run.process.pid, signal.SIGKILL)
    run.end()
    time.sleep(0.2)
    assert not running_in(run.process.pid)


@pytest.mark.parametrize(
    "name, kills, max_steps",
    [
        pytest.param("pretraining", 30, 1500, marks=pytest.mark.slow),
        pytest.param("dynamic", 30, 1500, marks=pytest.mark.slow),
        pytest.param("pairs", 30, 2500, marks=pytest.mark.slow),
        pytest.param("encoders", 15, 1200, marks=pytest.mark.slow),
        ("pairs", 3, 300),
    ],
)
def test_a_run_resumed_after_many_kills_is_bit_identical(tmp_path, name, kills, max_steps):
    half, settings = (
        {**HALVES, "encoders": Encoders}[name](tmp_path),
        {**SETTINGS[name], "max_steps": max_steps},
    )
    whole = Run(half, "whole", settings)
    assert whole.end(600) == 0, whole.printed()
    rng, output, shared = random.Random(SEED), tmp_path / "cut", shared_memory()
    for _ in range(kills):
        before, early = published(output), rng.random() < 0.2
        run = Run(half, "cut", settings)
        kill(run, early, rng.uniform(0, 4 if early else 0.8))
        assert set(before[-2:]) <= set(published(output)) or len(published(output)) >= 3
        printed = run.printed()
        assert "error:" not in printed and "Traceback" not in printed, printed
        assert "resumed" not in printed or f"step_{before[-1]:08d}: " in printed
    last = Run(half, "cut", settings)
    assert last.end(600) == 0, last.printed()
    assert_same_end(output, whole.output)
    assert shared_memory() <= shared


STOPPED = {"max_steps": 60, "checkpoint_steps": 20, "eval_freq": 7, "num_workers": 1, "save_steps": 16}


def start(half, output):
    return Run(half, output, STOPPED, COLD="1")  # the test looks at its child processes


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    return HALVES["pretraining"](tmp_path_factory.mktemp("stopped"))


@pytest.fixture(scope="module")
def whole(half):
    run = start(half, "whole")
    assert run.end() == 0
    return run.output


@pytest.mark.parametrize(
    "number, code, group",
    [
        pytest.param(signal.SIGTERM, 143, False, id="SIGTERM"),
        pytest.param(signal.SIGINT, 130, True, id="Ctrl-C", marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 143, True, id="the terminal closes", marks=pytest.mark.slow),
    ],
)
def test_repeated_stop_signals_lose_no_step(half, whole, number, code, group):
    run = start(half, number.name)
    run.wait_for_update(5)
    workers = children_of(run.process.pid)
    for _ in range(6):
        (os.killpg if group else os.kill)(run.process.pid, number)
        time.sleep(0.01)
    assert run.end() == code, run.printed()
    step = run.last_step()
    line = f"stopped by {number.name} after step {step}, saved; run the same command to continue"
    assert run.printed().splitlines()[-1] == line
    assert run.saved_step() == step < 60
    assert workers and not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert not list((run.output / "checkpoints").glob(".tmp-*"))
    assert start(half, number.name).end() == 0
    assert_same_end(run.output, whole)


@pytest.mark.slow
def test_a_suspended_run_continues_with_identical_results(half, whole):
    run = start(half, "asleep")
    run.wait_for_update(5)
    os.kill(run.process.pid, signal.SIGSTOP)
    time.sleep(20)
    os.kill(run.process.pid, signal.SIGCONT)
    assert run.end() == 0
    assert_same_end(run.output, whole)
