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
from typing import Any, Callable, Iterable, NamedTuple, Optional, Sequence

import numpy as np

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint
from ernie_pair.checkpoint.checkpoints import newest_sound, published_steps
from ernie_pair.checkpoint.fingerprint import Fingerprint, RunRules, check_known_keys
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.checkpoint.run_config import about_now, flags_of, text_of_config
from ernie_pair.checkpoint.run_folder import CHECKPOINTS, LOCK, check_no_lost_checkpoints, check_unlocked
from ernie_pair.core.files.atomic_files import BAD
from ernie_pair.runtime.cpu import free_memory
from ernie_pair.runtime.gpu import peak_gpu_memory

logger = logging.getLogger(__name__)


def look_at_run(
    output_dir: Path, fingerprint: Fingerprint, allowed: Sequence[str], rules: RunRules, fresh_start: bool
) -> Optional[Checkpoint]:
    """Return what a start would go on from, or refuse as it would, changing nothing; None: it begins."""
    check_known_keys(fingerprint, allowed)
    there = _existing(output_dir)
    if not there.is_dir():
        raise NotADirectoryError(20, os.strerror(20), str(there))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(13, os.strerror(13), str(there))
    check_unlocked(output_dir / LOCK)
    if fresh_start:
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
    checkpoint.check_same_run(fingerprint, allowed, rules)
    return checkpoint


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))


WARM_STEPS, STEPS = 1, 3  # the first one also chooses kernels and takes memory


class Stretch(NamedTuple):
    """Steps of one kind, from ``first`` up to but not ``last``, counted from 0, and what one takes."""

    first: int
    last: int
    seconds: float = 0.0
    measured: int = 0

    @property
    def all_seconds(self) -> float:
        """Return what the steps take in all."""
        return (self.last - self.first) * self.seconds


def stretches_of(phases: Iterable[int], first: int, last: int) -> list[Stretch]:
    """Return the stretches from step ``first`` to ``last``; ``phases``: where steps of another kind begin."""
    begins = sorted({first, *(step for step in phases if first < step < last)})
    return [Stretch(begin, end) for begin, end in zip(begins, [*begins[1:], last]) if begin < end]


def measure(
    stretch: Stretch,
    job: Any,
    updates: Callable[[int], Iterable[list]],
    batch_size: int,
    place: Optional[Callable[[list], list]],
    stop: Any,
) -> Stretch:
    """Return the stretch with the median of the seconds of a step of ``job``, a `Job` of the loop.

    The wait for the samples is included. ``updates``: see `run.Data`; ``batch_size``: samples in a step.
    Every rank does the same.
    """
    seconds: list[float] = []
    count = min(WARM_STEPS + STEPS, stretch.last - stretch.first)
    steps = iter(updates(stretch.first * batch_size))
    begin = time.perf_counter()
    for number in range(stretch.first, stretch.first + count):
        batches = next(steps, None)
        if batches is None:
            break
        metrics = job.step(batches if place is None else place(batches), number + 1, stop)
        float(metrics["loss"])  # on a GPU the step is done when its loss is read
        now = time.perf_counter()
        seconds.append(now - begin)
        begin = now
    timed = seconds[WARM_STEPS:] or seconds
    return stretch._replace(seconds=median(timed) if timed else 0.0, measured=len(timed))


GIGA = 1e9
MOST_COUNTED = 5_000_000  # steps of which it is counted where something is due


