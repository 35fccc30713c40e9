"""One run of training, from its output folder to its last line; the same for every kind of training.

A kind of training supplies a job (step, evaluate, state_files, restore), its data and optional hooks.
"""

import logging
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Optional, Protocol, Sequence

import numpy as np
import yaml

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint
from ernie_pair.checkpoint.checkpoints import Checkpoints, check_ranks_agree, published_steps
from ernie_pair.checkpoint.fingerprint import NO_RULES, Fingerprint, RunRules
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.checkpoint.run_config import keep_config
from ernie_pair.checkpoint.run_folder import CHECKPOINTS
from ernie_pair.core.cli.options import names_in
from ernie_pair.core.errors import InputError, MachineError, NumbersError, counted
from ernie_pair.core.process_pool import ReadAhead
from ernie_pair.kernels.product_rate import product_rate
from ernie_pair.runtime.cpu import cpu_threads
from ernie_pair.runtime.processes.console import EventLines
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.watchdog import Watchdog
from ernie_pair.runtime.processes.world import World, gather_results
from ernie_pair.training import loop
from ernie_pair.training.dry_run import look_at_run, print_plan
from ernie_pair.training.hooks import Hooks, NoStop, Schedule
from ernie_pair.training.loop import tell_schedule
from ernie_pair.training.run_log import open_log

START = "start "  # which begins the line about the start of a run

logger = logging.getLogger(__name__)


class Data(Protocol):
    """The training data of this rank."""

    def updates(self, consumed_samples: int) -> Iterable[list]:
        """Yield the micro-batches of one step after another, from ``consumed_samples`` on."""


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run, and the place of this process in it.

    ``flags``: `SharedFlags`, with the flags of the output folder and its checkpoints, and device.
    ``rates``: keyword arguments of ``learning_rate``; None: they are of the user's own.
    ``fingerprint``: what must be equal for a resumed run to be the same run, read by ``rules``. ``topology``:
    what may change. ``place``: what a thread does with the micro-batches of a step while the previous one is
    computed, see `ReadAhead`; None: there is no thread, and they are made when the step begins. ``command``:
    the command of these flags, for config.yaml; empty: none is written. ``num_parameters`` and ``phases``,
    the steps at which the phases begin, are for --dry_run. ``local``: this process among those that share
    its output folder; ``all_reduce``: the sum of an array over the ranks.
    """

    flags: Any
    schedule: Schedule
    rates: Optional[dict[str, Any]]
    fingerprint: Fingerprint
    topology: dict[str, object] = field(default_factory=dict)
    rules: RunRules = NO_RULES
    samples_per_epoch: float = 0
    place: Optional[Callable[[list], list]] = None
    command: str = ""
    num_parameters: int = 0
    phases: Sequence[int] = (0,)
    world: World = World()
    local: World = World()
    all_reduce: Callable[[np.ndarray], np.ndarray] = np.asarray

    @property
    def output_dir(self) -> Path:
        """Return the output folder."""
        return Path(self.flags.output_dir)

    @property
    def allowed(self) -> list[str]:
        """Return the names in the fingerprint that may differ from the checkpoint's."""
        return names_in(self.flags.allow_change)


def run_training(
    job: loop.Job, data: Data, settings: RunSettings, hooks: Hooks, stop: StopSignals
) -> TrainState:
    """Train to the end from the newest checkpoint, or the start. Raises an ErniePairError, or Stopped."""
    flags, world = settings.flags, settings.world
    lines = EventLines(settings.schedule.max_steps, settings.samples_per_epoch, time.monotonic())
    if flags.dry_run:
        return _print_plan(job, data, settings, lines)
    checkpoints = Checkpoints(
        settings.output_dir,
        world,
        settings.all_reduce,
        local=settings.local,
        fresh_start=flags.fresh_start,
        keep=flags.keep_checkpoints,
        every=flags.keep_every,
    )
    try:
        with Watchdog(settings.output_dir, world, flags.device) as watchdog:
            hooks.stop, hooks.heartbeat, hooks.lines = stop, watchdog, lines
            return _train(job, data, settings, hooks, checkpoints)
    except (MachineError, NumbersError) as error:
        rate = "--max_lr" if hasattr(flags, "max_lr") else "--learning_rate"
        what = error.message.replace("the learning rate", rate if settings.rates else "the learning rate")
        kept = "; the checkpoints before are intact" if published_steps(checkpoints.folder) else ""
        raise type(error)(f"{what}{kept}") from error
    finally:
        checkpoints.close()


