"""Run a command of ernie-pair in a separate process, which ends with this one."""

import os
import signal
import subprocess
from contextlib import AbstractContextManager
from itertools import takewhile
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from ernie_pair.core.errors import (
    CheckpointError,
    ErniePairError,
    InputError,
    LostProcessError,
    MachineError,
    NumbersError,
    Stopped,
)
from ernie_pair.core.run_module import python_words

ERRORS = {e.exit_code: e for e in (InputError, CheckpointError, NumbersError, MachineError, LostProcessError)}
MAX_LOG_BYTES = 1 << 20  # of the end of a log that are searched for its error
Words = List[str]  # of a command, as `ernie-pair` takes them


class BrokenRunError(ErniePairError):
    """A run that ended with a traceback."""

    exit_code = 1


class ChildCommand(AbstractContextManager["ChildCommand"]):
    """`ernie-pair WORDS`, started; as a context it is stopped at the end, where it still runs.

    ``log``: what it says is added to this file, and not shown. ``name``: what it is called in an error.
    ``environment``: in place of that of this process. ``program``: what is run with WORDS in place of
    `ernie-pair`. A signal for this process is to raise Stopped, as within `StopSignals`.
    """

    def __init__(
        self,
        words: Sequence[str],
        name: str,
        log: Optional[Path] = None,
        environment: Optional[Dict[str, str]] = None,
        program: Sequence[str] = (),
    ):
        self._where = f"{name}; see {log}" if log else f"{name}; its lines stand above"
        self._log, self._before = log, log.stat().st_size if log and log.is_file() else 0
        command = [*(program or ernie_pair_words()), *words]
        if log is None:
            self._process = subprocess.Popen(command, env=environment)
            return
        with open(log, "a", encoding="utf-8") as output:
            self._process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def __exit__(self, *reason) -> None:
        self._process.terminate()  # it saves first; nothing happens to one that has ended
        self._process.wait()

    def wait(self, seconds: Optional[float] = None) -> int:
        """Return its exit code, once it has ended. Raises subprocess.TimeoutExpired after ``seconds``."""
        return self._process.wait(seconds)

    def finish(self, seconds: Optional[float] = None) -> None:
        """Wait until it ends. Raises the error that it ends with; after ``seconds`` it is killed."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise LostProcessError(f"no end after {seconds:.0f} s ({self._where})") from None
        except Stopped as stop:
            raise Stopped("stopped; run the same command to continue", stop.exit_code) from None
        if code:
            raise error_of(code, self._where, last_error(self._log, self._before) if self._log else "")


def run_child(
    words: Sequence[str],
    name: str,
    log: Optional[Path] = None,
    environment: Optional[Dict[str, str]] = None,
    seconds: Optional[float] = None,
) -> None:
    """Run `ernie-pair WORDS` to its end, as `ChildCommand` does. Raises the error that it ends with."""
    with ChildCommand(words, name, log, environment) as child:
        child.finish(seconds)


def ernie_pair_words(*flags: str) -> Words:
    """Return the beginning of a command line of `ernie-pair`, run by Python with ``flags``."""
    return [*python_words(*flags), "-m", "ernie_pair"]


def words_of(*command: str, **flags) -> Words:
    """Return the words of a command and its flags, as `ernie-pair` takes them."""
    return [*command, *(f"--{name}={value}" for name, value in flags.items())]


def last_error(log: Path, first_byte: int) -> str:
    """Return the last `error: ` from ``first_byte`` on, with its further lines; before are other attempts."""
    with open(log, "rb") as file:
        file.seek(max(first_byte, log.stat().st_size - MAX_LOG_BYTES))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    places = [place for place, line in enumerate(lines) if line.startswith("error: ")]
    if not places:
        return ""
    first, *others = lines[places[-1] :]
    return "\n".join([first[len("error: ") :], *takewhile(lambda line: line.startswith("  "), others)])


def error_of(code: int, where: str, said: str) -> BaseException:
    """Return the error of a run by its exit code, with its line; 5 where a signal killed it, 1 for a bug."""
    number = -code if code < 0 else code - 128
    if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        exit_code = 128 + (signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
        name = signal.Signals(number).name
        return Stopped(f"stopped by {name} ({where}); run the same command to continue", exit_code)
    if code < 0:
        return MachineError(
            f"a run was killed by {signal.Signals(number).name} ({where}); memory may be short: free some "
            "or lower batch_size, and run the same command to continue"
        )
    if code in ERRORS:
        return ERRORS[code](f"{said or f'a run ended with exit code {code}'} ({where})")
    return BrokenRunError(f"a run ended with exit code {code}, which is a bug ({where}: its traceback)")


def exit_code_of(process: subprocess.Popen) -> Optional[int]:
    """Return the exit code of ``process``, minus the signal that killed it, or None while it runs.

    It stays to be waited for. `Popen.poll` takes a lock: an interrupt right behind it leaves the lock taken,
    after which the process never seems to end and `Popen.wait` waits for ever.
    """
    if process.returncode is not None:
        return process.returncode
    try:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # others have waited for it: poll answers by what it can know, 0
        return process.poll()
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
