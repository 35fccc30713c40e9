"""transformers' Trainer on our pretrained weights: the same steps as ours, and its answers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from places import ROOT
from tiny_pair import write_model, write_pairs

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from ernie_pair.evaluation.predict_pair import read_log_probabilities  # noqa: E402
from ernie_pair.models.commands import ToHuggingFaceConfig, convert_to_hugging_face  # noqa: E402
from ernie_pair.models.networks.classifier import build_classifier  # noqa: E402
from ernie_pair.models.source import open_model  # noqa: E402
from ernie_pair.pairs.config.pair_config import TrainConfig  # noqa: E402
from ernie_pair.pairs.train.train_pair import train_pair  # noqa: E402
from ernie_pair.training.callbacks import EVENTS  # noqa: E402

ROWS = 16
# One batch is a whole epoch, so that both sides train on the same batches in whatever order.
SAME = {"batch_size": ROWS, "epochs": 5, "learning_rate": 1e-2, "dropout": 0, "warmup_rate": 0.4}
SAME.update(max_seq_len=32, logging_freq=1, bucket=True)


@pytest.fixture(scope="module")
def start(module_path):
    """A classifier of both libraries with the same weights, head included, and pairs."""
    source = open_model(
        str(write_model(module_path / "new", initializer_range=0.2)), model_type="ernie", from_scratch=True
    )
    (module_path / "ours").mkdir()
    build_classifier(source, seed=7, dropout=0.0).write(module_path / "ours", source.vocab_file, 32)
    convert_to_hugging_face(ToHuggingFaceConfig(str(module_path / "ours"), str(module_path / "theirs")))
    for number, part in enumerate(("train", "dev", "test")):
        write_pairs(module_path / f"{part}.tsv", ROWS, seed=number)
    python = module_path / "peer_python"  # the peer's libraries are added to those of this Python
    path = Path(torch.__file__).parents[1]
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{path}" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return module_path


def train_there(start, out, **changes):
    """Train with Trainer; returns the events of its log and the log probabilities of the test pairs."""
    flags = {"peer_python": start / "peer_python", "model_path": start / "theirs", "output_dir": out}
    flags.update({f"{part}_file": start / f"{part}.tsv" for part in ("train", "dev", "test")})
    flags.update(output_file=out.with_suffix(".tsv"), **{**SAME, **changes})
    command = [sys.executable, "scripts/train_peer.py", *(f"--{k}={v}" for k, v in flags.items())]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    log = out / "peer.log"
    assert done.returncode == 0, done.stderr + (log.read_text() if log.exists() else "")[-2000:]
    return events_in(out), read_log_probabilities(out.with_suffix(".tsv"), 2)


def events_in(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_the_loss_of_every_step_matches_the_peer(start, tmp_path):
    there, _ = train_there(start, tmp_path / "there")
    files = {"train_file": str(start / "train.tsv"), "dev_file": str(start / "dev.tsv")}
    train_pair(
        TrainConfig(
            model_name_or_path=str(start / "ours"),
            output_dir=str(tmp_path / "here"),
            kernels="plain",
            device="cpu",
            **files,
            **SAME,
        )
    )
    for split, most in (("train", 1e-4), ("valid", 1e-4)):
        here, other = (
            {event["step"]: event["loss"] for event in events if event["split"] == split and "loss" in event}
            for events in (events_in(tmp_path / "here"), there)
        )
        assert set(other) == {1, 2, 3, 4, 5} <= set(here)
        found = np.array([(here[step], other[step]) for step in sorted(other)])
        assert np.abs(found[:, 0] - found[:, 1]).max() < most, found
        assert np.ptp(found[:, 0]) > 10 * most, "the weights have hardly moved"


def test_peer_predictions_are_in_the_order_of_the_rows(start, tmp_path):
    out = tmp_path / "out"
    _, answers = train_there(start, out, epochs=1, batch_size=4)
    (checkpoint,) = out.glob("checkpoint-*")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoint).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(start / "theirs")
    rows = [line.split("\t") for line in (start / "test.tsv").read_text(encoding="utf-8").splitlines()]
    with torch.no_grad():
        logits = [model(**tokenizer(row[0], row[1], return_tensors="pt")).logits[0] for row in rows]
    alone = torch.stack(logits).log_softmax(dim=-1).numpy()
    assert np.allclose(answers, alone, atol=1e-4)
    assert np.ptp(alone[:, 1]) > 0.01, "any order of the answers would do"


def test_every_event_of_transformers_exists():
    theirs = {name for name in vars(transformers.TrainerCallback) if name.startswith("on_")}
    assert theirs - set(EVENTS) - {"on_push_begin"} == set()  # of pushing to a hub, which is not done here
