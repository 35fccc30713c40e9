"""Two processes train as one with twice the batch size does: the negatives come from both of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from places import ROOT, SUPPORT
from run_embedding_layouts import run_layout
from tiny_embedding import write_files

from ernie_pair.train.process_group import ProcessGroup

pytestmark = pytest.mark.ranks

SCRIPT = Path(__file__).with_name("run_embedding_layouts.py")
BOUND = 1e-5  # largest difference in a gradient: float32 rounding
PLAIN = {"dropout": 0.0}
VARIANTS = {
    "pairs": {**PLAIN, "hard_negatives": 2, "dims": "8,16"},
    "first_token": {**PLAIN, "pooling": "first_token", "grad_clip": 0.05},
}
LAYOUTS = {"16": {"batch_size": 16}, "8x2": {"batch_size": 8, "gradient_accumulation_steps": 2}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("layouts"), spread=0.2)


@pytest.fixture(scope="module")
def one(folder):
    return {
        name: run_layout(folder, ProcessGroup(), {**flags, "batch_size": 32})
        for name, flags in VARIANTS.items()
    }


@pytest.fixture(scope="module")
def two(folder):
    jobs = {f"{v}-{size}": {**VARIANTS[v], **LAYOUTS[size]} for v in VARIANTS for size in LAYOUTS}
    path = folder / "jobs.json"
    path.write_text(json.dumps({"folder": str(folder), "jobs": jobs}))
    done = subprocess.run(
        [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
        + ["--log_dir", str(folder / "log"), str(SCRIPT), str(path), str(folder / "two")],
        capture_output=True,
        text=True,
        timeout=550,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{SUPPORT}:{ROOT}"},
    )
    told = [log.read_text()[-1500:] for log in sorted((folder / "log").glob("workerlog.*"))]
    assert done.returncode == 0, "\n".join(told) or done.stderr
    return {name: [dict(np.load(f"{folder}/two.{name}.{rank}.npz")) for rank in (0, 1)] for name in jobs}


def test_gradients_on_two_processes_match_one(one, two):
    for name, (first, _) in two.items():
        wanted = one[name.split("-")[0]]
        keys = [key for key in wanted if key.startswith("gradient of")]
        found = max(float(np.abs(first[key] - wanted[key]).max()) for key in keys)
        assert len(keys) > 20 and found < BOUND, name


def test_loss_and_accuracy_use_the_negatives_of_all_processes(one, two):
    for name, (first, _) in two.items():
        wanted = one[name.split("-")[0]]
        for curve in ("loss", "gradient_norm", "accuracy"):
            np.testing.assert_allclose(first[curve], wanted[curve], rtol=1e-4, err_msg=name)


def test_both_processes_are_bit_identical(two):
    for name, (first, second) in two.items():
        assert all(np.array_equal(first[key], second[key]) for key in first), name
