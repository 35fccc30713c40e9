"""Two processes with a part of the encoder frozen, or recomputed, end with the state of one process."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from tiny_pair import write_model, write_pairs

from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.pair.train.train_pair import train_pair
from ernie_pair.weights.weight_files import from_safetensors

pytestmark = pytest.mark.ranks
TRAIN = """
import json, sys
from data_tools.options.cli import exit_code_of
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.pair.train.train_pair import train_pair

sys.exit(exit_code_of(lambda: train_pair(TrainConfig(**json.loads(sys.argv[1])))))
"""


def train_two(config: TrainConfig, folder: Path) -> None:
    script = folder / "launched.py"
    script.write_text(TRAIN)
    done = subprocess.run(
        [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
        + ["--log_dir", str(folder / "log"), str(script), json.dumps(asdict(config))],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    logs = "".join(path.read_text()[-2000:] for path in sorted((folder / "log").glob("workerlog.*")))
    assert done.returncode == 0, done.stderr + logs


def state_of(output_dir, name):
    path = output_dir / "model_last" / name
    return from_safetensors(path.read_bytes(), str(path))


@pytest.mark.parametrize(
    "flags",
    [
        {"freeze_layers": 1, "use_recompute": True, "layer_decay": 0.9},
        pytest.param({"freeze": "encoder", "pooling": "mean"}, marks=pytest.mark.slow),
        pytest.param({"use_recompute": True, "model_type": "tinybert"}, marks=pytest.mark.slow),
    ],
)
def test_frozen_or_recomputed_training_on_two_ranks_matches_one(tmp_path, flags):
    config = TrainConfig(
        **{"model_type": "ernie", **flags},
        model_name_or_path=str(write_model(tmp_path / "model")),
        from_scratch=True,
        train_file=str(write_pairs(tmp_path / "train.tsv", 90, seed=0)),
        dev_file=str(write_pairs(tmp_path / "dev.tsv", 41, seed=1)),
        output_dir=str(tmp_path / "one"),
        max_steps=6,
        batch_size=16,
        learning_rate=5e-3,
        dropout=0.0,
        checkpoint_steps=6,
        device="cpu",
    )
    train_pair(config)
    train_two(replace(config, batch_size=8, output_dir=str(tmp_path / "two")), tmp_path)
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, two = (state_of(tmp_path / run, name) for run in ("one", "two"))
        assert one.keys() == two.keys()
        assert max(np.abs(one[key] - two[key]).max() for key in one) < 1e-4
    frozen = [key for key in one if ".embeddings." in key]
    assert bool(frozen) == (config.freeze == "none" and not config.freeze_layers)
