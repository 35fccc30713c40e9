"""What a kind of training adds to the loop: called between steps, by all ranks alike."""

from contextlib import nullcontext
from typing import Callable, ContextManager, Dict, Protocol

from ernie_pair.checkpoint.train_state import TrainState
from ernie_pair.engine.control import TrainerControl
from ernie_pair.processes.event_lines import EventLines


class StopRequests(Protocol):
    """The ranks' knowledge of signals; see `stop_signals.StopSignals`."""

    @property
    def requested(self) -> bool:
        """Return whether a rank was asked to stop, as of the last step. Equal on every rank."""

    def local(self) -> int:
        """Return what this rank has heard, a number that a job sums up over the ranks in each step."""

    def set_total(self, total: float) -> None:
        """Take that sum."""

    def raise_stopped(self, step: int) -> None:
        """Raise Stopped after ``step``, which is saved."""


class Heartbeat(Protocol):
    """A watcher that is told where the loop is, so as to notice when it is nowhere any more."""

    def steps_begin(self) -> None:
        """Note that the first step of this start is under way."""

    def step_done(self, step: int) -> None:
        """Note that a step has ended."""

    def paused(self) -> ContextManager:
        """Return a context within which something may take far longer than a step."""


class NoStop:
    """Stop requests of a run that nobody asks to stop."""

    requested = False

    def local(self) -> int:
        """Return 0: nothing was heard."""
        return 0

    def set_total(self, total: float) -> None:
        """Ignore what the ranks have heard."""

    def raise_stopped(self, step: int) -> None:
        """Do nothing."""


class NoHeartbeat:
    """The heartbeat of a run that nobody watches."""

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
    """The work of a kind of training between steps; override what is wanted. All ranks call all methods.

    Set by the engine that runs the loop: ``stop``, ``heartbeat``, ``save``, which writes a checkpoint, and
    ``lines``, which tells of events on the console.
    ``control`` is what the loop goes by after each step; it is equal on every rank.
    """

    def __init__(self) -> None:
        self.stop: StopRequests = NoStop()
        self.heartbeat: Heartbeat = NoHeartbeat()
        self.save: Callable[[TrainState], None] = save_nothing
        self.lines = EventLines()
        self.control = TrainerControl()

    def on_start(self, state: TrainState, log) -> None:
        """React to the start: the log is open and nothing has been done."""

    def on_step_end(self, state: TrainState) -> None:
        """React to a step, before it is logged, evaluated and saved as ``control`` says."""

    def on_epoch_end(self, state: TrainState) -> None:
        """React to a step that ends an epoch, after ``on_step_end``."""

    def on_log(self, state: TrainState, metrics: Dict[str, float]) -> None:
        """React to a logged training line; ``metrics`` are over the steps since the line before."""

    def on_evaluate(self, state: TrainState, metrics: Dict[str, float]) -> None:
        """React to an evaluation: that of step 0, of every ``eval_freq`` steps, the last one.

        ``metrics`` is empty where there is no validation data.
        """

    def export(self, state: TrainState) -> None:
        """Write what is handed out every ``export_steps``."""

    def on_save(self, state: TrainState, folder) -> None:
        """React to a checkpoint that lies in ``folder``."""

    def should_stop(self, state: TrainState) -> bool:
        """Return whether the run is to end here, saved. Equal on every rank, now as at any later start."""
        return False

    def on_end(self, state: TrainState) -> None:
        """React to the end of the loop; a signal or an error is none."""
