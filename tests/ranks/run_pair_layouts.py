"""Launched: makes the same updates in one layout after the other, and writes what each rank got.

run_pair_layouts.py JOBS.json OUT   JOBS: {"folder", "jobs": {name: what ``run_job`` takes}}
OUT.NAME.RANK.npz: the weights under their structured names and the metrics of every update
OUT.NAME/checkpoints/: the state after the last of them
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from group_sharding_on_cpu import group_sharding_on_cpu
from tiny_pair_job import run, tiny_job, weights

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint
from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.runtime.processes.world import World, launched_world
from ernie_pair.train.process_group import join_process_group


def run_job(folder, process_group, out, flags, updates, first=1, resume=None, infinite=(), offload=False):
    """Updates ``first`` to ``updates``, after the checkpoint ``resume``.

    In those that are ``infinite`` a gradient of the last rank is. ``offload`` goes with sharding, whose
    offload is for float16 alone: here it is of float32.
    """
    sharded = flags.get("sharding", "none") != "none"
    with group_sharding_on_cpu(offload) if sharded else nullcontext():
        on_gpu = {"device": "gpu"} if sharded else {}
        tiny = tiny_job(folder, process_group, consumed=(first - 1) * 16, **{**flags, **on_gpu})
        if resume:
            tiny.job.restore(Checkpoint(Path(resume)))
        metrics = [
            poisoned(tiny, process_group, step in infinite, step) for step in range(first, updates + 1)
        ]
        world = World(process_group.rank, process_group.size)
        checkpoints = Checkpoints(Path(out), world, process_group.all_reduce)
        state = TrainState(updates, updates * 16, skipped_updates=tiny.job.skipped_updates)
        checkpoints.save(state, {}, tiny.job.state_files(), {})
        checkpoints.close()
    curves = {name: np.array([values[name] for values in metrics]) for name in metrics[0]}
    valid = {f"valid {name}": np.array(value) for name, value in tiny.job.evaluate("valid").items()}
    return {**curves, **valid, **weights(tiny.job)}


def poisoned(tiny, process_group, is_poisoned, step):
    forward = tiny.job.parallel.forward
    if is_poisoned and process_group.rank == process_group.size - 1:
        tiny.job.parallel.forward = with_infinite_gradient(forward)
    (metrics,) = run(tiny, step, first=step)
    tiny.job.parallel.forward = forward
    return metrics


class with_infinite_gradient:
    def __init__(self, forward):
        self.forward, self.no_sync = forward, getattr(forward, "no_sync", None)

    def __call__(self, *given):
        logits = self.forward(*given)
        logits.register_hook(lambda gradient: gradient * float("inf"))
        return logits


def main(jobs_file, out):
    jobs = json.loads(Path(jobs_file).read_text())
    process_group = join_process_group(launched_world())
    for name, about in jobs["jobs"].items():
        result = run_job(Path(jobs["folder"]), process_group, f"{out}.{name}", **about)
        np.savez(f"{out}.{name}.{process_group.rank}.npz", **result)


if __name__ == "__main__":
    main(*sys.argv[1:])
