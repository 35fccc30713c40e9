"""Cross-validation and search in two processes against one, on the CPU."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from tiny_pair import write_model, write_pairs

from ernie_pair import CrossValidateConfig, SearchParamsConfig, cross_validate, search_params
from ernie_pair.score.evaluation.predict_pair import read_log_probabilities

pytestmark = pytest.mark.ranks

RUN = """
import json, sys
from data_tools.options.cli import exit_code_of
from ernie_pair import __main__ as commands

name, module, function, config = sys.argv[1:5]
chosen = commands.import_module(module)
flags = commands.config_class_of((module, function, config, ""))(**json.loads(sys.argv[5]))
sys.exit(exit_code_of(lambda: getattr(chosen, function)(flags)))
"""
TINY = {
    **{"model_type": "ernie", "from_scratch": True, "max_steps": 6, "learning_rate": 5e-3, "dropout": 0.0},
    **{"eval_freq": 3, "device": "cpu", "kernels": "plain"},
}


def launch(folder: Path, command: str, config) -> None:
    from ernie_pair.__main__ import COMMANDS

    script = folder / "launched.py"
    script.write_text(RUN)
    done = subprocess.run(
        [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
        + ["--log_dir", str(folder / "log"), str(script), command, *COMMANDS[command][:3]]
        + [json.dumps(asdict(config))],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    told = [log.read_text()[-1500:] for log in sorted((folder / "log").glob("workerlog.*"))]
    assert done.returncode == 0, "\n".join(told) or done.stderr


def test_cross_validation_on_two_processes_matches_one(tmp_path):
    """With half the batch on each: the same folds, and predictions that differ only by rounding."""
    config = CrossValidateConfig(
        model_name_or_path=str(write_model(tmp_path / "model")),
        train_file=str(write_pairs(tmp_path / "all.tsv", 60)),
        output_dir=str(tmp_path / "one"),
        batch_size=16,
        folds=2,
        bootstrap=5,
        **TINY,
    )
    cross_validate(config)
    launch(tmp_path, "cross-validate", replace(config, batch_size=8, output_dir=str(tmp_path / "two")))
    one, two = (tmp_path / name for name in ("one", "two"))
    assert (one / "folds.tsv").read_bytes() == (two / "folds.tsv").read_bytes()
    logs = [read_log_probabilities(folder / "predictions.tsv", 2) for folder in (one, two)]
    assert len(logs[0]) == 60 and np.abs(logs[0] - logs[1]).max() < 1e-3
    assert json.loads((two / "report.json").read_text())["rows"] == 60


def test_parameter_search_on_two_processes_matches_one(tmp_path):
    pytest.importorskip("optuna")
    config = SearchParamsConfig(
        model_name_or_path=str(write_model(tmp_path / "model")),
        train_file=str(write_pairs(tmp_path / "train.tsv", 64, seed=0)),
        dev_file=str(write_pairs(tmp_path / "dev.tsv", 41, seed=1)),
        output_dir=str(tmp_path / "one"),
        batch_size=16,
        search="learning_rate=1e-4..2e-2:log weight_decay=0.0,0.1",
        trials=3,
        startup_trials=1,
        evaluations=2,
        prune_after=0,
        **TINY,
    )
    one = search_params(config)
    launch(tmp_path, "search-params", replace(config, batch_size=8, output_dir=str(tmp_path / "two")))
    two = json.loads((tmp_path / "two" / "search.json").read_text())["trials"]
    assert two[0]["params"] == one.trials[0].params and len(two) == 3
    assert two[0]["value"] == pytest.approx(one.trials[0].value, abs=0.03)
    assert (tmp_path / "two" / "best" / "model_state.pdparams").is_file()
