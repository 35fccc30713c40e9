"""Runs of pretraining that tests compare: of both graphs, of a run and of its resumed copy."""

import shutil

import numpy as np
import pytest
from children import command
from safetensors.numpy import load_file
from tiny_pretrain import events

from ernie_pair.core.cli.cli import parse_config
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.pretrain import pretrain

NO_DROPOUT = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
WEIGHTS, STATE = "static_vars.safetensors", "optimizer-00000-of-00001.safetensors"
LOSSES = ("loss", "lm_loss", "ngram_loss", "sop_loss", "lm_accuracy", "ngram_accuracy", "sop_accuracy")
COMPARED = (*LOSSES, "gradient_norm", "learning_rate")


def run(words, graph="static"):
    """Pretrain, in this process if dynamic: static mode would stay on in it; return what a command logs."""
    if graph == "dynamic":
        pretrain(parse_config(PretrainConfig, list(map(str, words))))
        return ""
    done = command("pretrain", *words)
    assert done.code == 0, done.told
    return done.told


def arrays(output, name=WEIGHTS):
    return load_file(output / "model_last" / name)


def assert_same_losses(one, other, rel=1e-5):
    """Over several steps and the evaluations between them."""
    expected, found = events(one), events(other)
    assert len(expected) == len(found) == 10 and expected[1]["loss"] != expected[-1]["loss"]
    for first, second in zip(expected, found):
        assert (first["split"], first["step"]) == (second["split"], second["step"])
        ours = {name: first[name] for name in COMPARED if name in first}
        assert {name: second[name] for name in COMPARED if name in second} == pytest.approx(ours, rel=rel)


def assert_close(one, other, rtol=2e-3, atol=2e-5):
    """The weights and the state of the optimizer in two last checkpoints."""
    for name in (WEIGHTS, STATE):
        ours, theirs = arrays(one, name), arrays(other, name)
        assert set(ours) == set(theirs)
        for key, array in ours.items():
            np.testing.assert_allclose(array, theirs[key], rtol, atol, err_msg=f"{name} {key}")


def assert_same_files(one, other, *names):
    for name in (WEIGHTS, STATE, *names):
        assert (one / "model_last" / name).read_bytes() == (other / "model_last" / name).read_bytes(), name


def cut_after(whole, cut, step):
    """A copy of a run without its checkpoints after ``step``."""
    shutil.copytree(whole, cut, symlinks=True)
    for path in (cut / "checkpoints").iterdir():
        if path.name > f"step_{step:08d}":
            shutil.rmtree(path)
    return cut
