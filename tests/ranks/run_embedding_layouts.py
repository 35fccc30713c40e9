"""Launched: makes the same steps of an embedding model in one layout after the other.

run_embedding_layouts.py JOBS.json OUT   JOBS: {"folder", "jobs": {name: flags}}
OUT.NAME.RANK.npz: the weights under their structured names, the gradient of the first step, the loss and the
norm of the others, the vectors of the dev texts
"""

import json
import sys
from pathlib import Path

import numpy as np
from tiny_embedding import embedding_job, gradients_of_next, run_steps
from tiny_pair_job import weights

from ernie_pair.embedding.train.train_embedding import vectors_of_rows
from ernie_pair.runtime.processes.world import launched_world
from ernie_pair.train.process_group import join_process_group

STEPS = 4


def run_layout(folder, process_group, flags):
    job, updates = embedding_job(folder, process_group, **flags)
    gradients = gradients_of_next(job, updates)
    metrics = run_steps(job, updates, STEPS, first=2)
    curves = {name: np.array([values[name] for values in metrics]) for name in ("loss", "gradient_norm")}
    vectors = vectors_of_rows(job.model, job.dev.rows, 8, process_group)
    curves.update({f"gradient of {name}": gradient for name, gradient in gradients.items()})
    return {**curves, "accuracy": np.array(metrics[-1]["accuracy"]), "vectors": vectors, **weights(job)}


def main(jobs_file, out):
    jobs = json.loads(Path(jobs_file).read_text())
    process_group = join_process_group(launched_world())
    for name, flags in jobs["jobs"].items():
        found = run_layout(Path(jobs["folder"]), process_group, flags)
        np.savez(f"{out}.{name}.{process_group.rank}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
