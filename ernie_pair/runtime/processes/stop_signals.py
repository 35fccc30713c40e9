"""SIGTERM, SIGINT and SIGHUP: a run ends after the step it is in, at the same one on every rank.

Each rank adds its ``local()`` to what the ranks sum up in every step, so all learn of a signal
that reached only one of them at the same step, and no collective is spent on it.
"""

import atexit
import ctypes
import functools
import logging
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, NoReturn, Optional, TypeVar

from ernie_pair.core.errors import Stopped
from ernie_pair.core.progress import is_called_from_python

# A sum over up to 1023 ranks keeps the signals apart; the one that stands last here outweighs the others.
SIGNAL_WEIGHTS = {signal.SIGINT: 1, signal.SIGHUP: 1 << 10, signal.SIGTERM: 1 << 20}
WAITING = (signal.SIGTERM, signal.SIGHUP)  # while libraries are loaded
PR_SET_PDEATHSIG = 1
_C_LIBRARY = ctypes.CDLL(None)  # opened once: a process that was just forked may not
Result = TypeVar("Result")

logger = logging.getLogger(__name__)


class StopSignals:
    """A context in which signals stop the run.

    A signal raises Stopped at once, or is only noted once ``finish_the_step`` was called. Signals that come
    again change nothing. What handled them before is put back at the end, unless the end is that the
    process stops; one that ``goes_on``, that of a caller in Python, gets them back in any case. Outside the
    main thread, which alone may listen, no signal is heard. One that is noted in the last step stops what
    would come next: the context around this one, or the caller in Python. ``is_launched``: a launcher has
    started this process, which dies with it. ``when``: where Stopped says that the run was stopped at once.
    """

    def __init__(self, goes_on: bool = False, is_launched: bool = False, when: str = "before the first step"):
        self._goes_on, self._is_launched, self.when = goes_on, is_launched, when
        self._is_deaf = threading.current_thread() is not threading.main_thread()
        self._seen: Optional[signal.Signals] = None
        self._total = 0
        self._patient = False
        self._before: Dict[signal.Signals, Any] = {}  # what signal.getsignal returns
        self._began, self._clock = time.monotonic(), threading.Timer(0, self._end_of_time)
        self._end = float("inf")

    def __enter__(self) -> "StopSignals":
        self._before = {number: signal.getsignal(number) for number in SIGNAL_WEIGHTS}
        self.listen()
        if self._is_launched:
            stop_with_the_launcher()
        return self

    def __exit__(self, kind, *reason) -> None:
        self._clock.cancel()
        is_leaving = kind is Stopped and not (self._goes_on or is_called_from_python())
        for number, handler in () if self._is_deaf else self._before.items():
            # A signal that comes again must not spoil the exit code of a process that is leaving.
            signal.signal(number, signal.SIG_IGN if is_leaving else handler)
        total = self._total if self._is_launched else self.local()
        if kind and issubclass(kind, Exception) and self._seen and not self._patient:
            raise_stopped(self.local(), self.when)  # a library made another error of it while it was imported
        if kind is None and total:
            outer = getattr(self._before[signal.SIGTERM], "__self__", None)
            if isinstance(outer, StopSignals):
                raise_stopped(total, outer.when)
            if self._goes_on or is_called_from_python():
                raise_stopped(total, "after the last step, saved")

    def listen(self) -> None:
        """Handle the signals; again once Paddle and PaddleNLP are imported, which take SIGTERM away."""
        for number in () if self._is_deaf else SIGNAL_WEIGHTS:
            signal.signal(number, self._note)
            # Once signals are only noted, the system calls of a collective go on: Paddle's store takes a
            # receive that a signal interrupts for a lost connection, and launchers send several signals.
            signal.siginterrupt(number, not self._patient)

    def finish_the_step(self, max_minutes: float = 0) -> None:
        """Note signals from here on instead of stopping at once: there is something to save.

        So many minutes after this context was entered count as SIGTERM; 0: none do.
        """
        self._patient = True
        self.listen()
        if max_minutes:
            self._end = self._began + 60 * max_minutes
            left = self._end - time.monotonic()
            self._clock = threading.Timer(max(left, 0), self._end_of_time)
            self._clock.daemon = True
            self._clock.start()

    def _end_of_time(self) -> None:
        logger.info("--max_minutes are over")
        self._seen = self._seen or signal.SIGTERM

    def local(self) -> int:
        """Return what this rank has heard, a number to be summed up over the ranks; 0: nothing."""
        return 0 if self._seen is None else SIGNAL_WEIGHTS[self._seen]

    def set_total(self, total: float) -> None:
        """Take the sum of the ``local()`` of all ranks."""
        self._total = int(total)

    @property
    def requested(self) -> bool:
        """Return whether a rank had heard a signal when the sum was made."""
        return self._total > 0

    def raise_stopped(self, step: int) -> NoReturn:
        """Raise Stopped, with the exit code of the signal that any rank has heard."""
        is_over = self._seen in (None, signal.SIGTERM) and time.monotonic() > self._end - 1
        raise_stopped(self._total, f"after step {step}, saved", "--max_minutes" if is_over else "")

    def _note(self, number: int, frame) -> None:
        self._seen = self._seen or signal.Signals(number)
        if not self._patient:
            raise_stopped(self.local(), self.when)


