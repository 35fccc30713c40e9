"""Two processes train as one with twice the batch size does: the negatives come from both of them."""

import numpy as np
import pytest
from launched import launch
from tiny_embedding import embedding_job, gradients_of_next, run_steps, write_files
from tiny_pair_job import weights
from tiny_ship import write_trained

from ernie_pair.runtime.processes.world import launched_world
from ernie_pair.training.process_group import ProcessGroup, join_process_group

pytestmark = pytest.mark.ranks

STEPS = 4
BOUND = 1e-5  # largest difference in a gradient: float32 rounding
VARIANTS = {
    "pairs": {"dropout": 0.0, "hard_negatives": 2, "dims": "8,16"},
    "cls": {"dropout": 0.0, "pooling": "cls", "grad_clip": 0.05},
    "several": {"dropout": 0.0, "objective": "angle,kl", "train_file": "graded.tsv,train.tsv"},
}
LAYOUTS = {"16": {"batch_size": 16}, "8x2": {"batch_size": 8, "gradient_accumulation_steps": 2}}


def run_layout(folder, group, flags):
    """The weights, the gradient of the first step, the loss and norm of the others, the dev vectors."""
    if "objective" in flags:  # each number of processes asks the teacher anew
        files = ",".join(str(folder / name) for name in flags["train_file"].split(","))
        flags = {**flags, "train_file": files, "teacher": str(folder / "teacher"), "dims": "7,16"}
        flags["output_dir"] = str(folder / f"out-{group.size}")
    job, updates = embedding_job(folder, group, **flags)
    gradients = gradients_of_next(job, updates)
    metrics = run_steps(job, updates, STEPS, first=2)
    curves = {name: np.array([values[name] for values in metrics]) for name in ("loss", "gradient_norm")}
    vectors = job.vectors_of(job.data.dev.rows)
    curves.update({f"gradient of {name}": gradient for name, gradient in gradients.items()})
    return {**curves, "accuracy": np.array(metrics[-1]["accuracy"]), "vectors": vectors, **weights(job)}


def run_layouts(folder):
    group = join_process_group(launched_world())
    return {
        (name, size): run_layout(folder, group, {**VARIANTS[name], **LAYOUTS[size]})
        for name in VARIANTS
        for size in LAYOUTS
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_files(tmp_path_factory.mktemp("layouts"), spread=0.2)
    write_trained(folder / "teacher")
    return folder


@pytest.fixture(scope="module")
def one(folder):
    flags = {name: {**VARIANTS[name], "batch_size": 32} for name in VARIANTS}
    return {name: run_layout(folder, ProcessGroup(), flags[name]) for name in VARIANTS}


@pytest.fixture(scope="module")
def two(folder):
    return launch(folder, run_layouts, folder)


def test_gradients_on_two_processes_match_one(one, two):
    for name, arrays in two[0].items():
        wanted = one[name[0]]
        keys = [key for key in wanted if key.startswith("gradient of")]
        largest = max(float(np.abs(arrays[key] - wanted[key]).max()) for key in keys)
        assert len(keys) > 20 and largest < BOUND, name


def test_loss_and_accuracy_use_the_negatives_of_all_processes(one, two):
    for name, arrays in two[0].items():
        for curve in ("loss", "gradient_norm", "accuracy"):
            np.testing.assert_allclose(arrays[curve], one[name[0]][curve], rtol=1e-4, err_msg=name)


def test_both_processes_are_bit_identical(two):
    for name, first in two[0].items():
        assert all(np.array_equal(first[key], two[1][name][key]) for key in first), name
