"""A dry run: what a start would resume from, and what the run would take; nothing is changed."""

import logging
import os
import resource
import shutil
import sys
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, Iterable, NamedTuple, Optional

import numpy as np

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint
from ernie_pair.checkpoint.checkpoints import check_ranks_agree, newest_sound, published_steps
from ernie_pair.checkpoint.fingerprint import check_known_keys
from ernie_pair.checkpoint.run_config import about_now, flags_of, text_of_config
from ernie_pair.checkpoint.run_folder import CHECKPOINTS, LOCK, check_no_lost_checkpoints, check_unlocked
from ernie_pair.core.cli.options import names_in
from ernie_pair.core.files.atomic_files import BAD
from ernie_pair.runtime.cpu import free_memory
from ernie_pair.runtime.gpu import peak_gpu_memory
from ernie_pair.runtime.processes.world import gather_results
from ernie_pair.training.trainer import Trainer

WARM_STEPS, TIMED_STEPS = 1, 3  # the first one also chooses kernels and takes memory
GIGA = 1e9
MAX_COUNTED = 5_000_000  # steps of which it is counted where something is due

logger = logging.getLogger(__name__)


class Phase(NamedTuple):
    """Steps of one kind, from ``first`` up to but not ``last``, counted from 0, and what one takes."""

    first: int
    last: int
    seconds: float = 0.0
    measured: int = 0


def print_plan(trainer: Trainer) -> None:
    """Print the flags, and what the run would do from where it would resume, as a file that --config reads.

    A few of its steps are taken in memory and timed. Raises what a start would raise. Called by every rank.
    """
    check_ranks_agree(trainer.all_reduce, trainer.world, trainer.fingerprint)
    found = gather_results(trainer.all_reduce, trainer.world, lambda: _inspect_run(trainer))
    trainer.resume(None if found[0] is None else Checkpoint(Path(found[0])))
    state, schedule = trainer.state, trainer.schedule
    begins = sorted({state.step, *(s for s in trainer.phases if state.step < s < schedule.max_steps)})
    ends = [*begins[1:], schedule.max_steps]
    phases = [_measure(trainer, Phase(begin, end)) for begin, end in zip(begins, ends) if begin < end]
    sizes = (
        len(content) if isinstance(content, bytes) else sum(array.nbytes for array in content.values())
        for _, content in trainer.job.state_files()
    )
    checkpoint = _sum(trainer, sum(sizes))
    memory = _memory_of(trainer)  # now, after the arrays of a checkpoint
    plan = {
        **_counts_of(trainer),
        "parameters": trainer.num_parameters,
        "processes": trainer.world.size,
        **_due_in(schedule, state.step),
        "checkpoint_gb": _giga(checkpoint),
        "checkpoints_kept": trainer.flags.keep_checkpoints,
        "disk_free_gb": _giga(shutil.disk_usage(_existing(trainer.output_dir)).free),
        **memory,
        **_time_of(phases),
    }
    if trainer.world.is_first:
        about = {**about_now(trainer.command), "plan": plan}
        sys.stdout.write(text_of_config(flags_of(trainer.flags), about))
        sys.stdout.flush()


def _inspect_run(trainer: Trainer) -> Optional[str]:
    """Return on rank 0 the checkpoint that a start would resume from, or refuse as it would."""
    if not trainer.world.is_first:
        return None
    output_dir, fingerprint = trainer.output_dir, trainer.fingerprint
    allowed = names_in(trainer.flags.allow_change)
    check_known_keys(fingerprint, allowed)
    there = _existing(output_dir)
    if not there.is_dir():
        raise NotADirectoryError(20, os.strerror(20), str(there))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(13, os.strerror(13), str(there))
    check_unlocked(output_dir / LOCK)
    if trainer.flags.fresh_start:
        return None
    folder = output_dir / CHECKPOINTS
    if not (folder.is_dir() and published_steps(folder)) and not list(folder.glob(f"{BAD}*")):
        check_no_lost_checkpoints(output_dir)
        return None
    damaged: dict[Path, str] = {}
    try:
        checkpoint = newest_sound(folder, damaged)
    finally:
        for reason in damaged.values():
            logger.warning("%s; a start would set it aside", reason)
    assert checkpoint is not None  # there is one, or it is damaged
    checkpoint.check_same_run(fingerprint, allowed, trainer.rules)
    return str(checkpoint.folder)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))


