"""Run commands of ernie-pair in separate processes with a time limit; none outlives the check."""

import contextlib
import itertools
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Sequence

from data_tools.base.errors import LostProcessError
from ernie_pair.processes.child_command import ERRORS, BrokenRunError, error_of, last_error
from ernie_pair.processes.exit_code import exit_code_of

MARK = "ERNIE_PAIR_CHECK"  # in the environment of every process of the check: identifies the check
LOOK_SECONDS, KILL_SECONDS = 0.005, 20.0
SHOWN_WORDS, LONGEST_LINE = 2, 300  # of a command, in an error; characters of its last line of output
_TELLING = re.compile(r"[Ee]rror|cannot|[Ff]ailed")


class Commands:
    """The commands of one check, as a context: at its end all processes that they started are killed.

    ``folder``: for their output, and their temporary files. Thread-safe.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._mark = secrets.token_hex(12)
        self._numbers = itertools.count(1)
        self._is_over = False

    def __enter__(self) -> "Commands":
        (self._folder / "log").mkdir(parents=True, exist_ok=True)
        (self._folder / "tmp").mkdir(exist_ok=True)
        return self

    def __exit__(self, *reason) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill all running processes; nothing can be started afterwards."""
        self._is_over = True
        kill_marked(self._mark)

    @contextlib.contextmanager
    def started(
        self,
        words: Sequence[str],
        deadline: float,
        environment: Optional[Dict[str, str]] = None,
        module: str = "ernie_pair",
    ) -> Iterator["Running"]:
        """Start `python -m MODULE WORDS`; leaving the context kills it and all that it started.

        ``deadline``: in time.monotonic(), after which it is not waited for.
        """
        number = next(self._numbers)
        mark, log = f"{self._mark}-{number}-", self._folder / "log" / f"{number}.txt"
        if self._is_over:
            raise LostProcessError("the check is over")
        given = {"TMPDIR": str(self._folder / "tmp"), **(environment or {}), MARK: mark}
        with open(log, "wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, words)],
                env={**os.environ, **given},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # Ctrl-C goes to the check, which then kills this
            )
        name = " ".join(map(str, words[:SHOWN_WORDS])) or module
        running = Running(process, name, mark, log, deadline, lambda: self._is_over)
        try:
            yield running
        finally:
            running.kill()

    def run(
        self,
        words: Sequence[str],
        deadline: float,
        environment: Optional[Dict[str, str]] = None,
        module: str = "ernie_pair",
        accepted: Sequence[int] = (0,),
    ) -> "Running":
        """Run a command to its end. Raises the error that it ends with, or LostProcessError at ``deadline``.

        ``accepted``: the exit codes that are not errors.
        """
        with self.started(words, deadline, environment, module) as running:
            running.wait()
            running.refuse_failure(accepted)
            return running


class Running:
    """A command that was started by `Commands`."""

    def __init__(
        self,
        process: subprocess.Popen,
        name: str,
        mark: str,
        log: Path,
        deadline: float,
        is_over: Callable[[], bool],
    ):
        self.process, self.name, self.log, self.deadline = process, name, log, deadline
        self._mark, self._is_over = mark, is_over

    @property
    def said(self) -> str:
        """Return its output so far, of both streams."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Wait until it ends, or until ``until`` is true, and return whether the latter came first.

        Raises LostProcessError at the deadline.
        """
        while exit_code_of(self.process) is None:
            if until():
                return True
            if time.monotonic() > self.deadline:
                raise LostProcessError(f"{self.name}: the time of its step was over")
            if self._is_over():
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
            error = BrokenRunError(f"{self.name} ended with {ended}: {_last_line(self.said)}")
        raise error

    def kill(self) -> None:
        """Kill it, and all that it started."""
        kill_marked(self._mark)
        self.process.wait()


def kill_marked(mark: str) -> None:
    """Kill (SIGKILL) processes whose mark has this prefix, until none is left. Raises LostProcessError."""
    deadline = time.monotonic() + KILL_SECONDS
    while True:
        found = marked_processes(mark)
        if not found:
            return
        if time.monotonic() > deadline:
            raise LostProcessError(f"processes {', '.join(map(str, found))} do not end; kill them")
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_SECONDS)


def marked_processes(mark: str) -> List[int]:
    """Return the processes whose mark has this prefix, whoever their parent is by now."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            environment = Path("/proc", entry, "environ").read_bytes()
            if any(item.startswith(wanted) for item in environment.split(b"\0")):
                found.append(int(entry))
    return found


def _last_line(said: str) -> str:
    """Return the last line that mentions an error, else the last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)]
    return (telling or lines or ["no output"])[-1][:LONGEST_LINE]