@contextmanager
def signals_wait() -> Iterator[None]:
    """Return a context in which libraries are loaded; SIGTERM and SIGHUP wait until they are, and stop then.

    Loading Paddle takes seconds, and gives it the signals: it answers with a trace of its own.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITING)
    try:
        yield
    finally:
        disable = getattr(sys.modules.get("paddle"), "disable_signal_handler", None)
        if disable is not None:
            disable()
        with StopSignals(when="while it was loading"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITING)


def call_with_signals(train: Callable[[StopSignals], Result], is_launched: bool) -> Result:
    """Return what ``train`` does, called from Python; signals end it after the step that it is in.

    ``is_launched``: a launcher has started this process, which dies with it. Ctrl-C raises KeyboardInterrupt,
    another signal SystemExit.
    """
    try:
        with StopSignals(goes_on=True, is_launched=is_launched) as signals:
            return train(signals)
    except Stopped as stop:
        if stop.exit_code == 130:
            raise KeyboardInterrupt(str(stop)) from None
        logger.warning("%s", stop)
        raise SystemExit(stop.exit_code) from None


def raise_stopped(total: int, when: str, by: str = "") -> NoReturn:
    """Raise Stopped for the sum of what all ranks have heard; ``by``: what it was, if no signal."""
    number = max(
        (number for number in SIGNAL_WEIGHTS if total >= SIGNAL_WEIGHTS[number]),
        key=SIGNAL_WEIGHTS.__getitem__,
    )
    exit_code = 128 + (signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
    raise Stopped(f"stopped by {by or number.name} {when}; run the same command to continue", exit_code)


def stop_with_the_launcher() -> None:
    """Have the kernel send SIGTERM to this process when the one that launched it dies."""
    launcher = os.getppid()
    _C_LIBRARY.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != launcher:
        os.kill(os.getpid(), signal.SIGTERM)


@functools.cache
def skip_destructors() -> None:
    """Let this process end, with its exit code, as soon as Python has: no C++ destructor runs after it.

    The threads of gloo and of its store go on while the C library takes down, in an order that nobody
    knows, what they use; a process that had written everything was seen to abort there. Once is enough:
    further calls do nothing. Without glibc's `on_exit` (man 3 on_exit) the process ends as it always did.
    """
    library = ctypes.CDLL(None)

    def leave_first() -> None:
        # What is registered last is called first, and with the exit code as its first argument.
        library.fflush(None)
        library.on_exit(library._exit, None)

    if hasattr(library, "on_exit"):
        atexit.register(leave_first)
