"""The console of a run: the lines of the first rank, the warnings of the others, colours on a terminal."""

import logging
import os
import sys
from contextlib import suppress

from tqdm import tqdm

from ernie_pair.processes.world import World

# What a record's ``tone`` may be (logging's ``extra``); without one its level decides.
GOOD, PLAIN = "good", ""
_COLOURS = {GOOD: "\033[32m", "warning": "\033[33m", "error": "\033[31m"}
_RESET = "\033[0m"

logger = logging.getLogger("ernie_pair")


def start_console(world: World) -> None:
    """Send INFO lines to stderr on the first rank, warnings elsewhere."""
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


class _AboveTheBar(logging.Handler):
    """A handler that lets a line stand above the progress bar instead of through it."""

    def emit(self, record):
        with suppress(OSError):  # whoever read the console has gone; the run stays
            line = self.format(record)
            if shows_colours(sys.stderr):
                line = _coloured(line, record)
            tqdm.write(line, file=sys.stderr)


def _coloured(line: str, record: logging.LogRecord) -> str:
    tone = getattr(record, "tone", PLAIN)
    if record.levelno >= logging.WARNING:
        tone = "error" if record.levelno >= logging.ERROR else "warning"
    return f"{_COLOURS[tone]}{line}{_RESET}" if tone in _COLOURS else line
