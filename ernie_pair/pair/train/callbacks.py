"""What a user adds to a training run: functions that are called when something has happened in it."""

from dataclasses import replace
from pathlib import Path
from typing import Dict, Sequence

from ernie_pair.checkpoint.train_state import TrainState
from ernie_pair.processes.collectives import AllReduce, gather_results
from ernie_pair.processes.world import World


class PairCallback:
    """A base class of callbacks. Override what is wanted.

    ``state`` is a copy: step, consumed_samples, best_metric and so on. Of several ranks only rank 0 calls;
    the others wait until it has. An error that it raises ends the run on all of them.
    """

    stop_is_asked = False

    def on_log(self, state: TrainState, metrics: Dict[str, float]) -> None:
        """Handle the metrics of every --logging_freq steps: means over the steps since the last call."""

    def on_evaluate(self, state: TrainState, metrics: Dict[str, float]) -> None:
        """Handle the metrics of each evaluation of the run, the one before the first step included."""

    def on_save(self, state: TrainState, folder: Path) -> None:
        """Handle a checkpoint that lies in ``folder``."""

    def on_train_end(self, state: TrainState) -> None:
        """Handle the end of the run: it is done, was stopped early, or was asked to stop."""

    def stop(self) -> None:
        """End the run after the step it is in, saved. The next call of `train` goes on from there."""
        self.stop_is_asked = True


class Callbacks:
    """The callbacks of a run; all ranks call them, at the same places."""

    def __init__(self, callbacks: Sequence[PairCallback], world: World, all_reduce: AllReduce):
        self.callbacks, self.world, self.all_reduce = list(callbacks), world, all_reduce
        self.stop_is_asked = False  # by the first rank, known to all
        for callback in self.callbacks:
            callback.stop_is_asked = False

    def call(self, event: str, state: TrainState, *more) -> None:
        """Call the method named ``event`` of every callback. Raises on all ranks what rank 0 raises."""
        if self.callbacks:
            heard = gather_results(self.all_reduce, self.world, lambda: self._call(event, state, *more))
            self.stop_is_asked = heard[0]

    def _call(self, event: str, state: TrainState, *more) -> bool:
        if self.world.is_first:
            for callback in self.callbacks:
                getattr(callback, event)(replace(state), *more)
        return any(callback.stop_is_asked for callback in self.callbacks)