def print_plan(job: Any, data: Any, settings: Any, state: TrainState, stop: Any) -> None:
    """Print the flags, and what the run would do from ``state`` on, as a file that --config reads.

    A few of its steps are taken in memory and timed. ``settings``: `run.RunSettings`. Called by every rank.
    """
    schedule = settings.schedule
    # The samples seen are not always whole steps of today's size: it may have changed.
    offset = state.consumed_samples - state.step * schedule.global_batch_size

    def updates(consumed: int) -> Iterable[list]:
        return data.updates(consumed + offset)

    kinds = stretches_of(settings.phases, state.step, schedule.max_steps)
    size, place = schedule.global_batch_size, settings.place
    stretches = [measure(kind, job, updates, size, place, stop) for kind in kinds]
    sizes = (
        len(content) if isinstance(content, bytes) else sum(array.nbytes for array in content.values())
        for _, content in job.state_files()
    )
    checkpoint = _sum(settings, sum(sizes))
    memory = _memory_of(settings)  # now, after the arrays of a checkpoint
    plan = {
        **_counts_of(settings, state),
        "parameters": settings.num_parameters,
        "processes": settings.world.size,
        **_due_in(schedule, state.step),
        "checkpoint_gb": _giga(checkpoint),
        "checkpoints_kept": settings.flags.keep_checkpoints,
        "disk_free_gb": _giga(shutil.disk_usage(_existing(settings.output_dir)).free),
        **memory,
        **_time_of(stretches),
    }
    if settings.world.is_first:
        about = {**about_now(settings.command), "plan": plan}
        sys.stdout.write(text_of_config(flags_of(settings.flags), about))
        sys.stdout.flush()


def _counts_of(settings: Any, state: TrainState) -> dict[str, Any]:
    schedule = settings.schedule
    left = max(0, schedule.max_steps - state.step)
    samples = state.consumed_samples + left * schedule.global_batch_size
    epochs = samples / settings.samples_per_epoch if settings.samples_per_epoch else None
    return {
        "steps": schedule.max_steps,
        "steps_done": state.step,
        "samples_per_step": schedule.global_batch_size,
        "samples": samples,
        **({} if epochs is None else {"epochs": float(f"{epochs:.4g}")}),
        **({} if epochs is None else {"samples_per_epoch": round(settings.samples_per_epoch)}),
    }


def _due_in(schedule: Any, done: int) -> dict[str, int]:
    steps = range(done + 1, schedule.max_steps + 1)
    if len(steps) > MOST_COUNTED:
        return {}
    first = int(done == 0 and schedule.evaluates_at(0))
    validations = first + sum(map(schedule.evaluates_at, steps))
    tests = int(schedule.has_test and len(steps) > 0)
    return {
        "evaluations": validations * schedule.has_validation + tests,
        "checkpoints": sum(map(schedule.saves_at, steps)),
    }


def _memory_of(settings: Any) -> dict[str, float]:
    """Return the memory that a process has taken at most so far, in the mean, and what is still free."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    memory = {"memory_gb": _giga(_sum(settings, own) / settings.world.size)}
    if np.isfinite(free_memory()):
        memory["memory_still_free_gb"] = _giga(free_memory())
    if settings.flags.device == "gpu":
        memory["gpu_memory_gb"] = _giga(_sum(settings, peak_gpu_memory()) / settings.world.size)
    return memory


def _time_of(stretches: list[Stretch]) -> dict[str, Any]:
    if not stretches:
        return {"time": "0:00:00", "time_is_of": "nothing: all steps are done"}
    seconds = sum(stretch.all_seconds for stretch in stretches)
    each = [round(stretch.seconds, 4) for stretch in stretches]
    timed = sum(stretch.measured for stretch in stretches)
    steps = sum(stretch.last - stretch.first for stretch in stretches)
    return {
        "seconds_per_step": each[0] if len(each) == 1 else each,
        "time": str(timedelta(seconds=round(seconds))),
        "time_is_of": (
            f"the {steps} training steps, by the median of {timed} that were taken in memory, after "
            f"{WARM_STEPS} to warm up{' in each phase' if len(each) > 1 else ''}; evaluations, checkpoints "
            "and the preparation of the data take additional time"
        ),
    }


def _sum(settings: Any, number: float) -> float:
    return float(settings.all_reduce(np.array([float(number)]))[0])


def _giga(number: float) -> float:
    return float(f"{number / GIGA:.3g}")
