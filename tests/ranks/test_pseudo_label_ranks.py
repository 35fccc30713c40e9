"""Pseudo-labelling with two processes against one, on the CPU."""

import os
import subprocess
import sys

import pytest
from places import ROOT
from tiny_pair import train_config, write_pairs

from ernie_pair.pair.train.train_pair import train_pair

pytestmark = pytest.mark.ranks


def test_two_processes_write_the_same_labels_byte_for_byte(tmp_path):
    train_pair(train_config(tmp_path, max_steps=40, learning_rate=5e-3, dropout=0.0, best_metric="loss"))
    flags = {
        "model_path": tmp_path / "out",
        "input_file": write_pairs(tmp_path / "new.tsv", 90, seed=8, labels=False),
        "dev_file": write_pairs(tmp_path / "labelled.tsv", 200, seed=7),
        **{"at_precision": 0.6, "device": "cpu", "batch_size": 16},
    }
    start(["pseudo-label"], flags, tmp_path / "one.tsv")
    launched = ["launch", "pseudo-label", "--processes", "2", "--log_dir", str(tmp_path / "log")]
    start(launched, flags, tmp_path / "two.tsv")
    logs = [path.read_text() for path in sorted((tmp_path / "log").glob("workerlog.*"))]
    assert len(logs) == 2 and "2 processes" in logs[0]
    one, two = ((tmp_path / name).read_bytes() for name in ("one.tsv", "two.tsv"))
    assert one == two and one.count(b"\n") > 20


def start(command, flags, out):
    """Label in processes of one thread each: another number of threads may round differently."""
    words = [f"--{name}={value}" for name, value in {**flags, "output_file": out}.items()]
    done = subprocess.run(
        [sys.executable, "-m", "ernie_pair", *command, *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
