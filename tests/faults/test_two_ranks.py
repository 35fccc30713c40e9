"""Two processes under Paddle's launcher, of which one is lost, stopped or fails."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_pretrain import events, flags, write_corpus, write_model

pytestmark = pytest.mark.ranks

SCRIPT = Path(__file__).parents[2] / "scripts" / "run_pretrain_static.py"
SETTINGS = {"max_steps": 60, "checkpoint_steps": 20, "eval_freq": 7, "dp_degree": 2}

# One rank whose third save finds no room, or whose tenth loss is not finite.
FAILING = """
import sys
from data_tools.command_line import run_command
from ernie_pair import checkpoint_folder
from ernie_pair.pretrain import job, run
from ernie_pair.pretrain.config import PretrainConfig

class Job(job.PretrainJob):
    def state_files(self):
        for number, file in enumerate(super().state_files()):
            yield file
        if self.world.rank == RANK and "save" == WHAT:
            raise OSError(28, "No space left on device", "optimizer")

    def update(self, batches, step, votes):
        if self.world.rank == RANK and step == 10 and "nan" == WHAT:
            self.program.set_weights({k: v * float("nan") for k, v in self.program.weights().items()})
        if self.world.rank == RANK and step == 10 and "bug" == WHAT:
            raise KeyError("a bug")
        return super().update(batches, step, votes)

job.PretrainJob = Job
run_command(run.pretrain, PretrainConfig)
"""


class Launched:
    """A launcher with its two ranks, which their heartbeats name."""

    def __init__(self, world, output, script=SCRIPT, **changes):
        self.output, self.log = world / output, world / f"{output}_log"
        words = flags(world / "model", world / "data", self.output, **{**SETTINGS, **changes})
        launch = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
        self.process = subprocess.Popen(
            [*launch, "--log_dir", str(self.log), str(script), *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def wait_for_update(self, step):
        deadline, path = time.monotonic() + 120, self.output / "metrics.jsonl"
        while time.monotonic() < deadline:
            if path.exists() and f'"train", "step": {step},' in path.read_text():
                return [self.pid_of(rank) for rank in (0, 1)]
            time.sleep(0.002)
        pytest.fail(f"no update {step}: {self.said(0)}")

    def pid_of(self, rank):
        return json.loads((self.output / "ranks" / f"{rank:05d}.json").read_text())["pid"]

    def said(self, rank):
        return (self.log / f"workerlog.{rank}").read_text()

    def end(self, seconds=120):
        code = self.process.wait(timeout=seconds)
        return code

    def last_step(self):
        return [event["step"] for event in events(self.output) if event["split"] == "train"][-1]


def wait_until_gone(pids, seconds):
    """How long it took."""
    begin = time.monotonic()
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() - begin < seconds, "a process is left"
        time.sleep(0.05)
    return time.monotonic() - begin


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    write_corpus(folder / "data", write_model(folder / "model"))
    return folder


@pytest.fixture(scope="module")
def whole(world):
    launched = Launched(world, "whole")
    assert launched.end() == 0
    return launched.output


def goes_on_like(world, name, whole):
    launched = Launched(world, name)
    assert launched.end() == 0, launched.said(0)
    assert not (launched.output / "ranks").exists()
    assert events(launched.output) == events(whole)
    for path in (whole / "model_last").glob("*.safetensors"):
        assert (launched.output / "model_last" / path.name).read_bytes() == path.read_bytes()


def test_a_killed_rank_ends_the_other_by_its_name(world):
    launched = Launched(world, "killed")
    pids = launched.wait_for_update(25)
    os.kill(pids[1], signal.SIGKILL)
    wait_until_gone(pids, 10)
    assert launched.end() != 0
    lines = launched.said(0).splitlines()
    assert f"error: rank 1 (pid {pids[1]}) on {os.uname().nodename} is gone" in lines[-1]
    assert "Traceback" not in launched.said(0)


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_both_at_the_same_step(world, whole):
    launched = Launched(world, "told")
    pids = launched.wait_for_update(5)
    os.kill(pids[1], signal.SIGTERM)
    wait_until_gone(pids, 25)
    launched.end()
    step = launched.last_step()
    for rank in (0, 1):
        assert f"stopped by SIGTERM after step {step}, saved" in launched.said(rank)
    goes_on_like(world, "told", whole)


@pytest.mark.slow
def test_a_signal_to_the_launcher_stops_both_at_the_same_step(world, whole):
    launched = Launched(world, "launcher_told")
    pids = launched.wait_for_update(5)
    launched.process.terminate()
    assert launched.end(30) == 15 and wait_until_gone(pids, 1) < 1
    assert f"after step {launched.last_step()}, saved" in launched.said(0)
    goes_on_like(world, "launcher_told", whole)


@pytest.mark.slow
def test_ranks_whose_launcher_is_killed_stop_and_leave_nothing_behind(world, whole):
    launched = Launched(world, "orphans")
    pids = launched.wait_for_update(5)
    launched.process.kill()
    wait_until_gone(pids, 10)
    assert f"stopped by SIGTERM after step {launched.last_step()}, saved" in launched.said(0)
    goes_on_like(world, "orphans", whole)


@pytest.mark.slow
def test_a_stopped_rank_ends_the_other_within_a_minute(world, whole):
    launched = Launched(world, "frozen")
    pids = launched.wait_for_update(25)
    os.kill(pids[1], signal.SIGSTOP)
    wait_until_gone(pids[:1], 60)
    os.kill(pids[1], signal.SIGKILL)
    launched.end()
    assert f"rank 1 (pid {pids[1]})" in launched.said(0) and "no sign of life" in launched.said(0)
    assert "most recent call first" in launched.said(0)
    goes_on_like(world, "frozen", whole)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "what, said",
    [("save", "No space left on device at optimizer"), ("nan", "the loss of update 10"), ("bug", "KeyError")],
)
def test_a_fault_of_one_rank_is_what_both_end_with(world, whole, rank, what, said):
    script = world / f"{what}{rank}.py"
    script.write_text(FAILING.replace("RANK", str(rank)).replace("WHAT", repr(what)))
    launched = Launched(world, f"failing_{what}{rank}", script)
    assert launched.end(60) != 0
    assert said in launched.said(rank)
    if what != "bug":
        assert "Traceback" not in launched.said(0) + launched.said(1)
    kept = sorted(path.name for path in (launched.output / "checkpoints").iterdir())
    assert kept == []
    goes_on_like(world, launched.output.name, whole)
