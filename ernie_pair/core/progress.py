"""The progress of a tool: a bar with the remaining time for a person, lines if requested, else nothing.

A person watches a terminal or a notebook; TQDM_DISABLE=1 in the environment hides every bar. A function that
Python calls for its values shows nothing, unless it is asked to.
"""

import os
import sys
import time
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import Event, Thread
from typing import Iterator, Optional, Sequence, TextIO

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 60
SECONDS_BETWEEN_LOOKS, MAX_LINE_BYTES = 0.5, 1000
# Whether what Python has called shows what the command would show; None: it is a command.
_SHOWN: ContextVar[Optional[bool]] = ContextVar("shown", default=None)


@contextmanager
def called_from_python(verbose: bool) -> Iterator[None]:
    """Return a context whose commands are functions of Python; they are silent unless ``verbose``."""
    token = _SHOWN.set(verbose)
    try:
        yield
    finally:
        _SHOWN.reset(token)


def is_called_from_python() -> bool:
    """Return whether the code runs for a caller in Python, who goes on after it."""
    return _SHOWN.get() is not None


def is_silent() -> bool:
    """Return whether the caller wants values and errors alone."""
    return _SHOWN.get() is False


def say(text: str, stream: Optional[TextIO] = None) -> None:
    """Print what a command says, on standard output or on ``stream``; nothing if it is to be silent."""
    if not is_silent():
        print(text, file=stream or sys.stdout)


def shows_bars() -> bool:
    """Return whether a person watches standard error, and has not turned bars off."""
    if is_silent() or os.environ.get("TQDM_DISABLE", "0") not in ("", "0"):
        return False
    is_notebook = type(sys.stderr).__module__.startswith("ipykernel.")
    return is_notebook or bool(getattr(sys.stderr, "isatty", lambda: False)())


@contextmanager
def last_line_shown(log: Path) -> Iterator[None]:
    """Return a context in which a person sees the last line of a growing ``log``, one instead of another."""
    if not shows_bars():
        yield
        return
    ended = Event()

    def follow() -> None:
        with tqdm(bar_format="{desc}", leave=False, dynamic_ncols=True) as bar:
            while not ended.wait(SECONDS_BETWEEN_LOOKS):
                end = log.read_bytes()[-MAX_LINE_BYTES:] if log.is_file() else b""
                lines = end.decode("utf-8", "replace").replace("\r", "\n").split("\n")
                bar.set_description_str(next((line for line in reversed(lines) if line.strip()), ""))

    thread = Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Bar(AbstractContextManager):
    _bar: tqdm

    def __exit__(self, *exception) -> None:
        self._bar.close()


class Progress(_Bar):
    """Progress in bytes of the inputs; ``log_interval``: documents between two lines, 0: no lines."""

    def __init__(self, inputs: Sequence[Path], log_interval: int):
        size = sum(path.stat().st_size for path in inputs)
        self._bar = tqdm(total=size, unit="B", unit_scale=True, disable=not shows_bars())
        self._log_interval = log_interval
        self._made = self._told = 0

    def read(self, num_bytes: int) -> None:
        """Advance the bar by the bytes that were read."""
        self._bar.update(num_bytes)

    def made(self, num_documents: int) -> None:
        """Count documents, and print the count every ``log_interval`` of them."""
        self._made += num_documents
        if self._log_interval and self._made - self._told >= self._log_interval and not is_silent():
            tqdm.write(f"{self._made} documents", file=sys.stderr)
            self._told = self._made


class CountProgress(_Bar):
    """``total`` items, each a ``unit``: a bar, or lines (see `shows_bars`); silent unless ``shown``."""

    def __init__(self, total: int, unit: str, shown: bool = True):
        self._total, self._unit = total, unit
        self._is_bar = shows_bars()
        self._bar = tqdm(total=total, unit=unit, disable=not (shown and self._is_bar), leave=False)
        self._is_told = shown and not self._is_bar and not is_silent()
        self._started = self._told = time.monotonic()
        self._done = 0.0

    def advance(self, count: float) -> None:
        """Count items that are done."""
        self._bar.update(count)
        self._done += count
        now = time.monotonic()
        if self._is_told and now - self._told >= SECONDS_BETWEEN_LINES and self._done < self._total:
            self._told = now
            speed = self._done / (now - self._started)
            left = tqdm.format_interval((self._total - self._done) / speed)
            line = f"{self._done:.0f} of {self._total} {self._unit}s, {speed:.1f} a second, {left} left"
            tqdm.write(line, file=sys.stderr)
