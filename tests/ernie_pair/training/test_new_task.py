"""A new kind of training is a `Task` alone: support/token_task.py, which resumes exactly like the others."""

import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from places import SUPPORT
from run_files import events, files_of, killed_after
from tiny_pair import CHARACTERS, write_model
from token_task import TokenConfig, TokenTask

from ernie_pair.core.errors import InputError
from ernie_pair.training.task import train_task
from ernie_pair.weights.weight_files import from_safetensors


def write_lines(path, count, seed):
    """Lines whose tags follow from the words: each 好 and what follows it is a name."""
    rng, lines = np.random.default_rng(seed), []
    for _ in range(count):
        words = rng.choice(list(CHARACTERS), rng.integers(3, 12)).tolist()
        names = ["B" if word in "好坏" else "I" if word in "大小" else "O" for word in words]
        lines.append(f"{' '.join(words)}\t{' '.join(names)}\n")
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    return TokenConfig(
        str(folder / "whole"),
        model_name_or_path=str(write_model(folder / "model", model_type="ernie")),
        train_file=write_lines(folder / "train.tsv", 100, 0),
        dev_file=write_lines(folder / "dev.tsv", 30, 1),
        from_scratch=True,
        learning_rate=1e-2,
        batch_size=10,
        epochs=6,
        eval_freq=20,
        checkpoint_steps=20,
        logging_freq=1,
        device="cpu",
    )


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    train_task(TokenTask(config))
    return tmp_path_factory.getbasetemp() / config.output_dir


def test_a_new_kind_of_training_is_short():
    assert len((SUPPORT / "token_task.py").read_text(encoding="utf-8").splitlines()) <= 300


def test_it_learns_keeps_its_best_model_and_writes_its_card(whole):
    assert events(whole, "valid")[-1]["accuracy"] > 0.95
    best = whole / "best"
    assert (best / "tags.txt").read_text(encoding="utf-8").split() and best.is_symlink()
    assert "ErnieForTokenClassification" in (best / "README.md").read_text(encoding="utf-8")


def test_its_folder_loads_in_paddlenlp(whole):
    from paddlenlp.transformers import ErnieForTokenClassification

    model = ErnieForTokenClassification.from_pretrained(str(whole / "best"))
    assert model.classifier.weight.shape[1] == 3


@pytest.mark.parametrize("killed_at", [7, 33])
def test_it_resumes_bit_identically(config, whole, killed_at):
    cut = whole.with_name(f"cut_{killed_at}")
    config = replace(config, output_dir=str(cut))
    with killed_after(killed_at):
        train_task(TokenTask(config))
    assert train_task(TokenTask(config)).step == 60
    assert files_of(cut / "model_last", without=("MANIFEST.json",)) == files_of(
        whole / "model_last", without=("MANIFEST.json",)
    )
    assert events(cut) == events(whole)


def launch_two(config):
    words = [f"--{name}={value}" for name, value in asdict(config).items() if value not in ("", None)]
    launched = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
    log = Path(config.output_dir).with_name("log")
    done = subprocess.run(
        [*launched, "--log_dir", str(log), str(SUPPORT / "token_task.py"), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    logs = "".join(path.read_text()[-2000:] for path in sorted(log.glob("workerlog.*")))
    assert done.returncode == 0, done.stderr + logs


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.ranks)])
def test_a_divided_step_is_the_same_step(config, whole, processes):
    several, one = whole.with_name(f"several_{processes}"), whole.with_name(f"one_{processes}")
    config = replace(config, max_steps=3, dropout=0.0)
    half = replace(config, batch_size=5, output_dir=str(several))
    if processes == 1:
        train_task(TokenTask(replace(half, gradient_accumulation_steps=2)))
    else:
        launch_two(half)
    train_task(TokenTask(replace(config, output_dir=str(one))))
    first, second = (
        from_safetensors((folder / "model_last/model.safetensors").read_bytes(), "")
        for folder in (several, one)
    )
    assert max(float(np.abs(first[name] - second[name]).max()) for name in first) < 2e-5


def test_another_rate_is_another_run(config, whole):
    assert train_task(TokenTask(replace(config, output_dir=str(whole)))) == train_task(TokenTask(config))
    with pytest.raises(InputError, match="learning_rate was 0.01 and is now 0.5"):
        train_task(TokenTask(replace(config, learning_rate=0.5)))
    with pytest.raises(InputError, match="best_metric was|max_seq_len was 128 and is now 64"):
        train_task(TokenTask(replace(config, max_seq_len=64)))
