"""Hooks that a kind of training adds to the loop: called between steps, on all ranks."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Callable, ContextManager

from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.runtime.processes.console import EventLines


@dataclass(frozen=True)
class Schedule:
    """The steps at which something is due. 0 means never; ``samples_per_epoch`` 0: epochs do not count."""

    max_steps: int
    global_batch_size: int
    logging_freq: int
    eval_freq: int
    checkpoint_steps: int
    export_steps: int = 0
    samples_per_epoch: int = 0
    has_validation: bool = True  # False: there is no data for it, and hooks are called without metrics
    has_test: bool = False  # whether there is another evaluation after the last step
    evaluates: bool = True  # False: never, and nothing is judged
    evaluates_epochs: bool = True  # at the end of each epoch too, if epochs count
    saves_epochs: bool = False  # the same
    sync_freq: int = 1  # steps between readings of the metrics; 0: only when something else is due

    def logs_at(self, step: int) -> bool:
        """Return whether a training line is due: every ``logging_freq`` steps and at the end."""
        return step == self.max_steps or _is_multiple(step, self.logging_freq)

    def evaluates_at(self, step: int) -> bool:
        """Return whether to evaluate: at step 0, by ``eval_freq``, where epochs end if asked, at the end."""
        ends_an_epoch = self.evaluates_epochs and self.ends_an_epoch(step)
        is_end = step in (0, self.max_steps)
        return self.evaluates and (is_end or ends_an_epoch or _is_multiple(step, self.eval_freq))

    def saves_at(self, step: int) -> bool:
        """Return whether a checkpoint is due: by ``checkpoint_steps``, after epochs if so, at the end."""
        ends_an_epoch = self.saves_epochs and self.ends_an_epoch(step)
        return step == self.max_steps or ends_an_epoch or _is_multiple(step, self.checkpoint_steps)

    def exports_at(self, step: int) -> bool:
        """Return whether an exported model is due: every ``export_steps`` steps."""
        return _is_multiple(step, self.export_steps)

    def reads_at(self, step: int) -> bool:
        """Return whether to read metrics after a step: by ``sync_freq``, or for what depends on them."""
        due = (self.logs_at, self.evaluates_at, self.saves_at, self.exports_at)
        return _is_multiple(step, self.sync_freq) or any(is_due(step) for is_due in due)

    def begins_an_epoch(self, step: int) -> bool:
        """Return whether ``step`` is the first in an epoch; if epochs do not count, none is."""
        return bool(self.samples_per_epoch) and (step == 1 or self.ends_an_epoch(step - 1))

    def ends_an_epoch(self, step: int) -> bool:
        """Return whether an epoch ends in this step; if epochs do not count, none does."""
        if not self.samples_per_epoch:
            return False
        done, before = step * self.global_batch_size, (step - 1) * self.global_batch_size
        return done // self.samples_per_epoch > before // self.samples_per_epoch


def _is_multiple(step: int, steps: int) -> bool:
    return steps > 0 and step % steps == 0


@dataclass
class TrainerControl:
    """What the loop will do after a step; a callback may switch each action on or off.

    The loop logs, evaluates and saves, in this order, and checks each flag again before its turn: one that is
    set after its turn is discarded at the next step. The last step is always saved. ``should_training_stop``
    ends the run after the step and saves it.
    """

    should_training_stop: bool = False
    should_log: bool = False
    should_evaluate: bool = False
    should_save: bool = False

    def begin_step(self, step: int, schedule: Schedule) -> None:
        """Set the actions that ``schedule`` gives for this step."""
        self.should_log = schedule.logs_at(step)
        self.should_evaluate = schedule.evaluates_at(step)
        self.should_save = schedule.saves_at(step)


class NoStop:
    """The stop requests of a run that cannot be stopped; those of others are `StopSignals`."""

    requested = False  # whether a rank was asked to stop, as of the last step; equal on every rank

    def local(self) -> int:
        """Return the requests on this rank as a number, which a job sums over the ranks in each step."""
        return 0

    def set_total(self, total: float) -> None:
        """Set that sum."""

    def raise_stopped(self, step: int) -> None:
        """Raise Stopped after ``step``, which is saved."""


StopRequests = Any  # a NoStop, or StopSignals


class NoHeartbeat:
    """The heartbeat of a run without a `Watchdog`, which notices when the loop hangs."""

    def steps_begin(self) -> None:
        """Note that the first step of this start has begun."""

    def step_done(self, step: int) -> None:
        """Note that a step has ended."""

    def paused(self) -> ContextManager:
        """Return a context within which something may take far longer than a step."""
        return nullcontext()


class Hooks:
    """The work of a kind of training between steps; override methods as needed. All ranks call all methods.

    Set by the engine that runs the loop: ``stop``, ``heartbeat``, ``save``, which writes a checkpoint, and
    ``lines``, which prints events on the console.
    ``control`` decides the actions of the loop after each step; it is equal on every rank.
    """

    def __init__(self) -> None:
        self.stop: StopRequests = NoStop()
        self.heartbeat: Any = NoHeartbeat()
        self.save: Callable[[TrainState], None] = lambda state: None
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

    def on_log(self, state: TrainState, metrics: dict[str, float]) -> None:
        """Handle a logged training line; ``metrics`` are over the steps since the previous line."""

    def on_evaluate(self, state: TrainState, metrics: dict[str, float]) -> None:
        """Handle an evaluation, also that of step 0; ``metrics`` is empty without validation data."""

    def counts(self) -> dict[str, object]:
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
