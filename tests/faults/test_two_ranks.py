"""Two processes under Paddle's launcher, one of which is killed, stopped or fails; both halves."""

import os
import signal

import pytest
from halves import HALVES
from two_ranks import Launched, failing, goes_on_like, run_whole, wait_until_gone

pytestmark = pytest.mark.ranks

BOTH = list(HALVES)
SLOW_FOR_PRETRAINING = [pytest.param("pretraining", marks=pytest.mark.slow), "pairs"]


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    made = {}

    def half(name):
        if name not in made:
            made[name] = HALVES[name](tmp_path_factory.mktemp(name))
        return made[name]

    return half


@pytest.fixture
def half(request, halves):
    return halves(request.param)


@pytest.fixture(scope="module")
def wholes():
    """A function that returns the output folder of an uninterrupted run of a half."""
    done = {}

    def whole(half):
        if half not in done:
            done[half] = run_whole(half)
        return done[half]

    return whole


@pytest.mark.parametrize(
    "half, rank", [("pretraining", 1), ("pairs", 0), ("pairs", 1)], indirect=["half"], ids=str
)
def test_a_killed_rank_ends_the_other_with_an_error_naming_it(half, rank):
    launched = Launched(half, f"killed{rank}")
    pids = launched.wait_for_update(25)
    os.kill(pids[rank], signal.SIGKILL)
    wait_until_gone(pids, 10)
    assert launched.end() != 0
    said = launched.said(1 - rank)
    assert f"error: rank {rank} (pid {pids[rank]}) on {os.uname().nodename} is gone" in said.splitlines()[-1]
    assert "Traceback" not in said and "terminate called" not in said


@pytest.mark.parametrize("half", BOTH, indirect=True)
def test_a_signal_to_one_rank_stops_both_at_the_same_step(half):
    launched = Launched(half, "told")
    pids = launched.wait_for_update(5)
    os.kill(pids[1], signal.SIGTERM)
    wait_until_gone(pids, 25)
    launched.end()
    step = launched.last_step()
    for rank in (0, 1):
        assert f"stopped by SIGTERM after step {step}, saved" in launched.said(rank)
    assert launched.saved_step() == step < half.settings["max_steps"]


@pytest.mark.parametrize("half", SLOW_FOR_PRETRAINING, indirect=True)
def test_a_signal_to_the_launcher_stops_both_at_the_same_step(half, wholes):
    launched = Launched(half, "launcher_told")
    pids = launched.wait_for_update(5)
    launched.process.terminate()
    assert launched.end(30) == 15 and wait_until_gone(pids, 1) < 1
    step = launched.last_step()
    for rank in (0, 1):
        said = launched.said(rank)
        assert f"stopped by SIGTERM after step {step}, saved" in said and "Traceback" not in said
    assert launched.saved_step() == step < half.settings["max_steps"]
    goes_on_like(half, "launcher_told", wholes(half))


@pytest.mark.slow
@pytest.mark.parametrize("half", BOTH, indirect=True)
def test_ranks_of_a_killed_launcher_save_stop_and_can_resume(half, wholes):
    launched = Launched(half, "orphans")
    pids = launched.wait_for_update(5)
    launched.process.kill()
    wait_until_gone(pids, 10)
    assert f"stopped by SIGTERM after step {launched.last_step()}, saved" in launched.said(0)
    goes_on_like(half, "orphans", wholes(half))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("half", BOTH, indirect=True)
def test_a_frozen_rank_ends_the_other_within_a_minute(half, wholes, rank):
    launched = Launched(half, f"frozen{rank}")
    pids = launched.wait_for_update(25)
    os.kill(pids[rank], signal.SIGSTOP)
    wait_until_gone(pids[1 - rank :][:1], 60)
    os.kill(pids[rank], signal.SIGKILL)
    launched.end()
    said = launched.said(1 - rank)
    assert f"error: rank {rank} (pid {pids[rank]})" in said and "no sign of life" in said
    assert "most recent call first" in said and "Traceback" not in said
    goes_on_like(half, f"frozen{rank}", wholes(half))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "what, reason",
    [("save", "No space left on device at optimizer"), ("nan", "the loss of step 10"), ("bug", "KeyError")],
)
@pytest.mark.parametrize("half", BOTH, indirect=True)
def test_an_error_on_one_rank_ends_both_and_a_rerun_succeeds(half, wholes, what, reason, rank):
    name = f"failing_{what}{rank}"
    launched = Launched(half, name, failing(half, what, rank))
    assert launched.end(60) != 0
    assert reason in launched.said(rank)
    if what != "bug":
        assert "Traceback" not in launched.said(0) + launched.said(1)
    kept = sorted(path.name for path in (launched.output / "checkpoints").iterdir())
    assert kept == []
    goes_on_like(half, name, wholes(half))
