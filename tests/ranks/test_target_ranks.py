"""Models for regression and ranking: two processes under Paddle's launcher match one process."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
from places import ROOT
from run_files import events
from tiny_targets import target_config

from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.pair.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.pair.train.train_pair import train_pair
from ernie_pair.score.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.score.evaluation.predict_pair import predict_pair

pytestmark = pytest.mark.ranks

LAUNCHED = """
import json, sys
from data_tools.options.cli import exit_code_of
from ernie_pair.pair.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.score.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.score.evaluation.predict_pair import predict_pair
from ernie_pair.pair.train.train_pair import train_pair

def work():
    train, evaluate, predict = map(json.loads, sys.argv[1:])
    train_pair(TrainConfig(**train))
    evaluate_pair(EvaluateConfig(**evaluate))
    predict_pair(PredictConfig(**predict))

sys.exit(exit_code_of(work))
"""
BOUND = 2e-6  # float32 rounding, magnified by AdamW's division in the first updates
CASES = {
    "regression": ("regression", {"best_metric": "spearman"}),
    "listwise": ("ranking", {"most_candidates": 4}),
    "margin": ("ranking", {"ranking_loss": "margin", "gradient_accumulation_steps": 2}),
}


def launch(folder, *configs):
    script = folder / "launched.py"
    script.write_text(LAUNCHED)
    done = subprocess.run(
        [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
        + ["--log_dir", str(folder / "log"), str(script)]
        + [json.dumps(asdict(config)) for config in configs],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    told = [log.read_text()[-1500:] for log in sorted((folder / "log").glob("workerlog.*"))]
    assert done.returncode == 0, "\n".join(told) or done.stderr


@pytest.mark.parametrize("case", CASES)
def test_regression_and_ranking_on_two_processes_match_one(tmp_path, case):
    target, flags = CASES[case]
    one = target_config(tmp_path, target, batch_size=8, max_steps=6, eval_freq=6, learning_rate=1e-3, **flags)
    train_pair(one)
    two = replace(one, batch_size=4, output_dir=str(tmp_path / "two"))
    model, dev = str(tmp_path / "out"), str(tmp_path / "dev.tsv")
    asked = [
        (
            EvaluateConfig(model, dev, str(tmp_path / f"{name}.json"), device="cpu", bootstrap=20),
            PredictConfig(model, dev, str(tmp_path / f"{name}.tsv"), device="cpu"),
        )
        for name in ("one", "two")
    ]
    evaluate_pair(asked[0][0])
    predict_pair(asked[0][1])
    launch(tmp_path, two, *asked[1])
    for ending in ("json", "tsv"):
        assert (tmp_path / f"one.{ending}").read_bytes() == (tmp_path / f"two.{ending}").read_bytes()
    curves = [events(tmp_path / name) for name in ("out", "two")]
    same = ("loss", "mae", "hit_at_1", "mrr", "spearman", "step")
    found = [[[row[name] for name in same if name in row] for row in rows] for rows in curves]
    assert [len(row) for row in found[0]] == [len(row) for row in found[1]]
    assert np.concatenate(found[1]) == pytest.approx(np.concatenate(found[0]), abs=1e-4)
    weights = [dict(load_classifier(str(tmp_path / name))[0].state_dict()) for name in ("out", "two")]
    for name, array in weights[0].items():
        assert np.abs(array.numpy() - weights[1][name].numpy()).max() < 50 * BOUND
