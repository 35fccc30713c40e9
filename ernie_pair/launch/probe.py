"""Measure which number of processes makes the step of a run fastest on this machine.

Each candidate starts its processes as the run would, and they take a few steps of a stand-in of the run.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Dict, List, NamedTuple, Union

from data_tools.base.errors import InputError
from ernie_pair.device.free_memory import free_memory
from ernie_pair.launch.launch_config import LaunchConfig
from ernie_pair.launch.launcher_words import environment_of, words_around
from ernie_pair.launch.step_times import StepTimes
from ernie_pair.processes.child_command import ChildCommand, last_error

SECONDS = 180.0  # per candidate; most of it is the start of its processes
CLEARLY_SLOWER = 1.15  # than the best so far: then larger numbers of processes are not tried
MEMORY_SHARE = 0.8  # of the free memory, for all processes


class Candidate(NamedTuple):
    """A way to start a run: processes of ``threads`` that take ``passes`` times ``rows`` per step each."""

    launch: LaunchConfig
    flags: List[str]
    threads: int
    rows: int
    passes: int

    @property
    def processes(self) -> int:
        """Return the number of processes."""
        return self.launch.on_each_machine

    @property
    def words(self) -> str:
        """Return processes and threads in words."""
        processes, threads = "process" + "es" * (self.processes > 1), "thread" + "s" * (self.threads > 1)
        return f"{self.processes} {processes} x {self.threads} {threads}"


class Choice(NamedTuple):
    """The number of processes, and why, as a line."""

    processes: int
    reason: str


def measure(candidates: List[Candidate]) -> Choice:
    """Return the fastest of ``candidates``, which are in the order of their processes; each is shown.

    Raises InputError if none could be timed, and Stopped after a signal, within `StopSignals`.
    """
    _say(
        f"--processes auto: timing up to {len(candidates)} ways to use the cores, once for runs like this one"
    )
    taken: Dict[str, float] = {}
    best, memory = candidates[0], 0
    for candidate in candidates:
        if memory * candidate.processes > MEMORY_SHARE * free_memory():
            _say(f"  {candidate.words}: not tried, there is too little memory")
            break
        times = _time(candidate)
        if isinstance(times, str):
            _say(f"  {candidate.words}: {times}")
            continue
        taken[candidate.words] = times.step_seconds(candidate.rows, candidate.passes)
        memory = memory or times.memory
        _say(f"  {candidate.words}: {_shown(taken[candidate.words])}")
        best = candidate if taken[candidate.words] == min(taken.values()) else best
        if taken[candidate.words] > CLEARLY_SLOWER * taken[best.words]:
            break
    if not taken:
        raise InputError("--processes auto could not time a step; give a number, 1 for example, to see why")
    others = ", ".join(f"{_shown(taken[words])} with {words}" for words in taken if words != best.words)
    against = f", against {others}" if others else ""
    return Choice(
        best.processes, f"{best.words}: {_shown(taken[best.words])} for a step of a stand-in{against}"
    )


def _time(candidate: Candidate) -> Union[StepTimes, str]:
    """Return the times of a candidate, or the reason why they are not known."""
    with tempfile.TemporaryDirectory(prefix="ernie-pair-") as name:
        folder = Path(name)
        answer, launch = folder / "answer.json", replace(candidate.launch, log_dir=str(folder / "log"))
        run = [sys.executable, "-u", "-m", "ernie_pair.launch.time_steps", str(answer), launch.command]
        _, *words = words_around(launch, [*run, *candidate.flags])
        environment = {**os.environ, **environment_of(launch)}
        try:
            with ChildCommand(words, "a probe", folder / "said", environment, program=()) as child:
                code = child.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return f"no answer in {SECONDS:.0f} s"
        if code or not answer.is_file():
            return f"it ended with exit code {code}{_error_in(folder)}"
        return StepTimes(**json.loads(answer.read_text(encoding="utf-8")))


def _error_in(folder: Path) -> str:
    """Return the last error in the output, after a colon."""
    logs = [folder / "said", *sorted((folder / "log").glob("workerlog.*"))]
    errors = list(filter(None, (last_error(log, 0) for log in logs)))
    return f": {errors[-1]}" if errors else ""


def _shown(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