def _print_plan(job: loop.Job, data: Data, settings: RunSettings, lines: EventLines) -> TrainState:
    """Print what `run_training` would do, and return where it would resume; raise what it would raise."""
    world, all_reduce = settings.world, settings.all_reduce
    check_ranks_agree(all_reduce, world, settings.fingerprint)

    def look() -> Optional[str]:
        if not world.is_first:
            return None
        of_run = settings.fingerprint, settings.allowed, settings.rules
        newest = look_at_run(settings.output_dir, *of_run, settings.flags.fresh_start)
        return None if newest is None else str(newest.folder)

    newest = gather_results(all_reduce, world, look)[0]
    state = _begin_from(None if newest is None else Checkpoint(Path(newest)), job, settings, lines)
    print_plan(job, data, settings, state, NoStop())
    return state


def _begin_from(
    checkpoint: Optional[Checkpoint], job: loop.Job, settings: RunSettings, lines: EventLines
) -> TrainState:
    """Restore the job from the checkpoint, or else from the given weights or random ones; log what begins."""
    schedule = settings.schedule
    if checkpoint is None:
        state, beginning = TrainState(), job.load_initial_weights()
        lines.log_event("start", state, beginning.removeprefix(START))
    else:
        state = checkpoint.state()
        check_position(state, schedule.global_batch_size)
        job.restore(checkpoint)
        lines.log_event("start", state, f"resumed {checkpoint.folder}: {state.consumed_samples} samples seen")
    tell_schedule(settings.rates, schedule.max_steps, state.step - state.skipped_updates)
    count, taken = settings.samples_per_epoch, schedule.global_batch_size
    if settings.world.is_first and 0 < count < taken:
        logger.warning(
            "the training data hold %s, fewer than the %d of a step, so some are repeated within a step; "
            "a smaller batch gives more steps per epoch",
            counted(max(1, round(count)), "sample"),
            taken,
        )
    return state


def _train(
    job: loop.Job, data: Data, settings: RunSettings, hooks: Hooks, checkpoints: Checkpoints
) -> TrainState:
    flags, schedule, topology, world = settings.flags, settings.schedule, settings.topology, settings.world
    newest = checkpoints.resume(settings.fingerprint, topology, settings.allowed, settings.rules)
    state = _begin_from(newest, job, settings, hooks.lines)
    log = open_log(
        settings.output_dir,
        world,
        resumed=state,
        max_steps=schedule.max_steps,
        product_rate=product_rate(flags, flags.device, cpu_threads()) * world.size,
        samples_per_epoch=settings.samples_per_epoch,
        report_to=flags.reporters,
    )
    if settings.command and world.is_first:
        place = settings.output_dir, settings.command, flags
        try:
            keep_config(*place, state.step, identity={"run_id": checkpoints.run_id}, layout=topology)
        except (OSError, yaml.YAMLError) as error:  # the run is more important
            reason = getattr(error, "strerror", None) or error
            logger.warning("%s: config.yaml is not written (%s)", settings.output_dir, reason)

    def save(state: TrainState) -> None:
        checkpoints.save(state, settings.fingerprint, job.state_files(), topology)
        folder = (settings.output_dir / "model_last").resolve()
        hooks.lines.log_event("saved", state, str(settings.output_dir / CHECKPOINTS / folder.name))
        hooks.on_save(state, folder)

    hooks.save = save
    try:
        log.configuration(flags)
        hooks.on_start(state, log)
        if state.step >= schedule.max_steps:
            logger.info("already at step %d of %d: nothing to do", state.step, schedule.max_steps)
        else:
            hooks.stop.finish_the_step()
            updates = data.updates(state.consumed_samples)
            ahead = nullcontext(updates) if settings.place is None else ReadAhead(updates, settings.place)
            with ahead as steps:
                loop.train(job, steps, state, schedule, log, hooks)
    finally:
        log.close()
    hooks.on_end(state)
    tell_skipped(state)
    return state


MOST_SKIPPED = 0.9  # of the steps: a run with more has learned next to nothing


def tell_skipped(state: TrainState) -> None:
    """Log how many steps of a run were skipped. Raises NumbersError if they were nearly all."""
    if not state.skipped_updates:
        return
    told = f"{state.skipped_updates} of {state.step} steps were skipped, as their numbers were not finite"
    if state.skipped_updates > MOST_SKIPPED * state.step:
        raise NumbersError(
            f"{told}: the model has hardly been trained; lower the learning rate, or look at the samples, "
            "and train anew in another --output_dir"
        )
    logger.warning("%s", told)


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
