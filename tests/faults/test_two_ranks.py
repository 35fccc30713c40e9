"""Two processes under Paddle's launcher, one of which is killed, stopped or fails; both halves."""

import os
import signal

import pytest
from halves import HALVES, Run, assert_same_end, wait_until_gone
from launched import launch

from ernie_pair.core.cli.cli import parse_config
from ernie_pair.runtime.processes.world import launched_world

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    return {name: HALVES[name](tmp_path_factory.mktemp(name)) for name in HALVES}


@pytest.fixture
def half(request, halves):
    return halves[request.param]


of_both = pytest.mark.parametrize("half", HALVES, indirect=True)


def start(half, output, **variables):
    return Run(half, output, half.settings, processes=2, **variables)


@pytest.fixture(scope="module")
def wholes():
    return {}


def assert_goes_on(half, name, wholes):
    """Start the run ``name`` again: it ends byte-equal to the one that was left alone."""
    if half not in wholes:
        whole = start(half, "whole")
        assert whole.end() == 0, whole.printed(0) + whole.printed(1)
        wholes[half] = whole.output
    again = start(half, name)
    assert again.end() == 0, again.printed(0)
    assert_same_end(again.output, wholes[half])


@pytest.mark.parametrize(
    "half, rank",
    [("pretraining", 1), ("dynamic", 0), ("dynamic", 1), ("pairs", 0), ("pairs", 1)],
    indirect=["half"],
    ids=str,
)
def test_a_killed_rank_ends_the_other_with_an_error_naming_it(half, rank):
    run = start(half, f"killed{rank}")
    run.wait_for_update(25)
    pids = run.pids()
    os.kill(pids[rank], signal.SIGKILL)
    wait_until_gone(pids, 10)
    assert run.end() != 0
    log = run.printed(1 - rank)
    assert f"error: rank {rank} (pid {pids[rank]}) on {os.uname().nodename} is gone" in log.splitlines()[-1]
    assert "Traceback" not in log and "terminate called" not in log


def assert_stopped_together(run, half):
    step = run.last_step()
    for rank in (0, 1):
        log = run.printed(rank)
        assert f"stopped by SIGTERM after step {step}, saved" in log and "Traceback" not in log
    assert run.saved_step() == step < half.settings["max_steps"]


@of_both
def test_a_signal_to_one_rank_stops_both_at_the_same_step(half):
    run = start(half, "one_stopped")
    run.wait_for_update(5)
    pids = run.pids()
    os.kill(pids[1], signal.SIGTERM)
    wait_until_gone(pids, 25)
    run.end()
    assert_stopped_together(run, half)


@pytest.mark.parametrize(
    "half", [pytest.param("pretraining", marks=pytest.mark.slow), "pairs"], indirect=True
)
def test_a_signal_to_the_launcher_stops_both_at_the_same_step(half, wholes):
    run = start(half, "launcher_stopped")
    run.wait_for_update(5)
    pids = run.pids()
    run.process.terminate()
    assert run.end(30) == 15 and wait_until_gone(pids, 1) < 1
    assert_stopped_together(run, half)
    assert_goes_on(half, "launcher_stopped", wholes)


@pytest.mark.slow
@of_both
def test_ranks_of_a_killed_launcher_save_stop_and_can_resume(half, wholes):
    run = start(half, "orphans", COLD="1")  # the launcher itself is killed
    run.wait_for_update(5)
    pids = run.pids()
    run.process.kill()
    wait_until_gone(pids, 10)
    assert f"stopped by SIGTERM after step {run.last_step()}, saved" in run.printed(0)
    assert_goes_on(half, "orphans", wholes)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@of_both
def test_a_frozen_rank_ends_the_other_within_a_minute(half, wholes, rank):
    run = start(half, f"frozen{rank}")
    run.wait_for_update(25)
    pids = run.pids()
    os.kill(pids[rank], signal.SIGSTOP)
    wait_until_gone([pids[1 - rank]], 60)
    os.kill(pids[rank], signal.SIGKILL)
    run.end()
    log = run.printed(1 - rank)
    assert f"error: rank {rank} (pid {pids[rank]})" in log and "no sign of life" in log
    assert "most recent call first" in log and "Traceback" not in log
    assert_goes_on(half, f"frozen{rank}", wholes)


def run_failing(half, words, what, rank):
    """One rank finds no room for a save, or its tenth loss is not finite, or it meets a bug there."""
    state_files, step_of = half.job.state_files, half.job.step

    def failing_files(job):
        yield from state_files(job)
        if what == "save":
            raise OSError(28, "No space left on device", "optimizer")

    def failing_step(job, batches, number, stop):
        if number == 10 and what == "nan":
            half.poison(job)
        if number == 10 and what == "bug":
            raise KeyError("a bug")
        return step_of(job, batches, number, stop)

    if launched_world().rank == rank:
        half.job.state_files, half.job.step = failing_files, failing_step
    half.run(parse_config(half.config, words))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "what, reason",
    [("save", "No space left on device at optimizer"), ("nan", "the loss of step 10"), ("bug", "KeyError")],
)
@of_both
def test_an_error_on_one_rank_ends_both_and_a_rerun_succeeds(half, wholes, what, reason, rank):
    name = f"failing_{what}{rank}"
    words = list(map(str, half.words(half.folder / name, **half.settings)))
    arguments = type(half), words, what, rank  # cold: no lines of another program in the logs
    logs = launch(half.folder, run_failing, *arguments, fails=True, COLD="1")
    assert reason in logs[rank]
    assert what == "bug" or "Traceback" not in "".join(logs)
    assert list((half.folder / name / "checkpoints").iterdir()) == []
    assert_goes_on(half, name, wholes)
