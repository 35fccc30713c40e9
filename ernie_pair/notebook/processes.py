"""The processes that a notebook has started: their output, their end, their answer.

FOLDER/function           the function and its arguments, packed
FOLDER/answer.0           what rank 0 returned, or {"error": ...} of a rank that failed; see `worker`
FOLDER/rank.1.log         what rank 1 printed; rank 0 prints into the notebook
"""

import codecs
import contextlib
import os
import pickle
import selectors
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import IO, Dict, List, Optional

import cloudpickle

from data_tools.base.errors import LostProcessError
from ernie_pair.processes.exit_code import exit_code_of

PAYLOAD = "function"
UNPACKABLE = (pickle.PicklingError, TypeError, AttributeError, RecursionError)
LOOK_SECONDS = 0.1
GRACE_SECONDS = 3.0  # for the others to end by themselves when one has failed
SAVE_SECONDS = 60.0  # for a run that was interrupted to save itself


class RankTraceback(Exception):
    """The traceback of another process, as text: the cause of an error that is raised again here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Ranks:
    """The processes, started on entering, gone on leaving.

    An interrupt from the keyboard, or SystemExit, lets them save first.
    """

    def __init__(self, folder: Path, environments: List[Dict[str, str]]):
        self.folder, self.environments = folder, environments
        self.processes: List[subprocess.Popen] = []

    def __enter__(self) -> "Ranks":
        try:
            for rank, environment in enumerate(self.environments):
                self.processes.append(self._start(rank, environment))
        except BaseException:
            self._kill()
            raise
        self._output: IO[bytes] = self._output_of(self.processes[0])
        os.set_blocking(self._output.fileno(), False)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        return self

    def __exit__(self, kind, *reason) -> None:
        try:
            if kind is not None and issubclass(kind, (KeyboardInterrupt, SystemExit)):
                self._let_them_save()
        finally:
            self._kill()
            self._selector.close()
            self._output.close()

    def wait(self) -> None:
        """Wait until all have ended, or one has failed and the others had their time."""
        while all(exit_code_of(process) in (None, 0) for process in self.processes):
            self._forward(LOOK_SECONDS)
            if not self._running():
                break
        self._wait_until(time.monotonic() + GRACE_SECONDS)
        while self._forward(0):
            continue

    def answer(self):
        """Return what rank 0 returned.

        Raises what a rank raised, or LostProcessError for one that was killed.
        """
        answers = {rank: self._answer_of(rank) for rank in range(len(self.processes))}
        errors = [answer for answer in answers.values() if answer and "error" in answer]
        if errors:
            _raise(min(errors, key=lambda answer: (answer["is_of_a_peer"], answer["time"])))
        silent = [rank for rank, answer in answers.items() if answer is None]
        if silent:
            rank = min(silent, key=lambda rank: _innocence_of(exit_code_of(self.processes[rank])))
            raise LostProcessError(
                f"rank {rank} {_fate_of(exit_code_of(self.processes[rank]))}{self._last_line_of(rank)}"
            )
        first = answers[0]
        assert first is not None  # otherwise rank 0 was silent
        return first["result"]

    def _start(self, rank: int, environment: Dict[str, str]) -> subprocess.Popen:
        words = [sys.executable, "-u", "-m", "ernie_pair.notebook.worker", str(self.folder), str(rank)]
        # A session of its own: an interrupt is for the notebook, which passes it on.
        start = partial(subprocess.Popen, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
        if rank == 0:
            return start(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        with open(self._log_of(rank), "wb") as log:
            return start(words, stdout=log, stderr=log)

    def _output_of(self, process: subprocess.Popen) -> IO[bytes]:
        assert process.stdout is not None  # it was started with a pipe
        return process.stdout

    def _running(self) -> List[subprocess.Popen]:
        return [process for process in self.processes if exit_code_of(process) is None]

    def _forward(self, seconds: float) -> bool:
        """Show what rank 0 has printed, waiting for it for that long; return whether there was anything."""
        data = self._output.read(1 << 16) if self._selector.select(seconds) else None
        if data:
            sys.stdout.write(self._decoder.decode(data))
            sys.stdout.flush()
        elif data == b"":  # it has closed its output
            time.sleep(seconds)
        return bool(data)

    def _wait_until(self, deadline: float) -> None:
        while self._running() and time.monotonic() < deadline:
            self._forward(LOOK_SECONDS)

    def _let_them_save(self) -> None:
        """Let the processes save and end; a second interrupt ends them at once."""
        for process in self._running():
            os.kill(process.pid, signal.SIGTERM)  # nobody has waited for it, so the number is still its own
        self._wait_until(time.monotonic() + SAVE_SECONDS)

    def _kill(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with whatever it has started
            process.wait()

    def _answer_of(self, rank: int) -> Optional[Dict]:
        path = self.folder / f"answer.{rank}"
        return pickle.loads(path.read_bytes()) if path.exists() else None

    def _log_of(self, rank: int) -> Path:
        return self.folder / f"rank.{rank}.log"

    def _last_line_of(self, rank: int) -> str:
        if rank == 0:
            return "; see what it printed"
        lines = self._log_of(rank).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""


def _innocence_of(code: Optional[int]) -> int:
    """Return 0 for a process to blame, more for others.

    One that has ended tells more than one that waits for it or that has noticed its end.
    """
    return 2 if code is None else int(code == LostProcessError.exit_code)


def _fate_of(code: Optional[int]) -> str:
    if code is None:
        return "hangs and was ended"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _raise(answer: Dict) -> None:
    cause = RankTraceback(answer["traceback"])
    try:
        error = pickle.loads(answer["error"])
    except Exception:  # of a class that cannot be made here
        error = None
    if isinstance(error, Exception):
        raise error from cause
    raise LostProcessError(f"rank {answer['rank']}: {answer['said']}") from cause


def packed(value) -> bytes:
    """Pickle ``value``, with what is defined in a notebook inside. Raises one of UNPACKABLE."""
    return cloudpickle.dumps(value)
