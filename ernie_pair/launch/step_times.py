"""What a probe measures of a run: seconds and memory, as a value."""

from typing import NamedTuple


class StepTimes(NamedTuple):
    """The times of steps of a stand-in, in all processes at once.

    ``one``: seconds of a step of one micro-batch; ``further``: of each further one; ``rows``: samples in a
    micro-batch; ``memory``: the peak of the first process, in bytes.
    """

    one: float
    further: float
    rows: int
    memory: int

    def step_seconds(self, rows: int, passes: int) -> float:
        """Return the seconds of a step of ``passes`` micro-batches of ``rows`` samples."""
        once = max(self.one - self.further, 0.0)  # the all-reduce, and the optimizer
        return once + passes * self.further * rows / self.rows
