"""Training with the peer's Trainer: its rows, log and predictions; the peer is a small script."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
import train_peer
from fake_peer import write_fake_peer
from other_libraries.client import OF_PADDLE, environment_of_peer
from places import ROOT
from proof.experiments import TABLE, Scale, runs_of
from proof.figures import pairs_in, read_curve, seconds_in
from side_by_side.peer import trainer
from tiny_pair import write_model, write_pairs
from waiting import until

from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import CONFIG_YAML
from ernie_pair.evaluation.predict_pair import read_log_probabilities
from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.training.schedule import learning_rate


@pytest.fixture
def config(tmp_path):
    files = {f"{part}_file": str(write_pairs(tmp_path / f"{part}.tsv", 10)) for part in train_peer.PARTS}
    return train_peer.TrainPeerConfig(
        peer_python=write_fake_peer(tmp_path),
        model_path=str(write_model(tmp_path / "model")),
        output_dir=str(tmp_path / "out"),
        output_file=str(tmp_path / "predictions.tsv"),
        batch_size=4,
        **files,
    )


def calls(tmp_path):
    path = tmp_path / "out" / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_predictions_of_the_peer_are_written_to_a_file(tmp_path, config):
    for moment in "ab":
        (tmp_path / "model" / CONFIG_YAML).write_text(moment)
        train_peer.train_peer(config)
    assert calls(tmp_path) == 1  # the second time there is nothing to do
    found = np.exp(read_log_probabilities(tmp_path / "predictions.tsv", 2))
    likelier = 1 / (1 + np.exp(-1))
    assert np.allclose(found[:, 1], [likelier if row % 2 else 1 - likelier for row in range(10)], atol=1e-5)
    spec = json.loads((tmp_path / "out/spec.json").read_text())
    assert (spec["seed"], spec["dropout"], spec["bucket"]) == (1234, 0.1, True) and spec["threads"] > 0
    assert pairs_in(tmp_path / "out/metrics.jsonl") == 30 and seconds_in(tmp_path / "out/metrics.jsonl") > 0


def test_a_failure_of_the_peer_is_a_one_line_error(tmp_path, config):
    with pytest.raises(Exception, match="which is a bug .the peer's Trainer; see .*peer.log: its traceback"):
        train_peer.train_peer(replace(config, seed=13))
    assert not (tmp_path / "predictions.tsv").exists()
    faults = {"/nowhere/python": "No such file", "/bin/false": "torch, transformers and accelerate"}
    for python, told in faults.items():
        with pytest.raises(InputError, match=told):
            train_peer.train_peer(replace(config, peer_python=python))
    with pytest.raises(InputError, match="nowhere is not a folder; make one with ernie-pair convert --to hf"):
        train_peer.train_peer(replace(config, model_path="nowhere"))


def test_a_stopped_training_stops_the_peer(tmp_path, config):
    flags = {**asdict(config), "seed": 14}
    command = [sys.executable, "scripts/train_peer.py", *(f"--{name}={flags[name]}" for name in flags)]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        pid = until(lambda: read_number(tmp_path / "out" / "pid"))
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def read_number(path):
    return int(path.read_text() or 0) if path.exists() else 0


def test_peer_flags_and_defaults_match_those_of_train():
    """In name and default, so that omitted flags mean the same on both sides."""
    ours = {item.name: item.default for item in fields(TrainConfig)}
    ours["warmup_rate"] = TrainConfig.USUAL_RATE  # which None stands for
    own = {"peer_python", "model_path", "test_file", "output_file", "overwrite", "in_order"}
    theirs = {item.name: item.default for item in fields(train_peer.TrainPeerConfig)}
    assert {name: ours[name] for name in theirs if name not in own} == {
        name: value for name, value in theirs.items() if name not in own
    }


def flags_in(words):
    return dict(word[2:].split("=", 1) for word in words if word.startswith("--"))


@pytest.mark.parametrize("ending", ["", "_bf16"])
def test_both_sides_are_given_the_same_flags(ending):
    runs = {run.name: run for run in runs_of("peer", Scale())}
    ours = [flags_in(words) for words in runs[f"ours{ending}"].commands if "train" in words]
    theirs = [
        flags_in(words)
        for words in runs[f"transformers{ending}"].commands
        if words[0] == "scripts/train_peer.py"
    ]
    assert len(ours) == len(theirs) == Scale().seeds
    places = {"model_name_or_path", "model_path", "peer_python", "test_file", "output_dir", "output_file"}
    for one, other in zip(ours, theirs):
        only_ours = {*TABLE["flags"]["only_ours"], "match_embeddings"} - {"label_map"}
        assert set(one) - set(other) - places == only_ours
        shared = set(one) & set(other) - places
        assert {name: one[name] for name in shared} == {name: other[name] for name in shared}
        assert {"seed", "learning_rate", "epochs", "dropout", "precision", "train_file"} <= shared


def test_learning_rates_of_the_peer_match_ours():
    for total, warmup in ((9, 0), (9, 3), (1, 0)):
        for step in range(1, total + 1):
            expected = learning_rate(step, max_lr=1, min_lr=0, warmup_steps=warmup, decay_steps=total + 1)
            assert trainer.rate_share(step, total, warmup) == pytest.approx(expected)


def test_the_log_excludes_evaluation_time(tmp_path, monkeypatch):
    """Epochs of two batches; a logged loss every third step, and evaluations of a hundred seconds."""
    clock = iter([0.0, 2.0, 4.0, 100.0, 101.0, 200.0, 204.0, 300.0])
    monkeypatch.setattr(trainer.time, "perf_counter", lambda: next(clock))
    state = SimpleNamespace(global_step=0, log_history=[])
    callback = trainer.logging_callback(
        SimpleNamespace(TrainerCallback=object),
        trainer.StepClock(num_rows=6, batch_size=4),
        tmp_path / "metrics.jsonl",
    )

    def log(**values):
        state.log_history.append({"step": state.global_step, **values})
        callback.on_log(None, state, None, logs=values)

    callback.on_epoch_begin(None, state, None)
    for state.global_step in (1, 2):
        callback.on_step_end(None, state, None)
    callback.on_epoch_end(None, state, None)
    log(eval_loss=0.6, eval_accuracy=0.5)
    callback.on_evaluate(None, state, None)
    state.global_step = 3
    callback.on_step_end(None, state, None)
    log(loss=0.5, learning_rate=0.1)
    callback.on_epoch_begin(None, state, None)
    state.global_step = 4
    callback.on_step_end(None, state, None)
    callback.on_epoch_end(None, state, None)
    log(train_runtime=9.0)
    callback.on_train_end(None, state, None)
    path = tmp_path / "metrics.jsonl"
    assert (pairs_in(path), seconds_in(path)) == (12, pytest.approx(2 + 2 + 1 + 4))
    assert read_curve(path) == [{"step": 2}]


def test_paddle_environment_variables_are_not_passed_to_peer(monkeypatch):
    for name in OF_PADDLE:
        monkeypatch.setenv(name, "1")
    environment = environment_of_peer(3)
    assert not set(OF_PADDLE) & set(environment) and environment["OMP_NUM_THREADS"] == "3"
