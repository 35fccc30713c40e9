"""The plan of a run, and how it is printed: as a config.yaml, with the plan among its facts."""

import os
import resource
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Dict, List

import numpy as np

from data_tools.base.options import Options
from ernie_pair.checkpoint.train_state import TrainState
from ernie_pair.device.free_memory import free_memory
from ernie_pair.device.gpu.cards import peak_gpu_memory
from ernie_pair.dry_run.measured_steps import WARM_STEPS, Stretch, measure, stretches_of
from ernie_pair.run_config.config_yaml import about_now, flags_of, text_of_config

GIGA = 1e9
MOST_COUNTED = 5_000_000  # steps of which it is counted where something is due


def plan_of(
    job: Any, data: Any, settings: Any, processes: Any, state: TrainState, stop: Any
) -> Dict[str, Any]:
    """Return what the run would do from ``state`` on; a few of its steps are taken in memory and timed.

    ``settings``: `engine.run.RunSettings`; ``processes``: `engine.run.Processes`. Called by every rank.
    """
    schedule = settings.schedule
    stretches = [
        measure(
            stretch,
            job,
            lambda consumed: data.updates(consumed + _offset(state, schedule)),
            schedule.global_batch_size,
            settings.place,
            stop,
        )
        for stretch in stretches_of(settings.phases, state.step, schedule.max_steps)
    ]
    checkpoint = _sum(processes, sum(_bytes_in(content) for _, content in job.state_files()))
    memory = _memory_of(settings.device, processes)  # now, after the arrays of a checkpoint
    return {
        **_counts_of(settings, state),
        "parameters": settings.num_parameters,
        "processes": processes.world.size,
        **_due_in(schedule, state.step),
        "checkpoint_gb": _giga(checkpoint),
        "checkpoints_kept": settings.retention.get("keep"),
        "disk_free_gb": _giga(shutil.disk_usage(_nearest(settings.output_dir)).free),
        **memory,
        **_time_of(stretches),
    }


def print_plan(command: str, flags: Options, plan: Dict[str, Any]) -> None:
    """Print the flags and the plan on standard output, as a file that --config reads."""
    sys.stdout.write(text_of_config(flags_of(flags), {**about_now(command), "plan": plan}))
    sys.stdout.flush()


def _offset(state: TrainState, schedule: Any) -> int:
    """Return by how much the samples seen differ from whole steps of today's size: it may have changed."""
    return state.consumed_samples - state.step * schedule.global_batch_size


def _counts_of(settings: Any, state: TrainState) -> Dict[str, Any]:
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


def _due_in(schedule: Any, done: int) -> Dict[str, int]:
    """Return how often something is due after the steps that are done."""
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


def _memory_of(device: str, processes: Any) -> Dict[str, float]:
    """Return the memory that a process has taken at most so far, in the mean, and what is still free."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    told = {"memory_gb": _giga(_sum(processes, own) / processes.world.size)}
    if np.isfinite(free_memory()):
        told["memory_still_free_gb"] = _giga(free_memory())
    if device == "gpu":
        told["gpu_memory_gb"] = _giga(_sum(processes, peak_gpu_memory()) / processes.world.size)
    return told


def _time_of(stretches: List[Stretch]) -> Dict[str, Any]:
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


def _bytes_in(content: Any) -> int:
    return len(content) if isinstance(content, bytes) else sum(array.nbytes for array in content.values())


def _sum(processes: Any, number: float) -> float:
    return float(processes.all_reduce(np.array([float(number)]))[0])


def _giga(number: float) -> float:
    return float(f"{number / GIGA:.3g}")


def _nearest(folder: Path) -> Path:
    """Return ``folder``, or the folder above it that is there."""
    return next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
