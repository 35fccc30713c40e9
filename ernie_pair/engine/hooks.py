"""Hooks that a kind of training adds to the loop: called between steps, on all ranks."""

from contextlib import nullcontext
from typing import Callable, ContextManager, Dict, Protocol

from ernie_pair.checkpoint.train_state import TrainState
from ernie_pair.engine.control import TrainerControl
from ernie_pair.processes.event_lines import EventLines


class StopRequests(Protocol):
    """The stop requests of all ranks; see `stop_signals.StopSignals`."""

    @property
    def requested(self) -> bool:
        """Return whether a rank was asked to stop, as of the last step. Equal on every rank."""

    def local(self) -> int:
        """Return the requests on this rank as a number, which a job sums over the ranks in each step."""

    def set_total(self, total: float) -> None:
        """Set that sum."""

    def raise_stopped(self, step: int) -> None:
        """Raise Stopped after ``step``, which is saved."""


class Heartbeat(Protocol):
    """Tracks the position of the loop, to notice when the loop hangs."""

    def steps_begin(self) -> None:
        """Note that the first step of this start has begun."""

    def step_done(self, step: int) -> None:
        """Note that a step has ended."""

    def paused(self) -> ContextManager:
        """Return a context within which something may take far longer than a step."""


class NoStop:
    """The stop requests of a run that cannot be stopped."""

    requested = False

    def local(self) -> int:
        """Return 0: no request."""
        return 0

    def set_total(self, total: float) -> None:
        """Ignore the requests of the ranks."""

    def raise_stopped(self, step: int) -> None:
        """Do nothing."""


class NoHeartbeat:
    """The heartbeat of a run without a watchdog."""

    def steps_begin(self) -> None:
        """Do nothing."""

    def step_done(self, step: int) -> None:
        """Do nothing."""

    def paused(self) -> ContextManager:
        """Return a context that does nothing."""
        return nullcontext()


def save_nothing(state: TrainState) -> None:
    """Write no checkpoint."""


class Hooks:
    """The work of a kind of training between steps; override methods as needed. All ranks call all methods.

    Set by the engine that runs the loop: ``stop``, ``heartbeat``, ``save``, which writes a checkpoint, and
    ``lines``, which prints events on the console.
    ``control`` decides the actions of the loop after each step; it is equal on every rank.
    """

    def __init__(self) -> None:
        self.stop: StopRequests = NoStop()
        self.heartbeat: Heartbeat = NoHeartbeat()
        self.save: Callable[[TrainState], None] = save_nothing
        self.lines = EventLines()
        self.control = TrainerControl()

    def on_start(self, state: TrainState, log) -> None:
        """Handle the start: the log is open and no step has been taken."""

    def on_epoch_begin(self, state: TrainState) -> None:
        """Handle the start of an epoch, before the first step in it."""

    def on_step_begin(self, state: TrainState) -> None:
        """Handle the start of the step after ``state.step``; its micro-batches are there."""

    def on_step_end(self, state: TrainState) -> None:
        """Handle a step, before it is logged, evaluated and saved as ``control`` says."""

    def on_epoch_end(self, state: TrainState) -> None:
        """Handle a step that ends an epoch, after ``on_step_end``."""

    def on_log(self, state: TrainState, metrics: Dict[str, float]) -> None:
        """Handle a logged training line; ``metrics`` are over the steps since the previous line."""

    def on_evaluate(self, state: TrainState, metrics: Dict[str, float]) -> None:
        """Handle an evaluation: at step 0, every ``eval_freq`` steps, and the last one.

        ``metrics`` is empty if there is no validation data.
        """

    def counts(self) -> Dict[str, object]:
        """Return what is logged besides the metrics of the last evaluation; see `probability_counts`."""
        return {}

    def export(self, state: TrainState) -> None:
        """Export the model every ``export_steps`` steps."""

    def on_save(self, state: TrainState, folder) -> None:
        """Handle a checkpoint that was written to ``folder``."""

    def should_stop(self, state: TrainState) -> bool:
        """Return whether to save and end the run here; equal on every rank and at any later start."""
        return False

    def on_end(self, state: TrainState) -> None:
        """Handle the regular end of the loop, not a signal or an error."""
