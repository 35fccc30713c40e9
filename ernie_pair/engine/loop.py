"""The update loop: it knows order and rhythm; it knows no framework."""

import math
import time
from dataclasses import dataclass
from typing import Callable, ContextManager, Dict, Iterable, List, Protocol, Tuple

from data_tools.base.errors import NumbersError
from ernie_pair.checkpoint.train_state import TrainState
from ernie_pair.engine.logging_window import add_step, window_means
from ernie_pair.processes.stop_signals import raise_stopped

MOST_SKIPPED_IN_A_ROW = 50


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
    has_validation: bool = True  # False: there is no data for it, and ``judge`` is asked without metrics

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


def never(state: TrainState) -> bool:
    return False


def _every(step: int, steps: int) -> bool:
    return steps > 0 and step % steps == 0


class Job(Protocol):
    """What an update and an evaluation are: the only part that knows the framework."""

    def update(self, batches: List, step: int, votes: int) -> Tuple[Dict[str, float], int]:
        """Move the weights once; the metrics, and the sum of ``votes`` over the ranks.

        The metrics hold at least ``loss``, the mean over the whole global batch. A job that can leave
        an update out holds ``skipped_updates`` too, how many so far: the weights are then as they were.
        """

    def evaluate(self, split: str) -> Dict[str, float]:
        """The metrics of ``split``, equal on every rank."""


class Watch(Protocol):
    """Wants to know where the loop is, so as to notice when it is nowhere any more."""

    def updated(self, step: int) -> None:
        """An update has ended."""

    def pause(self) -> ContextManager:
        """Within it something is under way that may take far longer than an update."""


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
    votes: Callable[[], int],
    watch: Watch,
    enough: Callable[[TrainState], bool] = never,
) -> None:
    """Update until ``rhythm.max_steps``, starting wherever ``state`` stands.

    ``updates`` yields the micro batches of one update each, already positioned at
    ``state.consumed_samples``. ``judge`` sees every validation result, that of step 0 and the last one
    included. A training line holds the means over the steps since the line before; see `logging_window`.
    ``votes``: what this rank has heard of signals. When a rank has, all save after the update they
    are in and raise Stopped; what was due after it is done by the next start. In the last update it
    comes too late to change anything.
    ``enough``, equal on every rank, is asked when all that is due after an update has been done: once it
    says so the run is saved and ends there, now as at any later start.
    Raises NumbersError when the loss is not finite: nothing is published from it.
    """
    visit = _Visits(rhythm, job, log, export, judge)
    if state.step == 0:
        visit.evaluate(state)
    elif state.owes_evaluation:
        state.owes_evaluation = False
        visit(state)
    skipped_in_a_row, started = 0, time.monotonic()
    for batches in _remaining(updates, rhythm, state, enough):
        waited = time.monotonic() - started
        metrics, stop = job.update(batches, state.step + 1, votes())
        state.step += 1
        state.consumed_samples += rhythm.global_batch_size
        skipped_in_a_row = _judge_numbers(metrics, state, skipped_in_a_row, rhythm.global_batch_size)
        log.tick(time.monotonic() - started, waited, rhythm.global_batch_size)
        watch.updated(state.step)
        state.window = add_step(state.window, metrics)
        if rhythm.logs_at(state.step):
            log.scalars("train", window_means(state.window, metrics), state)
            state.window = {}
        if state.step == rhythm.max_steps:
            stop = 0  # it is as good as done
        with watch.pause():
            if stop:
                state.owes_evaluation = visit.is_due(state.step)
            else:
                visit(state)
            if stop or rhythm.saves_at(state.step) or enough(state):
                save(state)  # last, so that a run killed before it does all of the above again
        if stop:
            raise_stopped(stop, f"after step {state.step}, saved")
        started = time.monotonic()  # the clock covers waiting for data and updating, nothing else


@dataclass(frozen=True)
class _Visits:
    """What is looked at and handed out between updates."""

    rhythm: Rhythm
    job: Job
    log: object
    export: Callable[[TrainState], None]
    judge: Callable[[TrainState, Dict[str, float]], None]

    def is_due(self, step: int) -> bool:
        return self.rhythm.evaluates_at(step) or self.rhythm.exports_at(step)

    def __call__(self, state: TrainState) -> None:
        if self.rhythm.evaluates_at(state.step):
            self.evaluate(state)
        if self.rhythm.exports_at(state.step):
            self.export(state)

    def evaluate(self, state: TrainState) -> None:
        valid: Dict[str, float] = {}
        if self.rhythm.has_validation:
            valid = self.job.evaluate("valid")
            self.log.scalars("valid", valid, state)
        self.judge(state, valid)


def _remaining(updates: Iterable[List], rhythm: Rhythm, state: TrainState, enough) -> Iterable[List]:
    if state.step >= rhythm.max_steps or enough(state):
        return
    for batches in updates:
        yield batches
        if state.step >= rhythm.max_steps or enough(state):
            return


def _judge_numbers(metrics: Dict[str, float], state: TrainState, in_a_row: int, num_samples: int) -> int:
    """How many updates in a row have been skipped. Raises NumbersError where it does not go on."""
    skipped = int(metrics.get("skipped_updates", state.skipped_updates))
    in_a_row = in_a_row + 1 if skipped > state.skipped_updates else 0
    state.skipped_updates = skipped
    last = state.consumed_samples - 1
    if in_a_row >= MOST_SKIPPED_IN_A_ROW:
        raise NumbersError(
            f"{in_a_row} updates in a row were skipped, up to {state.step}: their numbers were not finite; "
            f"lower --max_lr or --learning_rate, or look at the samples up to {last}, then start the same "
            "command again"
        )
    if not in_a_row and not math.isfinite(metrics["loss"]):
        raise NumbersError(
            f"the loss of update {state.step} (samples {last + 1 - num_samples} to {last}) is "
            f"{metrics['loss']}; the checkpoints before it are intact: lower --max_lr or --learning_rate, "
            "or look at these samples, then start the same command again"
        )
    return in_a_row
