"""What a kind of training adds to the loop: called between steps, by all ranks alike."""

from contextlib import nullcontext
from typing import Callable, ContextManager, Dict, Protocol

from ernie_pair.checkpoint.train_state import TrainState


class StopRequests(Protocol):
    """What the ranks have heard of signals; see `stop_signals.StopSignals`."""

    @property
    def requested(self) -> bool:
        """Has a rank been asked to stop, as of the last step? Equal on every rank."""

    def local(self) -> int:
        """Return what this rank has heard, a number that a job sums up over the ranks in each step."""

    def set_total(self, total: float) -> None:
        """Take that sum."""

    def raise_stopped(self, step: int) -> None:
        """Raise Stopped after ``step``, which is saved."""


class Heartbeat(Protocol):
    """Wants to know where the loop is, so as to notice when it is nowhere any more."""

    def step_done(self, step: int) -> None:
        """A step has ended."""

    def paused(self) -> ContextManager:
        """Return a context within which something may take far longer than a step."""


class NoStop:
    """Nobody asks this run to stop."""

    requested = False

    def local(self) -> int:
        return 0

    def set_total(self, total: float) -> None:
        pass

    def raise_stopped(self, step: int) -> None:
        pass


class NoHeartbeat:
    """Nobody watches this run."""

    def step_done(self, step: int) -> None:
        pass

    def paused(self) -> ContextManager:
        return nullcontext()


def save_nothing(state: TrainState) -> None:
    """No checkpoint is written."""


class Hooks:
    """Override what is wanted.

    Set by the engine that runs the loop: ``stop``, ``heartbeat``, and ``save``, which writes a checkpoint.
    """

    def __init__(self) -> None:
        self.stop: StopRequests = NoStop()
        self.heartbeat: Heartbeat = NoHeartbeat()
        self.save: Callable[[TrainState], None] = save_nothing

    def on_start(self, log) -> None:
        """The log is open and nothing has been done."""

    def on_log(self, state: TrainState, metrics: Dict[str, float]) -> None:
        """A training line has been logged, with ``metrics`` over the steps since the line before."""

    def on_evaluate(self, state: TrainState, metrics: Dict[str, float]) -> None:
        """An evaluation is done: that of step 0, of every ``eval_freq`` steps, the last one.

        ``metrics`` is empty where there is no validation data.
        """

    def export(self, state: TrainState) -> None:
        """Write what is handed out every ``export_steps``."""

    def on_save(self, state: TrainState, folder) -> None:
        """A checkpoint lies in ``folder``."""

    def should_stop(self, state: TrainState) -> bool:
        """Is the run to end here, saved? Equal on every rank, now as at any later start."""
        return False

    def on_end(self, state: TrainState) -> None:
        """The loop has ended, but for a signal or an error."""
