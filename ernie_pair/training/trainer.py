"""The engine of every training: resume, loop, schedule, log, checkpoints, and what happens between steps.

A `Job` knows the framework: a step, an evaluation, the content of a checkpoint. A `Trainer` runs it, and a
kind of training derives from `Trainer` what it does between steps.
"""

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Protocol, Sequence

import numpy as np
import yaml

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint, Content
from ernie_pair.checkpoint.checkpoints import Checkpoints, published_steps
from ernie_pair.checkpoint.fingerprint import NO_RULES, Fingerprint, RunRules
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.checkpoint.run_config import keep_config
from ernie_pair.checkpoint.run_folder import CHECKPOINTS
from ernie_pair.core.cli.options import names_in
from ernie_pair.core.errors import InputError, MachineError, NumbersError, counted
from ernie_pair.kernels.product_rate import product_rate
from ernie_pair.runtime.cpu import cpu_threads
from ernie_pair.runtime.processes.console import EventLines
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.watchdog import Watchdog
from ernie_pair.runtime.processes.world import AllReduce, World
from ernie_pair.training.callbacks import TrainerControl
from ernie_pair.training.run_log import open_log
from ernie_pair.training.schedule import Schedule, log_schedule
from ernie_pair.training.step_metrics import MetricsBuffer, window_means

MAX_SKIPPED = 0.9  # of the steps: a run with more has learned next to nothing

logger = logging.getLogger(__name__)


class Job(Protocol):
    """What is trained, saved and resumed: the only part that knows the framework."""

    def load_initial_weights(self) -> str:
        """Load the initial weights of a new run, and return their description for the log."""

    def state_files(self) -> Iterator[tuple[str, Content]]:
        """Yield (name, content) of the files of this rank in a checkpoint."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore weights and optimizer state. Raises CheckpointError, with nothing changed."""

    def step(self, micro_batches: list, number: int, stop: StopSignals) -> Mapping[str, float]:
        """Update the weights once, in step ``number``, and sum the stop requests of ``stop`` over the ranks.

        The metrics hold at least ``loss``, the mean over the whole global batch. A job that can skip
        a step also holds ``skipped_updates``, how many so far: the weights are then unchanged.
        They may be `DeferredMetrics`: then the ranks may exchange them, and ``stop`` be updated, only when
        they are read, which all ranks do after the same steps.
        """

    def evaluate(self, split: str) -> dict[str, float]:
        """Return the metrics of ``split``, equal on every rank."""


