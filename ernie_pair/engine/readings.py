"""The metrics of steps between their computation and the moment when they are read.

A GPU computes while the next steps are being prepared, and reading a number waits for all work queued
before it. So the metrics of a step may stay on the device until a log line, a checkpoint or an evaluation
needs them; they are then processed step by step, as if each had been read at once.
"""

import math
from typing import Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional

from data_tools.base.errors import NumbersError
from ernie_pair.checkpoint.train_state import TrainState
from ernie_pair.engine.hooks import StopRequests
from ernie_pair.engine.logging_window import add_step
from ernie_pair.engine.schedule import Schedule
from ernie_pair.engine.step_work import StepWork, take_work

MOST_SKIPPED_IN_A_ROW = 50


class DeferredMetrics(Mapping[str, float]):
    """The metrics of a step, which are read on first access.

    ``read`` is called then, and calls `set` of these metrics, and of all others that are pending.
    """

    def __init__(self, read: Callable[[], None]):
        self._read = read
        self._values: Optional[Dict[str, float]] = None

    def set(self, values: Dict[str, float]) -> None:
        """Set the metrics as numbers."""
        self._values = values

    def _known(self) -> Dict[str, float]:
        if self._values is None:
            self._read()
        assert self._values is not None  # ``read`` has set them
        return self._values

    def __getitem__(self, name: str) -> float:
        return self._known()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())


class _Step(NamedTuple):
    number: int
    last_sample: int
    metrics: Mapping[str, float]


class Readings:
    """The steps of a loop whose metrics have not been read yet; reading them updates ``state``.

    ``latest``: the metrics of the last step that was read.
    """

    def __init__(self, state: TrainState, schedule: Schedule):
        self.state, self.schedule = state, schedule
        self.latest: Dict[str, float] = {}
        self._steps: List[_Step] = []
        self._skipped_in_a_row, self._work = 0, StepWork()

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of the step that ``state`` has just taken."""
        self._steps.append(_Step(self.state.step, self.state.consumed_samples - 1, metrics))

    def is_due(self, stop: StopRequests) -> bool:
        """Return whether to read the metrics after this step, because of the schedule or a stop."""
        return self.schedule.reads_at(self.state.step) or stop.requested

    def read(self) -> None:
        """Read all pending metrics, in the order of the steps.

        Raises NumbersError if a step must not be kept.
        """
        steps, self._steps = self._steps, []
        for step in steps:
            metrics = dict(step.metrics)
            self._work = self._work.plus(take_work(metrics, self.schedule.global_batch_size))
            self._check_numbers(metrics, step)
            self.state.window = add_step(self.state.window, metrics)
            self.latest = metrics

    def take_work(self) -> StepWork:
        """Return the work of the steps that were read since the last call."""
        work, self._work = self._work, StepWork()
        return work

    def _check_numbers(self, metrics: Dict[str, float], step: _Step) -> None:
        """Count skipped steps. Raises NumbersError if the run must not continue."""
        state, last = self.state, step.last_sample
        skipped = int(metrics.get("skipped_updates", state.skipped_updates))
        in_a_row = self._skipped_in_a_row + 1 if skipped > state.skipped_updates else 0
        state.skipped_updates, self._skipped_in_a_row = skipped, in_a_row
        if in_a_row >= MOST_SKIPPED_IN_A_ROW:
            raise NumbersError(
                f"{in_a_row} steps in a row were skipped, up to {step.number}: their numbers were not "
                f"finite; lower --max_lr or --learning_rate, or look at the samples up to {last}, then start "
                "the same command again"
            )
        if not in_a_row and not math.isfinite(metrics["loss"]):
            first = last + 1 - self.schedule.global_batch_size
            raise NumbersError(
                f"the loss of step {step.number} (samples {first} to {last}) is {metrics['loss']}; the "
                "checkpoints before it are intact: lower --max_lr or --learning_rate, or look at these "
                "samples, then start the same command again"
            )
