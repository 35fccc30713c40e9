"""The training loop: it determines order and schedule, and depends on no framework."""

import time
from typing import Dict, Iterable, List, Mapping, Protocol

from ernie_pair.checkpoint.train_state import TrainState
from ernie_pair.engine.hooks import Hooks, StopRequests
from ernie_pair.engine.logging_window import window_means
from ernie_pair.engine.readings import Readings
from ernie_pair.engine.schedule import Schedule


class Job(Protocol):
    """The step and the evaluation of a kind of training: the only part that knows the framework."""

    def step(self, micro_batches: List, number: int, stop: StopRequests) -> Mapping[str, float]:
        """Update the weights once, in step ``number``, and sum the stop requests of ``stop`` over the ranks.

        The metrics hold at least ``loss``, the mean over the whole global batch. A job that can skip
        a step also holds ``skipped_updates``, how many so far: the weights are then unchanged.
        They may be `DeferredMetrics`: then the ranks may exchange them, and ``stop`` be updated, only when
        they are read, which all ranks do after the same steps.
        """

    def evaluate(self, split: str) -> Dict[str, float]:
        """Return the metrics of ``split``, equal on every rank."""


def train(
    job: Job, micro_batches_of_steps: Iterable[List], state: TrainState, schedule: Schedule, log, hooks: Hooks
) -> None:
    """Train until ``schedule.max_steps``, starting from ``state``.

    ``micro_batches_of_steps`` yields the micro-batches of one step each, already positioned at
    ``state.consumed_samples``. A training line holds the means over the steps since the previous line; see
    `logging_window`. If a rank was asked to stop, all save after the current step and raise Stopped;
    the evaluation that was due after it is done by the next start. In the last step a request comes too
    late to change anything. Raises NumbersError when the loss is not finite, as soon as it is read (see
    `readings`): nothing is published from it.
    """
    if state.step == 0 and schedule.evaluates_at(0):
        _evaluate(job, state, schedule, log, hooks)
    elif state.evaluation_pending:
        state.evaluation_pending = False
        # A step without an export waits for its evaluation, which a callback may have asked for.
        evaluates = schedule.evaluates_at(state.step) or not schedule.exports_at(state.step)
        _run_due(job, state, schedule, log, hooks, evaluates)
    hooks.heartbeat.steps_begin()
    readings, started = Readings(state, schedule), time.monotonic()
    for micro_batches in _until_done(micro_batches_of_steps, state, schedule, hooks):
        waited = time.monotonic() - started
        if schedule.begins_an_epoch(state.step + 1):
            hooks.on_epoch_begin(state)
        hooks.on_step_begin(state)
        metrics = job.step(micro_batches, state.step + 1, hooks.stop)
        state.step += 1
        state.consumed_samples += schedule.global_batch_size
        readings.add(metrics)
        if readings.is_due(hooks.stop):
            readings.read()
        seconds = time.monotonic() - started
        hooks.heartbeat.step_done(state.step)
        with hooks.heartbeat.paused():
            _ask_hooks(state, schedule, hooks)
            seconds += _read_for_others(readings, state, schedule, hooks)
            log.tick(seconds, waited, readings.take_work())
            _end_step(job, state, readings, schedule, log, hooks)
        started = time.monotonic()  # the clock covers waiting for data and the step, nothing else


def _ask_hooks(state: TrainState, schedule: Schedule, hooks: Hooks) -> None:
    """Set the actions after this step, and let the hooks change them."""
    hooks.control.begin_step(state.step, schedule)
    hooks.on_step_end(state)
    if schedule.ends_an_epoch(state.step):
        hooks.on_epoch_end(state)


def _read_for_others(readings: Readings, state: TrainState, schedule: Schedule, hooks: Hooks) -> float:
    """Read the pending metrics if a hook's action needs them, and return the seconds that it took."""
    control, started = hooks.control, time.monotonic()
    is_asked = control.should_log or control.should_evaluate or control.should_save
    if is_asked or hooks.should_stop(state):
        readings.read()
    return time.monotonic() - started


def _end_step(job: Job, state: TrainState, readings: Readings, schedule: Schedule, log, hooks: Hooks) -> None:
    """Do what the schedule and the hooks require after a step. Raises Stopped if asked to stop."""
    control, is_last = hooks.control, state.step == schedule.max_steps
    if control.should_log:
        _log_window(state, readings.latest, log, hooks)
    is_asked_to_stop = hooks.stop.requested and not is_last
    if is_asked_to_stop:
        state.evaluation_pending = control.should_evaluate or schedule.exports_at(state.step)
    else:
        _run_due(job, state, schedule, log, hooks, control.should_evaluate)
    if is_asked_to_stop or is_last or control.should_save or hooks.should_stop(state):
        hooks.save(state)  # last, so that a run killed before it repeats all of the above
    if is_asked_to_stop:
        hooks.stop.raise_stopped(state.step)


def _until_done(
    micro_batches_of_steps: Iterable[List], state: TrainState, schedule: Schedule, hooks: Hooks
) -> Iterable[List]:
    """Yield the micro-batches of one step after another, until the run ends."""
    if state.step >= schedule.max_steps or hooks.should_stop(state):
        return
    for micro_batches in micro_batches_of_steps:
        yield micro_batches
        if state.step >= schedule.max_steps or hooks.should_stop(state):
            return


def _log_window(state: TrainState, metrics: Dict[str, float], log, hooks: Hooks) -> None:
    """Log the means since the last training line, and start a new window."""
    means = window_means(state.window, metrics)
    log.scalars("train", means, state)
    state.window = {}
    hooks.on_log(state, dict(means))


def _run_due(
    job: Job, state: TrainState, schedule: Schedule, log, hooks: Hooks, should_evaluate: bool
) -> None:
    """Evaluate and export if that is due at this step."""
    if should_evaluate:
        _evaluate(job, state, schedule, log, hooks)
    if schedule.exports_at(state.step):
        hooks.export(state)


def _evaluate(job: Job, state: TrainState, schedule: Schedule, log, hooks: Hooks) -> None:
    metrics: Dict[str, float] = {}
    if schedule.has_validation:
        metrics = job.evaluate("valid")
        log.scalars("valid", {**metrics, **hooks.counts()}, state)
    hooks.on_evaluate(state, metrics)