def _measure(trainer: Trainer, phase: Phase) -> Phase:
    """Return the phase with the median of the seconds of a step, the wait for the samples included."""
    state, batch_size = trainer.state, trainer.schedule.global_batch_size
    # The samples seen are not always whole steps of today's size: it may have changed.
    offset = state.consumed_samples - state.step * batch_size
    updates: Iterable[list] = trainer.updates(phase.first * batch_size + offset)
    seconds, begin = [], time.perf_counter()
    for number, batches in zip(range(phase.first + 1, phase.last + 1), updates):
        metrics = trainer.job.step(
            trainer.pin_batches(batches) if trainer.pin_batches else batches, number, trainer.stop
        )
        float(metrics["loss"])  # on a GPU the step is done when its loss is read
        now = time.perf_counter()
        seconds.append(now - begin)
        begin = now
        if len(seconds) == WARM_STEPS + TIMED_STEPS:
            break
    timed = seconds[WARM_STEPS:] or seconds
    return phase._replace(seconds=median(timed) if timed else 0.0, measured=len(timed))


def _counts_of(trainer: Trainer) -> dict[str, Any]:
    schedule, state = trainer.schedule, trainer.state
    left = max(0, schedule.max_steps - state.step)
    samples = state.consumed_samples + left * schedule.global_batch_size
    epochs = samples / trainer.samples_per_epoch if trainer.samples_per_epoch else None
    return {
        "steps": schedule.max_steps,
        "steps_done": state.step,
        "samples_per_step": schedule.global_batch_size,
        "samples": samples,
        **({} if epochs is None else {"epochs": float(f"{epochs:.4g}")}),
        **({} if epochs is None else {"samples_per_epoch": round(trainer.samples_per_epoch)}),
    }


def _due_in(schedule: Any, done: int) -> dict[str, int]:
    steps = range(done + 1, schedule.max_steps + 1)
    if len(steps) > MAX_COUNTED:
        return {}
    first = int(done == 0 and schedule.evaluates_at(0))
    validations = first + sum(map(schedule.evaluates_at, steps))
    tests = int(schedule.has_test and len(steps) > 0)
    return {
        "evaluations": validations * schedule.has_validation + tests,
        "checkpoints": sum(map(schedule.saves_at, steps)),
    }


def _memory_of(trainer: Trainer) -> dict[str, float]:
    """Return the memory that a process has taken at most so far, in the mean, and what is still free."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    memory = {"memory_gb": _giga(_sum(trainer, own) / trainer.world.size)}
    if np.isfinite(free_memory()):
        memory["memory_still_free_gb"] = _giga(free_memory())
    if trainer.flags.device == "gpu":
        memory["gpu_memory_gb"] = _giga(_sum(trainer, peak_gpu_memory()) / trainer.world.size)
    return memory


def _time_of(phases: list[Phase]) -> dict[str, Any]:
    if not phases:
        return {"time": "0:00:00", "time_is_of": "nothing: all steps are done"}
    seconds = sum((phase.last - phase.first) * phase.seconds for phase in phases)
    each = [round(phase.seconds, 4) for phase in phases]
    timed = sum(phase.measured for phase in phases)
    steps = sum(phase.last - phase.first for phase in phases)
    return {
        "seconds_per_step": each[0] if len(each) == 1 else each,
        "time": str(timedelta(seconds=round(seconds))),
        "time_is_of": (
            f"the {steps} training steps, by the median of {timed} that were taken in memory, after "
            f"{WARM_STEPS} to warm up{' in each phase' if len(each) > 1 else ''}; evaluations, checkpoints "
            "and the preparation of the data take additional time"
        ),
    }


def _sum(trainer: Trainer, number: float) -> float:
    return float(trainer.all_reduce(np.array([float(number)]))[0])


def _giga(number: float) -> float:
    return float(f"{number / GIGA:.3g}")
