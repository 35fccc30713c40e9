"""The training loop: it determines order and schedule, and depends on no framework."""

import logging
import math
import time
from typing import Iterable, Iterator, Mapping, Optional, Protocol

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint, Content
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.training.hooks import Hooks, Schedule, StopRequests
from ernie_pair.training.step_work import Readings, window_means


class Job(Protocol):
    """A kind of training, which can be saved and resumed: the only part that knows the framework."""

    def load_initial_weights(self) -> str:
        """Load the initial weights of a new run, and return their description for the log."""

    def state_files(self) -> Iterator[tuple[str, Content]]:
        """Yield (name, content) of the files of this rank in a checkpoint."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore weights and optimizer state. Raises CheckpointError, with nothing changed."""

    def step(self, micro_batches: list, number: int, stop: StopRequests) -> Mapping[str, float]:
        """Update the weights once, in step ``number``, and sum the stop requests of ``stop`` over the ranks.

        The metrics hold at least ``loss``, the mean over the whole global batch. A job that can skip
        a step also holds ``skipped_updates``, how many so far: the weights are then unchanged.
        They may be `DeferredMetrics`: then the ranks may exchange them, and ``stop`` be updated, only when
        they are read, which all ranks do after the same steps.
        """

    def evaluate(self, split: str) -> dict[str, float]:
        """Return the metrics of ``split``, equal on every rank."""


def train(
    job: Job, micro_batches_of_steps: Iterable[list], state: TrainState, schedule: Schedule, log, hooks: Hooks
) -> None:
    """Train until ``schedule.max_steps``, starting from ``state``.

    ``micro_batches_of_steps`` yields the micro-batches of one step each, already positioned at
    ``state.consumed_samples``. A training line holds the means over the steps since the previous line; see
    `window_means`. If a rank was asked to stop, all save after the current step and raise Stopped;
    the evaluation that was due after it is done by the next start. In the last step a request comes too
    late to change anything. Raises NumbersError when the loss is not finite, as soon as it is read (see
    `Readings`): nothing is published from it.
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
    batches = iter(micro_batches_of_steps)
    while state.step < schedule.max_steps and not hooks.should_stop(state):
        micro_batches = next(batches, None)
        if micro_batches is None:
            return
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
            hooks.control.begin_step(state.step, schedule)
            hooks.on_step_end(state)  # which may change the actions after this step
            if schedule.ends_an_epoch(state.step):
                hooks.on_epoch_end(state)
            control, reading = hooks.control, time.monotonic()
            is_due = control.should_log or control.should_evaluate or control.should_save
            if is_due or hooks.should_stop(state):
                readings.read()
            seconds += time.monotonic() - reading
            log.tick(seconds, waited, readings.take_work())
            _end_step(job, state, readings, schedule, log, hooks)
        started = time.monotonic()  # the clock covers waiting for data and the step, nothing else


def _end_step(job: Job, state: TrainState, readings: Readings, schedule: Schedule, log, hooks: Hooks) -> None:
    """Do what the schedule and the hooks require after a step. Raises Stopped if asked to stop."""
    control, is_last = hooks.control, state.step == schedule.max_steps
    if control.should_log:
        means = window_means(state.window, readings.latest)
        log.scalars("train", means, state)
        state.window = {}
        hooks.on_log(state, dict(means))
    stops = hooks.stop.requested and not is_last
    if stops:
        state.evaluation_pending = control.should_evaluate or schedule.exports_at(state.step)
    else:
        _run_due(job, state, schedule, log, hooks, control.should_evaluate)
    if stops or is_last or control.should_save or hooks.should_stop(state):
        hooks.save(state)  # last, so that a run killed before it repeats all of the above
    if stops:
        hooks.stop.raise_stopped(state.step)


def _run_due(
    job: Job, state: TrainState, schedule: Schedule, log, hooks: Hooks, should_evaluate: bool
) -> None:
    if should_evaluate:
        _evaluate(job, state, schedule, log, hooks)
    if schedule.exports_at(state.step):
        hooks.export(state)


def _evaluate(job: Job, state: TrainState, schedule: Schedule, log, hooks: Hooks) -> None:
    metrics: dict[str, float] = {}
    if schedule.has_validation:
        metrics = job.evaluate("valid")
        log.scalars("valid", {**metrics, **hooks.counts()}, state)
    hooks.on_evaluate(state, metrics)


STYLES = ("linear", "cosine", "constant")  # the decay after the warm-up

logger = logging.getLogger(__name__)


def learning_rate(
    step: int, *, max_lr: float, min_lr: float, warmup_steps: int, decay_steps: int, style: str = "linear"
) -> float:
    """Return the learning rate of step ``step``; 1 is the first, 0 stands for what comes before it.

    It rises from 0 to ``max_lr`` at ``warmup_steps``, falls to ``min_lr`` at ``decay_steps`` and stays there;
    between them it falls linearly, or along half a cosine wave (Loshchilov and Hutter, "SGDR",
    2017, without restarts). ``style`` constant: it stays at ``max_lr``.
    """
    if step < warmup_steps or step == warmup_steps > 0:
        return max_lr * step / warmup_steps
    if style == "constant":
        return max_lr
    if step >= decay_steps:
        return min_lr
    left = (decay_steps - step) / (decay_steps - warmup_steps)
    if style == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return min_lr + (max_lr - min_lr) * left


def tell_schedule(rates: Optional[dict], max_steps: int, done: int = 0) -> None:
    """Log the key points of a run's learning rate, and warn of a warm-up longer than half of the run.

    ``rates``: keyword arguments of ``learning_rate``, None: of a schedule that nothing is known of;
    ``done``: the steps taken before this start.
    """
    if rates is None:
        logger.info("learning rate: of the scheduler that was given")
        return
    logger.info("%s", describe_schedule(rates, max_steps, done))
    if 2 * rates["warmup_steps"] > max_steps:
        logger.warning(
            "warm-up takes %d of the %d steps, more than half of the run; is this intended?",
            rates["warmup_steps"],
            max_steps,
        )


def describe_schedule(rates: dict, max_steps: int, done: int = 0) -> str:
    """Return "learning rate: rises to 1e-4 at step 2,000, is 1e-5 at the last step, 200,000"."""
    peak, decay_steps = max(1, rates["warmup_steps"]), rates["decay_steps"]
    rises = f"rises to {_short(rates['max_lr'])} at step {peak:,}"
    landmarks = [rises if peak > 1 else f"starts at {_short(learning_rate(1, **rates))}"]
    lowest = f"{_short(rates['min_lr'])} at step {decay_steps:,}"
    if decay_steps < max_steps and rates.get("style") != "constant":
        landmarks.append(f"falls to {lowest}")
    landmarks.append(f"is {_short(learning_rate(max_steps, **rates))} at the last step, {max_steps:,}")
    if decay_steps > max_steps + 1 and rates.get("style") != "constant":
        landmarks[-1] += f" (it would be {lowest})"
    if 0 < done < max_steps:
        landmarks.append(f"is {_short(learning_rate(done + 1, **rates))} at the next step")
    return "learning rate: " + ", ".join(landmarks)


def _short(rate: float) -> str:
    """Format a rate with three digits, 9.1e-5 for 0.000090990: enough to identify it."""
    digits, power = f"{rate:.2e}".split("e")
    return f"{float(digits):g}e{int(power)}" if rate else "0"
