"""The training loop: it knows order and schedule; it knows no framework."""

import math
import time
from typing import Dict, Iterable, List, Protocol

from data_tools.base.errors import NumbersError
from ernie_pair.checkpoint.train_state import TrainState
from ernie_pair.engine.hooks import Hooks, StopRequests
from ernie_pair.engine.logging_window import add_step, window_means
from ernie_pair.engine.schedule import Schedule

MOST_SKIPPED_IN_A_ROW = 50


class Job(Protocol):
    """The step and the evaluation of a kind of training: the only part that knows the framework."""

    def step(self, micro_batches: List, number: int, stop: StopRequests) -> Dict[str, float]:
        """Move the weights once, in step ``number``, and sum up over the ranks what ``stop`` has heard.

        The metrics hold at least ``loss``, the mean over the whole global batch. A job that can leave
        a step out holds ``skipped_updates`` too, how many so far: the weights are then as they were.
        """

    def evaluate(self, split: str) -> Dict[str, float]:
        """Return the metrics of ``split``, equal on every rank."""


def train(
    job: Job, micro_batches_of_steps: Iterable[List], state: TrainState, schedule: Schedule, log, hooks: Hooks
) -> None:
    """Train until ``schedule.max_steps``, starting wherever ``state`` stands.

    ``micro_batches_of_steps`` yields the micro-batches of one step each, already positioned at
    ``state.consumed_samples``. A training line holds the means over the steps since the line before; see
    `logging_window`. When a rank was asked to stop, all save after the step they are in and raise Stopped;
    the evaluation that was due after it is done by the next start. In the last step a request comes too
    late to change anything. Raises NumbersError when the loss is not finite: nothing is published from it.
    """
    if state.step == 0:
        _evaluate(job, state, schedule, log, hooks)
    elif state.evaluation_pending:
        state.evaluation_pending = False
        # A step without an export waits for its evaluation, which somebody may have asked for.
        evaluates = schedule.evaluates_at(state.step) or not schedule.exports_at(state.step)
        _run_due(job, state, schedule, log, hooks, evaluates)
    skipped_in_a_row, started = 0, time.monotonic()
    for micro_batches in _until_done(micro_batches_of_steps, state, schedule, hooks):
        waited = time.monotonic() - started
        metrics = job.step(micro_batches, state.step + 1, hooks.stop)
        state.step += 1
        state.consumed_samples += schedule.global_batch_size
        skipped_in_a_row = _check_numbers(metrics, state, skipped_in_a_row, schedule.global_batch_size)
        log.tick(time.monotonic() - started, waited, schedule.global_batch_size)
        hooks.heartbeat.step_done(state.step)
        state.window = add_step(state.window, metrics)
        with hooks.heartbeat.paused():
            _end_step(job, state, metrics, schedule, log, hooks)
        started = time.monotonic()  # the clock covers waiting for data and the step, nothing else


def _end_step(
    job: Job, state: TrainState, metrics: Dict[str, float], schedule: Schedule, log, hooks: Hooks
) -> None:
    """Do what the schedule, and who is called, want done after a step. Raises Stopped when asked to stop."""
    control, is_last = hooks.control, state.step == schedule.max_steps
    control.begin_step(state.step, schedule)
    hooks.on_step_end(state)
    if schedule.ends_an_epoch(state.step):
        hooks.on_epoch_end(state)
    if control.should_log:
        _log_window(state, metrics, log, hooks)
    is_asked_to_stop = hooks.stop.requested and not is_last
    if is_asked_to_stop:
        state.evaluation_pending = control.should_evaluate or schedule.exports_at(state.step)
    else:
        _run_due(job, state, schedule, log, hooks, control.should_evaluate)
    if is_asked_to_stop or is_last or control.should_save or hooks.should_stop(state):
        hooks.save(state)  # last, so that a run killed before it does all of the above again
    if is_asked_to_stop:
        hooks.stop.raise_stopped(state.step)


def _until_done(
    micro_batches_of_steps: Iterable[List], state: TrainState, schedule: Schedule, hooks: Hooks
) -> Iterable[List]:
    """Yield the micro-batches of one step after another, as long as the run is to go on."""
    if state.step >= schedule.max_steps or hooks.should_stop(state):
        return
    for micro_batches in micro_batches_of_steps:
        yield micro_batches
        if state.step >= schedule.max_steps or hooks.should_stop(state):
            return


def _log_window(state: TrainState, metrics: Dict[str, float], log, hooks: Hooks) -> None:
    """Log the means since the last training line, and begin another window."""
    means = window_means(state.window, metrics)
    log.scalars("train", means, state)
    state.window = {}
    hooks.on_log(state, dict(means))


def _run_due(
    job: Job, state: TrainState, schedule: Schedule, log, hooks: Hooks, should_evaluate: bool
) -> None:
    """Evaluate where that is due, and export where this step is one for it."""
    if should_evaluate:
        _evaluate(job, state, schedule, log, hooks)
    if schedule.exports_at(state.step):
        hooks.export(state)


def _evaluate(job: Job, state: TrainState, schedule: Schedule, log, hooks: Hooks) -> None:
    metrics: Dict[str, float] = {}
    if schedule.has_validation:
        metrics = job.evaluate("valid")
        log.scalars("valid", metrics, state)
    hooks.on_evaluate(state, metrics)


def _check_numbers(metrics: Dict[str, float], state: TrainState, in_a_row: int, num_samples: int) -> int:
    """Return how many steps in a row have been skipped. Raises NumbersError where it does not go on."""
    skipped = int(metrics.get("skipped_updates", state.skipped_updates))
    in_a_row = in_a_row + 1 if skipped > state.skipped_updates else 0
    state.skipped_updates = skipped
    last = state.consumed_samples - 1
    if in_a_row >= MOST_SKIPPED_IN_A_ROW:
        raise NumbersError(
            f"{in_a_row} steps in a row were skipped, up to {state.step}: their numbers were not finite; "
            f"lower --max_lr or --learning_rate, or look at the samples up to {last}, then start the same "
            "command again"
        )
    if not in_a_row and not math.isfinite(metrics["loss"]):
        raise NumbersError(
            f"the loss of step {state.step} (samples {last + 1 - num_samples} to {last}) is "
            f"{metrics['loss']}; the checkpoints before it are intact: lower --max_lr or --learning_rate, "
            "or look at these samples, then start the same command again"
        )
    return in_a_row
