"""The console of a run: the lines of the first rank, the warnings of the others, colours on a terminal."""

import logging
import os
import re
import shutil
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator

from tqdm import tqdm

from ernie_pair.core.cli.standard_streams import as_called
from ernie_pair.core.files.atomic_files import published
from ernie_pair.core.progress import is_called_from_python, is_silent
from ernie_pair.runtime.processes.world import World, local_world

# What a record's ``tone`` may be (logging's ``extra``); without one its level decides.
GOOD, PLAIN = "good", ""
_COLOURS = {GOOD: "\033[32m", "warning": "\033[33m", "error": "\033[31m"}
_RESET = "\033[0m"
_CODES = re.compile(rb"\033\[[0-9;]*m")
LAUNCHER = "ERNIE_PAIR_COLOURS_BY"  # the launcher, by its id, that shows the log of its first process

logger = logging.getLogger("ernie_pair")


def start_console(world: World) -> None:
    """Send INFO lines to stderr on the first rank, warnings elsewhere.

    A caller in Python keeps the log that it has set up, and gets none that it has not asked for.
    """
    if is_silent() or (is_called_from_python() and logger.handlers):
        return
    handler = _AboveTheBar()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO if world.is_first else logging.WARNING)


def start_missing_console(world: World) -> None:
    """Start the console as `start_console` does, unless the caller of a Python function has set up a log."""
    if not logger.handlers:
        start_console(world)


def shows_colours(stream) -> bool:
    """Return whether ``stream`` is a terminal with colours, and NO_COLOR (no-color.org) is not set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(getattr(stream, "isatty", lambda: False)())


@contextmanager
def log_shown(log: Path) -> Iterator[None]:
    """Return a context in which the first process that this one starts writes ``log``, which is shown here.

    On a terminal with colours its lines have colours; at the end the file has none.
    """
    if not shows_colours(sys.stdout):
        yield
        return
    os.environ[LAUNCHER] = str(os.getpid())
    try:
        yield
    finally:
        gone = suppress(OSError)  # the end of the run counts, not that of its colours
        with gone, open(log, "rb") as lines, published(log) as (draft,), open(draft, "wb") as plain:
            plain.writelines(_CODES.sub(b"", line) for line in lines)


class _AboveTheBar(logging.Handler):
    """A handler that lets a line stand above the progress bar instead of through it."""

    def emit(self, record):
        if is_silent() and record.levelno < logging.WARNING:
            return
        with suppress(OSError):  # whoever read the console has gone; the run stays
            line, tone = as_called(self.format(record)), getattr(record, "tone", PLAIN)
            if record.levelno >= logging.WARNING:
                tone = "error" if record.levelno >= logging.ERROR else "warning"
            # Who started this process may show its lines; those of what it starts itself are not meant.
            is_shown = os.environ.get(LAUNCHER) == str(os.getppid()) and local_world().is_first
            if tone in _COLOURS and (shows_colours(sys.stderr) or is_shown):
                line = f"{_COLOURS[tone]}{line}{_RESET}"
            tqdm.write(line, file=sys.stderr)


def dry_log_dir() -> str:
    """Return a folder that only this process and the launcher that it becomes have."""
    return os.path.join(tempfile.gettempdir(), f"ernie-pair-dry-run-{os.getpid()}")


@contextmanager
def dry_logs_removed() -> Iterator[None]:
    """Return a context at whose end the folder of this process is removed, if it was made."""
    try:
        yield
    finally:
        shutil.rmtree(dry_log_dir(), ignore_errors=True)
