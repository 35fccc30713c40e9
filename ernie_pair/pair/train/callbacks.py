"""What a person adds to a training run: functions that are called when something has happened in it."""

from dataclasses import replace
from pathlib import Path
from typing import Dict, Sequence

from ernie_pair.checkpoint.train_state import TrainState
from ernie_pair.processes.collectives import Add, together
from ernie_pair.processes.world import World


class PairCallback:
    """Override what is wanted. ``state`` is a copy: step, consumed_samples, best_metric and so on.

    Of several processes only the first calls; the others wait until it has. An error that it raises ends
    the run on all of them.
    """

    stop_is_asked = False

    def on_log(self, state: TrainState, metrics: Dict[str, float]) -> None:
        """Every --logging_freq steps, with means over the steps since the last call."""

    def on_evaluate(self, state: TrainState, metrics: Dict[str, float]) -> None:
        """After each evaluation of the run, the one before the first update included."""

    def on_save(self, state: TrainState, folder: Path) -> None:
        """A checkpoint lies in ``folder``."""

    def on_train_end(self, state: TrainState) -> None:
        """The run is over: it is done, was stopped early, or was asked to stop."""

    def stop(self) -> None:
        """End the run after the update it is in, saved. The same call of `train` goes on from there."""
        self.stop_is_asked = True


class Callbacks:
    """Those of a run, as its ranks call them: all ranks, at the same places."""

    def __init__(self, callbacks: Sequence[PairCallback], world: World, add: Add):
        self.callbacks, self.world, self.add = list(callbacks), world, add
        self.stop_is_asked = False  # by the first rank, known to all
        for callback in self.callbacks:
            callback.stop_is_asked = False

    def call(self, event: str, state: TrainState, *more) -> None:
        """``event`` is the name of the method. Raises on all ranks what the first one raises."""
        if self.callbacks:
            heard = together(self.add, self.world, lambda: self._call(event, state, *more))
            self.stop_is_asked = heard[0]

    def _call(self, event: str, state: TrainState, *more) -> bool:
        if self.world.is_first:
            for callback in self.callbacks:
                getattr(callback, event)(replace(state), *more)
        return any(callback.stop_is_asked for callback in self.callbacks)
