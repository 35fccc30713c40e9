"""Two processes of either half under Paddle's launcher, to be killed, stopped or failed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_pretrain import events

# One rank whose third save finds no room, whose tenth loss is not finite, or that meets a bug there.
FAILING = """
from data_tools.options.cli import run_command
from importlib import import_module
from {config} as Config

job, run = import_module("{job_module}"), import_module("{run_module}")

class Job(job.{job}):
    def state_files(self):
        for number, file in enumerate(super().state_files()):
            yield file
        if {its_rank} == {rank} and "{what}" == "save":
            raise OSError(28, "No space left on device", "optimizer")

    def step(self, batches, number, stop):
        if {its_rank} == {rank} and number == 10 and "{what}" == "nan":
            {poison}
        if {its_rank} == {rank} and number == 10 and "{what}" == "bug":
            raise KeyError("a bug")
        return super().step(batches, number, stop)

job.{job} = run.{job} = Job
run_command(run.{function}, Config)
"""


class Launched:
    """A launcher with its two ranks, which their heartbeats name."""

    def __init__(self, half, output, script=None, **changes):
        self.output, self.log = half.folder / output, half.folder / f"{output}_log"
        words = half.words(self.output, **{**half.settings, **changes})
        launch = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
        self.process = subprocess.Popen(
            [*launch, "--log_dir", str(self.log), str(script or half.script), *words],
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
        return self.process.wait(timeout=seconds)

    def last_step(self):
        return [event["step"] for event in events(self.output) if event["split"] == "train"][-1]

    def saved_step(self):
        return json.loads((self.output / "model_last" / "state.json").read_text())["step"]


def failing(half, what, rank):
    """A script of ``half`` in which that rank fails."""
    script = half.folder / f"{what}{rank}.py"
    text = FAILING.replace("{what}", what).replace("{rank}", str(rank))
    for name, value in half.failing.items():
        text = text.replace(f"{{{name}}}", value)
    script.write_text(text)
    return script


def run_whole(half):
    launched = Launched(half, "whole")
    assert launched.end() == 0, launched.said(0) + launched.said(1)
    return launched.output


def goes_on_like(half, name, whole):
    """Start the run ``name`` again: it ends byte-equal to the one that was left alone."""
    launched = Launched(half, name)
    assert launched.end() == 0, launched.said(0)
    assert not (launched.output / "ranks").exists()
    assert events(launched.output) == events(whole)
    for path in (whole / "model_last").glob("*.safetensors"):
        assert (launched.output / "model_last" / path.name).read_bytes() == path.read_bytes()


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
