"""The tables of bench.py: a module for each part, whose ``measured(config, folder)`` yields rows."""

import contextlib
import io
import time
from statistics import median
from typing import Callable, NamedTuple


class Row(NamedTuple):
    """A line of a table: what was measured, its figure, and what is wanted."""

    what: str
    figure: str
    goal: str = ""


class Seconds(NamedTuple):
    """Medians over runs: wall-clock time, and CPU time of this process."""

    clock: float
    processor: float

    def rate(self, amount: float, form: str) -> str:
        """Return how much of ``amount`` was done in a second, by both clocks."""
        return f"{amount / self.clock:{form}} ({amount / self.processor:{form}})"


def seconds_of(action: Callable[[], object], runs: int = 1) -> Seconds:
    """Return the seconds of ``action``, whose lines on stderr are not shown."""
    taken = []
    for _ in range(runs):
        started = Seconds(time.perf_counter(), time.process_time())
        with contextlib.redirect_stderr(io.StringIO()):
            action()
        taken.append((time.perf_counter() - started.clock, time.process_time() - started.processor))
    return Seconds(*map(median, zip(*taken)))