@dataclass(kw_only=True, eq=False)
class Trainer:
    """One run of ``job``, from its output folder to its last line; made and run by every rank alike.

    ``updates(consumed_samples)`` yields the micro-batches of this rank for one step after another.
    ``flags``: `SharedFlags`, with those of the output folder, its checkpoints and the device.
    ``fingerprint``: what must be equal for a resumed run to be the same run, read by ``rules``; ``layout``:
    what may change. ``lr_kwargs``: of `learning_rate`; None: a scheduler of the user's own gives the rates.
    ``pin_batches``: what a thread does with the micro-batches of the next step, see `ReadAhead`; None: there
    is no thread. ``command``: of these flags, for config.yaml; empty: none is written. ``num_parameters`` and
    ``phases``, the steps at which the phases begin, are for --dry_run. ``local``: this process among those
    that share its output folder; ``all_reduce``: the sum of an array over the ranks.

    ``control`` decides what is done after each step; it is equal on every rank.
    """

    job: Any
    updates: Callable[[int], Iterable[list]]
    schedule: Schedule
    flags: Any
    fingerprint: Fingerprint
    rules: RunRules = NO_RULES
    layout: dict[str, object] = field(default_factory=dict)
    lr_kwargs: Optional[dict[str, Any]] = None
    samples_per_epoch: float = 0
    pin_batches: Optional[Callable[[list], list]] = None
    command: str = ""
    num_parameters: int = 0
    phases: Sequence[int] = (0,)
    world: World = World()
    local: World = World()
    all_reduce: AllReduce = np.asarray

    def __post_init__(self) -> None:
        self.output_dir = Path(self.flags.output_dir)
        self.state, self.control, self.stop = TrainState(), TrainerControl(), StopSignals()
        self.watchdog = Watchdog(self.output_dir, self.world, self.flags.device)
        self.lines = EventLines(self.schedule.max_steps, self.samples_per_epoch, time.monotonic())
        self.log: Any = None  # the log of the run, once it has started
        self.checkpoints: Any = None  # and its checkpoints

    def call(self, event: str, **about: Any) -> None:
        """Handle an ``event`` of the loop, the name of a method of `PairCallback`."""

    def on_train_begin(self) -> None:
        """Handle the start: the log is open and no step has been taken."""

    def on_log(self, metrics: dict[str, float]) -> None:
        """Handle a logged training line; ``metrics`` are over the steps since the previous line."""

    def counts(self) -> dict[str, object]:
        """Return what is logged besides the metrics of the last evaluation; see `probability_counts`."""
        return {}

    def on_evaluate(self, metrics: dict[str, float]) -> None:
        """Handle an evaluation, also that of step 0; ``metrics`` is empty without validation data."""

    def export(self) -> None:
        """Export the model every ``export_steps`` steps."""

    def should_stop(self) -> bool:
        """Return whether to save and end the run here; equal on every rank and at any later start."""
        return False

    def on_train_end(self) -> None:
        """Handle the regular end of the run, not a signal or an error."""

    def train(self, stop: StopSignals) -> TrainState:
        """Train to the end from the newest checkpoint, or the start. Raises an ErniePairError, or Stopped."""
        flags = self.flags
        if flags.dry_run:
            from ernie_pair.training.dry_run import print_plan

            print_plan(self)
            return self.state
        self.stop = stop
        self.checkpoints = checkpoints = Checkpoints(
            self.output_dir,
            self.world,
            self.all_reduce,
            local=self.local,
            fresh_start=flags.fresh_start,
            keep=flags.keep_checkpoints,
            every=flags.keep_every,
        )
        try:
            with self.watchdog:
                self._run()
        except (MachineError, NumbersError) as error:
            rate = "--max_lr" if hasattr(flags, "max_lr") else "--learning_rate"
            what = error.message.replace("the learning rate", rate if self.lr_kwargs else "the learning rate")
            kept = "; the checkpoints before are intact" if published_steps(checkpoints.folder) else ""
            raise type(error)(f"{what}{kept}") from error
        finally:
            checkpoints.close()
        return self.state

    def resume(self, checkpoint: Optional[Checkpoint]) -> None:
        """Restore the job from the checkpoint, or else from its initial weights; log what begins."""
        schedule, batch_size = self.schedule, self.schedule.global_batch_size
        if checkpoint is None:
            self.state, begins = TrainState(), self.job.load_initial_weights().removeprefix("start ")
        else:
            self.state = checkpoint.state()
            check_position(self.state, batch_size)
            self.job.restore(checkpoint)
            begins = f"resumed {checkpoint.folder}: {self.state.consumed_samples} samples seen"
        self.lines.log_event("start", self.state, begins)
        log_schedule(self.lr_kwargs, schedule.max_steps, self.state.step - self.state.skipped_updates)
        if self.world.is_first and 0 < self.samples_per_epoch < batch_size:
            logger.warning(
                "the training data hold %s, fewer than the %d of a step, so some are repeated within a step; "
                "a smaller batch gives more steps per epoch",
                counted(max(1, round(self.samples_per_epoch)), "sample"),
                batch_size,
            )

    def _run(self) -> None:
        flags, schedule, allowed = self.flags, self.schedule, names_in(self.flags.allow_change)
        self.resume(self.checkpoints.resume(self.fingerprint, self.layout, allowed, self.rules))
        state = self.state
        self.log = open_log(
            self.output_dir,
            self.world,
            resumed=state,
            max_steps=schedule.max_steps,
            product_rate=product_rate(flags, flags.device, cpu_threads()) * self.world.size,
            samples_per_epoch=self.samples_per_epoch,
            report_to=flags.reporters,
        )
        if self.command and self.world.is_first:
            identity = {"run_id": self.checkpoints.run_id}
            try:
                keep_config(
                    self.output_dir, self.command, flags, state.step, identity=identity, layout=self.layout
                )
            except (OSError, yaml.YAMLError) as error:  # the run is more important
                reason = getattr(error, "strerror", None) or error
                logger.warning("%s: config.yaml is not written (%s)", self.output_dir, reason)
        try:
            self.log.configuration(flags)
            self.on_train_begin()
            if state.step >= schedule.max_steps:
                logger.info("already at step %d of %d: nothing to do", state.step, schedule.max_steps)
            else:
                self.stop.finish_the_step(flags.max_minutes)
                updates = self.updates(state.consumed_samples)
                if self.pin_batches is None:
                    self.train_steps(updates)
                else:
                    from ernie_pair.core.process_pool import ReadAhead  # for a GPU alone

                    with ReadAhead(updates, self.pin_batches) as steps:
                        self.train_steps(steps)
        finally:
            self.log.close()
        self.on_train_end()
        log_skipped(state)

    def train_steps(self, micro_batches_of_steps: Iterable[list]) -> None:
        """Train until ``schedule.max_steps``, starting from ``state``.

        ``micro_batches_of_steps`` yields the micro-batches of one step each, already positioned at
        ``state.consumed_samples``. A training line holds the means over the steps since the previous line;
        see `window_means`. If a rank was asked to stop, all save after the current step and raise Stopped;
        the evaluation that was due after it is done by the next start. In the last step a request comes too
        late to change anything. Raises NumbersError when the loss is not finite, as soon as it is read (see
        `MetricsBuffer`): nothing is published from it.
        """
        state, schedule, control = self.state, self.schedule, self.control
        if state.step == 0 and schedule.evaluates_at(0):
            self._evaluate()
        elif state.evaluation_pending:
            state.evaluation_pending = False
            # A step without an export waits for its evaluation, which a callback may have asked for.
            control.should_evaluate = schedule.evaluates_at(state.step) or not schedule.exports_at(state.step)
            self._evaluate_and_export()
        self.watchdog.steps_begin()
        buffer, started = MetricsBuffer(state, schedule), time.monotonic()
        batches = iter(micro_batches_of_steps)
        while state.step < schedule.max_steps and not self.should_stop():
            micro_batches = next(batches, None)
            if micro_batches is None:
                return
            waited = time.monotonic() - started
            if schedule.begins_an_epoch(state.step + 1):
                self.call("on_epoch_begin")
            self.call("on_step_begin")
            metrics = self.job.step(micro_batches, state.step + 1, self.stop)
            state.step += 1
            state.consumed_samples += schedule.global_batch_size
            buffer.add(metrics)
            if schedule.reads_at(state.step) or self.stop.requested:
                buffer.read()
            seconds = time.monotonic() - started
            self.watchdog.step_done(state.step)
            with self.watchdog.paused():
                control.begin_step(state.step, schedule)
                self.call("on_step_end")  # which may change the actions after this step
                if schedule.ends_an_epoch(state.step):
                    self.call("on_epoch_end")
                reading = time.monotonic()
                is_due = control.should_log or control.should_evaluate or control.should_save
                if is_due or self.should_stop():
                    buffer.read()
                seconds += time.monotonic() - reading
                self.log.tick(seconds, waited, buffer.take_work())
                self._end_step(buffer.latest)
            started = time.monotonic()  # the clock covers waiting for data and the step, nothing else

    def _end_step(self, latest: dict[str, float]) -> None:
        """Do what the schedule and the hooks require after a step. Raises Stopped if asked to stop."""
        state, control, is_last = self.state, self.control, self.state.step == self.schedule.max_steps
        if control.should_log:
            means = window_means(state.window, latest)
            self.log.scalars("train", means, state)
            state.window = {}
            self.on_log(dict(means))
        stops = self.stop.requested and not is_last
        if stops:
            state.evaluation_pending = control.should_evaluate or self.schedule.exports_at(state.step)
        else:
            self._evaluate_and_export()
        if stops or is_last or control.should_save or self.should_stop():
            self.save()  # last, so that a run killed before it repeats all of the above
        if stops:
            self.stop.raise_stopped(state.step)

    def _evaluate_and_export(self) -> None:
        if self.control.should_evaluate:
            self._evaluate()
        if self.schedule.exports_at(self.state.step):
            self.export()

    def _evaluate(self) -> None:
        metrics: dict[str, float] = {}
        if self.schedule.has_validation:
            metrics = self.job.evaluate("valid")
            self.log.scalars("valid", {**metrics, **self.counts()}, self.state)
        self.on_evaluate(metrics)

    def save(self) -> None:
        """Write a checkpoint of the step that ``state`` is at."""
        self.checkpoints.save(self.state, self.fingerprint, self.job.state_files(), self.layout)
        folder = (self.output_dir / "model_last").resolve()
        self.lines.log_event("saved", self.state, str(self.output_dir / CHECKPOINTS / folder.name))
        self.call("on_save", folder=folder)


def log_skipped(state: TrainState) -> None:
    """Log how many steps of a run were skipped. Raises NumbersError if they were nearly all."""
    if not state.skipped_updates:
        return
    skipped = f"{state.skipped_updates} of {state.step} steps were skipped, as their numbers were not finite"
    if state.skipped_updates > MAX_SKIPPED * state.step:
        raise NumbersError(
            f"{skipped}: the model has hardly been trained; lower the learning rate, or look at the samples, "
            "and train anew in another --output_dir"
        )
    logger.warning("%s", skipped)


def check_position(state: TrainState, global_batch_size: int) -> None:
    """Refuse a new global batch size that does not fit the samples seen.

    They must be whole steps of the new size, and enough samples must be left for the remaining
    steps. Raises InputError.
    """
    steps, rest = divmod(state.consumed_samples, global_batch_size)
    if rest or steps > state.step:
        raise InputError(
            f"--global_batch_size {global_batch_size} cannot continue after {state.consumed_samples} "
            f"samples in {state.step} steps; take a larger one that divides them"
        )
