"""The update loop: it knows order and rhythm; it knows no framework."""

import math
import time
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, List, Optional, Protocol

from data_tools.errors import NumbersError


@dataclass
class TrainState:
    """Everything the loop must remember, other than the weights."""

    step: int = 0
    consumed_samples: int = 0
    best_metric: Optional[float] = None


@dataclass(frozen=True)
class Rhythm:
    """When something is due, counted in updates. 0 means never."""

    max_steps: int
    global_batch_size: int
    logging_freq: int
    eval_freq: int
    checkpoint_steps: int
    export_steps: int = 0
    samples_per_epoch: int = 0

    def logs_at(self, step: int) -> bool:
        return step == self.max_steps or _every(step, self.logging_freq)

    def evaluates_at(self, step: int) -> bool:
        """Every ``eval_freq`` updates, at each epoch's end where epochs count, and at the end."""
        return step == self.max_steps or _every(step, self.eval_freq) or self._ends_an_epoch(step)

    def saves_at(self, step: int) -> bool:
        return step == self.max_steps or _every(step, self.checkpoint_steps)

    def exports_at(self, step: int) -> bool:
        return _every(step, self.export_steps)

    def _ends_an_epoch(self, step: int) -> bool:
        if not self.samples_per_epoch:
            return False
        done, before = step * self.global_batch_size, (step - 1) * self.global_batch_size
        return done // self.samples_per_epoch > before // self.samples_per_epoch


def _every(step: int, steps: int) -> bool:
    return steps > 0 and step % steps == 0


class Job(Protocol):
    """What an update and an evaluation are: the only part that knows the framework."""

    def update(self, batches: List, step: int) -> Dict[str, float]:
        """Move the weights once; return at least ``loss``, the mean over the whole global batch."""

    def evaluate(self, split: str) -> Dict[str, float]:
        """The metrics of ``split``, equal on every rank."""


def train(
    rhythm: Rhythm,
    job: Job,
    updates: Iterable[List],
    state: TrainState,
    log,
    *,
    save: Callable[[TrainState], None],
    export: Callable[[TrainState], None],
    judge: Callable[[TrainState, Dict[str, float]], None],
) -> None:
    """Update until ``rhythm.max_steps``, starting wherever ``state`` stands.

    ``updates`` yields the micro batches of one update each, already positioned at
    ``state.consumed_samples``. ``judge`` sees every validation result, the last one included.
    Raises NumbersError when the loss is not finite: nothing is published from it.
    """
    if state.step == 0:
        log.scalars("valid", job.evaluate("valid"), state)
    started = time.monotonic()
    for batches in _remaining(updates, rhythm, state):
        metrics = job.update(batches, state.step + 1)
        state.step += 1
        state.consumed_samples += rhythm.global_batch_size
        _refuse_infinity(metrics["loss"], state)
        log.tick(time.monotonic() - started, rhythm.global_batch_size)
        if rhythm.logs_at(state.step):
            log.scalars("train", metrics, state)
        if rhythm.evaluates_at(state.step):
            valid = job.evaluate("valid")
            log.scalars("valid", valid, state)
            judge(state, valid)
        if rhythm.exports_at(state.step):
            export(state)
        if rhythm.saves_at(state.step):  # last, so that a run killed before it does all of the above again
            save(state)
        started = time.monotonic()  # the clock covers waiting for data and updating, nothing else


def _remaining(updates: Iterable[List], rhythm: Rhythm, state: TrainState) -> Iterable[List]:
    if state.step >= rhythm.max_steps:
        return
    for batches in updates:
        yield batches
        if state.step >= rhythm.max_steps:
            return


def _refuse_infinity(loss: float, state: TrainState) -> None:
    if not math.isfinite(loss):
        raise NumbersError(
            f"the loss of update {state.step} is {loss}; the checkpoints before it are intact: "
            "lower --max_lr or --learning_rate, or look at the samples before "
            f"{state.consumed_samples}, then start the same command again"
        )
