"""Distillation on two processes matches one: the same weights, and the same cached teacher outputs."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from places import ROOT
from tiny_distill import distill_config, write_teacher

from ernie_pair.checks.quickstart import words_of
from ernie_pair.pair.distill.distill import distill_pair
from ernie_pair.weights.weight_files import from_safetensors

pytestmark = pytest.mark.ranks

BOUND = 5e-6  # float32 rounding
NO_GRADIENT = "k_proj.bias"  # the softmax cancels it out, so AdamW's steps come from rounding alone
KINDS = {
    "cached": {"class_weights": "1,2.5"},
    "states": {"hidden_size": 16, "hidden_weight": 0.5, "layers": 2},
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distil")
    config = distill_config(folder, write_teacher(folder / "teacher"), dropout=0.0)
    lines = Path(config.train_file).read_text(encoding="utf-8").splitlines()
    bare = [line.rpartition("\t")[0] for line in lines[::3]]
    (folder / "bare.tsv").write_text("".join(f"{line}\n" for line in bare), encoding="utf-8")
    return replace(config, unlabelled_file=str(folder / "bare.tsv"))


def launch(config):
    given = {name: getattr(config, name) for name in FLAGS}
    done = subprocess.run(
        [sys.executable, "-m", "ernie_pair", "launch", "distill", "--processes", "2", *words_of(**given)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


FLAGS = (
    *("teacher", "train_file", "dev_file", "unlabelled_file", "output_dir", "batch_size", "max_steps"),
    *("learning_rate", "dropout", "device", "checkpoint_steps", "eval_freq", "logging_freq", "layers"),
    *("hidden_size", "hidden_weight", "class_weights"),
)


def weights_of(folder):
    step = Path(folder) / "checkpoints" / "step_00000012"
    found = {}
    for path in sorted(step.glob("*.safetensors")):
        if not path.name.startswith("optimizer"):
            found.update(from_safetensors(path.read_bytes(), path.name))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_distillation_on_two_processes_matches_one(config, kind):
    one = replace(config, output_dir=f"{config.output_dir}.{kind}.one", **KINDS[kind])
    two = replace(one, output_dir=f"{config.output_dir}.{kind}.two", batch_size=one.batch_size // 2)
    distill_pair(one)
    launch(two)
    ours, theirs = weights_of(two.output_dir), weights_of(one.output_dir)
    assert ours.keys() == theirs.keys() and ("distillation.1.weight" in ours) == (kind == "states")
    compared = [name for name in theirs if not name.endswith(NO_GRADIENT)]
    assert max(np.abs(ours[name] - theirs[name]).max() for name in compared) < BOUND
    kept = [list((Path(run.output_dir) / "cache").glob("teacher-*.npy")) for run in (one, two)]
    assert list(map(len, kept)) == ([1, 1] if kind == "cached" else [0, 0])
    if kind == "cached":
        (first,), (second,) = kept
        assert np.abs(np.load(first) - np.load(second)).max() < 1e-5
