"""Time a few real steps of a run in memory, on its own samples and initial weights."""

import time
from statistics import median
from typing import Any, Callable, Iterable, List, Mapping, NamedTuple, Optional, Protocol

WARM_STEPS, STEPS = 1, 3  # the first one also chooses kernels and takes memory


class Steps(Protocol):
    """What can be stepped: a `Job` of the engine."""

    def step(self, micro_batches: List, number: int, stop: Any) -> Mapping[str, float]:
        """Move the weights once; see `ernie_pair.engine.loop.Job`."""


class Stretch(NamedTuple):
    """Steps of one kind, from ``first`` up to but not ``last``, counted from 0, and what one takes."""

    first: int
    last: int
    seconds: float = 0.0
    measured: int = 0

    @property
    def all_seconds(self) -> float:
        """Return what the steps take in all."""
        return (self.last - self.first) * self.seconds


def stretches_of(phases: Iterable[int], first: int, last: int) -> List[Stretch]:
    """Return the stretches from step ``first`` to ``last``; ``phases``: where steps of another kind begin."""
    begins = sorted({first, *(step for step in phases if first < step < last)})
    return [Stretch(begin, end) for begin, end in zip(begins, [*begins[1:], last]) if begin < end]


def measure(
    stretch: Stretch,
    job: Steps,
    updates: Callable[[int], Iterable[List]],
    batch_size: int,
    place: Optional[Callable[[List], List]],
    stop: Any,
) -> Stretch:
    """Return the stretch with the median of the seconds of a step, its wait for the samples included.

    ``updates``: see `engine.run.Data`; ``batch_size``: samples in a step. Every rank does the same.
    """
    seconds: List[float] = []
    count = min(WARM_STEPS + STEPS, stretch.last - stretch.first)
    steps = iter(updates(stretch.first * batch_size))
    begin = time.perf_counter()
    for number in range(stretch.first, stretch.first + count):
        batches = next(steps, None)
        if batches is None:
            break
        metrics = job.step(batches if place is None else place(batches), number + 1, stop)
        float(metrics["loss"])  # on a GPU the step is done when its loss is read
        now = time.perf_counter()
        seconds.append(now - begin)
        begin = now
    timed = seconds[WARM_STEPS:] or seconds
    return stretch._replace(seconds=median(timed) if timed else 0.0, measured=len(timed))
