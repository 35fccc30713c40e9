"""Where a check runs its commands: their output, their time limits, and the end of all that they started."""

import contextlib
import itertools
import os
import re
import secrets
import signal
import subprocess
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence

from ernie_pair.checkpoint.run_folder import EVENTS
from ernie_pair.checks.gpu.machine import Machine, machine_without_paddle
from ernie_pair.core.errors import ErniePairError, LostProcessError
from ernie_pair.core.run_module import python_words
from ernie_pair.runtime.cpu_env import cpu_threads
from ernie_pair.runtime.gpu.builds import LEAST_CAPABILITY, words_of
from ernie_pair.runtime.processes.child_command import (
    ERRORS,
    BrokenRunError,
    error_of,
    exit_code_of,
    last_error,
)
from ernie_pair.training.run_log import read_all_events

MARK = "ERNIE_PAIR_CHECK"  # in the environment of every process of the check: identifies the check
LOOK_SECONDS, KILL_SECONDS = 0.005, 20.0
SHOWN_WORDS, LONGEST_LINE = 2, 300  # of a command, in an error; characters of its last line of output
MOST_LANES = 4
_OF_ERROR = re.compile(r"[Ee]rror|cannot|[Ff]ailed")


class Lab:
    """The place of one check, as a context: at its end all processes that it started are killed.

    ``folder``: for the output and the temporary files of the commands, and for what is made. Thread-safe.
    """

    def __init__(self, folder: Path, device: str, quick: bool):
        self.folder, self.device, self.quick = folder, device, quick
        self.machine: Machine = machine_without_paddle("it was not queried")
        self.deadline = 0.0  # of the current step, in time.monotonic()
        self.lanes = max(1, min(MOST_LANES, cpu_threads()))  # cases at a time, where no time is measured
        self.is_over = False
        self._mark, self._numbers = secrets.token_hex(12), itertools.count(1)
        self._made: Dict[str, Future] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> "Lab":
        (self.folder / "log").mkdir(parents=True, exist_ok=True)
        (self.folder / "tmp").mkdir(exist_ok=True)
        return self

    def __exit__(self, *reason) -> None:
        self.stop()

    @property
    def is_lost(self) -> bool:
        """Return whether a GPU should be checked and there is none."""
        return self.device == "gpu" and not self.machine.gpus

    def lacks(self, gpus: int = 1, dtype: str = "float32") -> str:
        """Return what is missing here for a case with ``gpus`` GPUs that support ``dtype``, or ''."""
        if self.device == "cpu" or len(self.machine.gpus) < gpus:
            return {1: "a GPU", 2: "two GPUs"}[gpus]
        least = LEAST_CAPABILITY[dtype]
        if min(gpu.capability for gpu in self.machine.gpus[:gpus]) < least:
            return f"a GPU of compute capability {words_of(least)}"
        return ""

    def stop(self) -> None:
        """Kill all running processes; nothing can be started afterwards."""
        self.is_over = True
        kill_marked(self._mark)

    @contextlib.contextmanager
    def started(
        self, words: Sequence[str], alone: bool = False, module: str = "ernie_pair"
    ) -> Iterator["Running"]:
        """Start `python -m MODULE WORDS`, ``alone`` or on a lane's cores; kill it and its own at the end."""
        if self.is_over:
            raise LostProcessError("the check is over")
        number = next(self._numbers)
        mark, log = f"{self._mark}-{number}-", self.folder / "log" / f"{number}.txt"
        threads = {} if alone else {"OMP_NUM_THREADS": str(max(1, cpu_threads() // self.lanes))}
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [*python_words(), "-m", module, *map(str, words)],
                env={**os.environ, "TMPDIR": str(self.folder / "tmp"), **threads, MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C goes to the check, which then kills this
            )
        running = Running(self, process, " ".join(map(str, words[:SHOWN_WORDS])) or module, log)
        try:
            yield running
        finally:
            process.kill()  # while it is replaced by the program that it starts, it has no mark
            kill_marked(mark)
            process.wait()

    def run(
        self, words: Sequence[str], module: str = "ernie_pair", accepted: Sequence[int] = (0,)
    ) -> "Running":
        """Run a command to its end. Raises the error that it ends with, or LostProcessError at the deadline.

        ``accepted``: the exit codes that are not errors.
        """
        with self.started(words, module=module) as running:
            running.wait()
            running.refuse_failure(accepted)
            return running

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the result of ``make``; another call with the same name gets the same, or the same error."""
        with self._lock:
            is_first = name not in self._made
            made = self._made.setdefault(name, Future())
        if is_first:
            try:
                made.set_result(make())
            except Exception as error:
                made.set_exception(error)
        return made.result()


class Running:
    """A command that a `Lab` has started; ``log``: the file of its output."""

    def __init__(self, lab: Lab, process: subprocess.Popen, name: str, log: Path):
        self.process, self.name, self.log, self._lab = process, name, log, lab

    @property
    def output(self) -> str:
        """Return its output so far, of both streams."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Return whether ``until`` is true before it ends. Raises LostProcessError at the deadline."""
        while exit_code_of(self.process) is None:
            if until():
                return True
            if time.monotonic() > self._lab.deadline:
                raise LostProcessError(f"{self.name}: the time of its step was over")
            if self._lab.is_over:
                raise LostProcessError("the check is over")
            time.sleep(LOOK_SECONDS)
        self.process.wait()
        return False

    def refuse_failure(self, accepted: Sequence[int] = (0,)) -> None:
        """Raise the error that the command ended with, by its exit code; none for those ``accepted``."""
        code = self.process.returncode
        if code in accepted:
            return
        error = error_of(code, self.name, last_error(self.log, 0))
        if code < 0 or code not in ERRORS:  # a bug, or a signal: its last output tells more than we can
            ended = f"signal {-code}" if code < 0 else f"exit code {code}"
            lines = [line.strip() for line in self.output.splitlines() if line.strip()]
            lines = [line for line in lines if _OF_ERROR.search(line)] or lines or ["no output"]
            error = BrokenRunError(f"{self.name} ended with {ended}: {lines[-1][:LONGEST_LINE]}")
        raise error


def kill_marked(mark: str) -> None:
    """Kill (SIGKILL) processes whose mark has this prefix, until none is left. Raises LostProcessError."""
    deadline = time.monotonic() + KILL_SECONDS
    while True:
        pids = marked_processes(mark)
        if not pids:
            return
        if time.monotonic() > deadline:
            raise LostProcessError(f"processes {', '.join(map(str, pids))} do not end; kill them")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_SECONDS)


def marked_processes(mark: str) -> List[int]:
    """Return the processes whose mark has this prefix, whoever their parent is by now."""
    wanted = f"{MARK}={mark}".encode()
    pids = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            environment = Path("/proc", entry, "environ").read_bytes()
            if any(item.startswith(wanted) for item in environment.split(b"\0")):
                pids.append(int(entry))
    return pids


def train_events(output: Path) -> List[Dict[str, Any]]:
    """Return the training lines in the metrics.jsonl of a run, which may still write; none without it."""
    return [event for event in read_all_events(output / EVENTS) if event["split"] == "train"]


def losses_of(output: Path) -> List[float]:
    """Return the loss of each training line of a run."""
    return [float(event["loss"]) for event in train_events(output)]


def error_in_logs(output: Path, error: ErniePairError) -> ErniePairError:
    """Return ``error`` of a launched run with the error message of one of its processes, if there is one."""
    messages = (last_error(log, 0) for log in sorted((output / "log").glob("workerlog.*")))
    message = next(filter(None, messages), "")
    return type(error)(message) if message else error
