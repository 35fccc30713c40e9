"""The console of a run: a line for each event of the first rank, in columns; warnings of others; colours."""

import logging
import os
import re
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Iterator, Mapping, Optional

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

logger = logging.getLogger("ernie_pair")  # above those of all modules


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


# Curves all the same; a line of the console has no room for them.
NOT_SHOWN = (
    *("perplexity", "gradient_norm", "loss_scale", "skipped_updates"),
    *("precision", "recall", "average_precision", "mcc"),
    *("padding_share", "data_wait_share", "memory_gb", "gpu_memory_gb", "real_tokens_per_second"),
    *("tera_flops_per_second", "product_share"),
)
SPEEDS = {"samples_per_second": "samples/s", "tokens_per_second": "tokens/s"}


@dataclass(frozen=True)
class EventLines:
    """Writes the lines of a run of ``max_steps``: its event, its step, the share done, the epoch, and words.

    ``samples_per_epoch``: samples in one pass over the training data; 0 if not known.
    """

    max_steps: int = 0
    samples_per_epoch: float = 0
    started: float = -1.0  # by the monotonic clock; negative: the line of the end tells no time

    def log_event(self, event: str, state, words: str, tone: str = "") -> None:
        """Log a line: ``event`` happened at ``state``, a TrainState; ``tone``: a colour of the console."""
        parts = [part for part in (self.place_of(state.step, state.consumed_samples), words) if part]
        logging.getLogger(__name__).info("%-5s %s", event, "  ".join(parts), extra={"tone": tone})

    def log_metrics(self, split: str, state, values: Mapping[str, object], tone: str = "") -> None:
        """Log the metrics of ``split``, without those that a line has no room for."""
        shown = {name: value for name, value in values.items() if name not in NOT_SHOWN}
        self.log_event(split, state, "  ".join(map(_column_of, shown, shown.values())), tone)

    def log_end(self, state, words: str) -> None:
        """Log the line of the end, with the time that this start of the run has taken."""
        took = ""
        if self.started >= 0:
            took = f"took {timedelta(seconds=round(time.monotonic() - self.started))}  "
        self.log_event("end", state, f"{took}{words}", GOOD)

    def place_of(self, step: int, consumed_samples: int) -> str:
        """Return "step  5/30   16.7%  epoch  0.69"; each part is as wide as the last one of the run."""
        width = len(str(self.max_steps))
        place = f"step {step:{width}}/{self.max_steps}"
        if self.max_steps:
            place += f"  {100 * step / self.max_steps:5.1f}%"
        if self.samples_per_epoch:
            place += f"  epoch {consumed_samples / self.samples_per_epoch:5.2f}"
        return place


class Improvement:
    """Tells which evaluations of a run are better than all before them, by one ``metric``."""

    def __init__(self, metric: str = "loss", lower_is_better: bool = True):
        self.metric, self.lower_is_better = metric, lower_is_better
        self.best: Optional[float] = None

    def judge(self, values: Mapping[str, object]) -> bool:
        """Return whether ``values`` are better than an earlier evaluation, and keep the best."""
        value = values.get(self.metric)
        if not isinstance(value, (int, float)) or value != value:
            return False
        before = self.best
        if before is not None and (value >= before if self.lower_is_better else value <= before):
            return False
        self.best = value
        return before is not None


def improvement_of(flags) -> Improvement:
    """Return the judge of evaluations for a run with ``flags``, which may name the metric it goes by."""
    metric = getattr(flags, "best_metric", "loss")
    return Improvement(metric, getattr(flags, "lower_is_better", metric == "loss"))


def _column_of(name: str, value: object) -> str:
    """Return a column: "loss  7.4129", "lr 1.50e-03", "    54.3 samples/s", "remaining 0:29:54"."""
    if not isinstance(value, (int, float)):
        return f"{name} {value}"
    if name in SPEEDS:
        digits = 1 if value < 1000 else 0
        return f"{value:7.{digits}f} {SPEEDS[name]}"
    if name == "learning_rate":
        return f"lr {value:.2e}"
    # Four decimals, or three digits of what is too large or too small for them.
    fits = value == 0 or 0.0005 <= abs(value) < 1000 or value != value
    number = str(value) if isinstance(value, int) else f"{value:.4f}" if fits else f"{value:.3g}"
    return f"{name} {number:>{7 if name.endswith('loss') else 6}}"
