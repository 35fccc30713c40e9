"""The lines of a run on the console: those of the first rank, and the warnings of the others."""

import logging
import sys
from contextlib import suppress

from tqdm import tqdm

from ernie_pair.processes.world import World

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


class _AboveTheBar(logging.Handler):
    """A handler that lets a line stand above the progress bar instead of through it."""

    def emit(self, record):
        with suppress(OSError):  # whoever read the console has gone; the run stays
            tqdm.write(self.format(record), file=sys.stderr)
