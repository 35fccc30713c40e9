"""Labels by a classifier in two processes against one, on the CPU."""

import os
import subprocess
import sys

import pytest
from places import ROOT
from tiny_pair import train_config, write_pairs

from ernie_pair.pair.mining.pseudo_config import PseudoLabelConfig
from ernie_pair.pair.mining.pseudo_label import pseudo_label
from ernie_pair.pair.train.train_pair import train_pair

pytestmark = pytest.mark.ranks


def test_two_processes_label_to_the_same_bytes(tmp_path):
    train_pair(train_config(tmp_path, max_steps=40, learning_rate=5e-3, dropout=0.0, best_metric="loss"))
    flags = {
        "model_path": tmp_path / "out",
        "input_file": write_pairs(tmp_path / "new.tsv", 90, seed=8, labels=False),
        "dev_file": write_pairs(tmp_path / "labelled.tsv", 200, seed=7),
        **{"at_precision": 0.6, "device": "cpu", "batch_size": 16},
    }
    pseudo_label(PseudoLabelConfig(**flags_of(flags, tmp_path / "one.tsv")))
    words = [f"--{name}={value}" for name, value in flags_of(flags, tmp_path / "two.tsv").items()]
    done = subprocess.run(
        [sys.executable, "-m", "ernie_pair", "launch", "pseudo-label", "--processes", "2", *words]
        + ["--log_dir", str(tmp_path / "log")],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    logs = [path.read_text() for path in sorted((tmp_path / "log").glob("workerlog.*"))]
    assert len(logs) == 2 and "2 process(es)" in logs[0]
    one, two = ((tmp_path / name).read_bytes() for name in ("one.tsv", "two.tsv"))
    assert one == two and one.count(b"\n") > 20


def flags_of(flags, out):
    """What is given to one start; numbers stay numbers."""
    plain = {name: value if isinstance(value, (int, float)) else str(value) for name, value in flags.items()}
    return {**plain, "output_file": str(out)}
