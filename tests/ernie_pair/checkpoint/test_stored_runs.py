"""Runs stored by an earlier version: their checkpoints resume and their folders load.

support/stored_runs.tar.xz holds, for pretraining and for pair training, a model, its data, an output
folder whose newest checkpoint is that of step 4, and the weights expected after step 6.
"""

import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from places import ROOT, SCRIPTS, SUPPORT
from tiny_pretrain import flags

from ernie_pair.checkpoint.manifest import installed_versions
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.runtime.paddle_version import can_pretrain, paddle_version
from ernie_pair.weights.weight_files import from_safetensors

needs_programs = pytest.mark.skipif(
    not can_pretrain(paddle_version()), reason="this Paddle trains pairs alone"
)


@pytest.fixture
def stored(tmp_path):
    with tarfile.open(SUPPORT / "stored_runs.tar.xz") as archive:
        archive.extractall(tmp_path)
    return tmp_path


# Dropout as it was when the run was stored: drawn by Paddle, and for every token in the last layer.
AS_BEFORE = """
import runpy, sys
from ernie_pair.runtime.cpu_env import prepare_cpu_math
prepare_cpu_math()
from ernie_pair.models.networks.classifier import PairClassifier
PairClassifier.reads_first_token = False
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(folder, script, words, before=()):
    words = [sys.executable, *before, str(SCRIPTS / script), *words]
    done = subprocess.run(
        words, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def assert_tells_of_paddle(said):
    """The runs were stored with Paddle 2.6.2; another version resumes them and logs the difference."""
    version = installed_versions().get("paddlepaddle")
    told = f"paddlepaddle {version} (was 2.6.2)" in said
    assert told == (version not in ("2.6.2", None))


def assert_as_stored(folder, name):
    """Another processor may round differently; a run that started from scratch would be far off."""
    found = from_safetensors((folder / "output/model_last" / name).read_bytes(), name)
    wanted = from_safetensors((folder / "expected" / name).read_bytes(), name)
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        np.testing.assert_allclose(found[key], array, rtol=0, atol=1e-5, err_msg=key)


@needs_programs
def test_a_stored_pretraining_run_resumes(stored):
    words = flags(
        *(Path("pretrain") / name for name in ("model", "corpus", "output")), seed=7, kernels="plain"
    )
    said = run(stored, "run_pretrain_static.py", words)
    assert "resumed pretrain/output/checkpoints/step_00000004: 16 samples seen" in said
    assert_tells_of_paddle(said)
    assert_as_stored(stored / "pretrain", "static_vars.safetensors")


def test_a_stored_pair_run_resumes_and_its_best_model_loads(stored):
    settings = {"model_name_or_path": "model", "model_type": "ernie", "from_scratch": "true"}
    settings.update(train_file="train.tsv", dev_file="dev.tsv", output_dir="output", device="cpu")
    settings.update(batch_size=16, logging_freq=1, max_steps=6, checkpoint_steps=2, eval_freq=3)
    words = [f"--{name}={value}" for name, value in settings.items()]
    words += ["--learning_rate=0.01", "--kernels=plain"]
    said = run(stored / "pair", "train_pair.py", words, before=["-c", AS_BEFORE])
    assert "resumed output/checkpoints/step_00000004: 64 samples seen" in said
    assert_tells_of_paddle(said)
    assert_as_stored(stored / "pair", "model.safetensors")
    model, vocab_file = load_classifier(str(stored / "pair/output/best-accuracy-0.5122"))
    assert (model.num_classes, model.spec.labels.names, vocab_file.name) == (2, ("0", "1"), "vocab.txt")


@needs_programs
def test_a_stored_pretraining_checkpoint_can_be_converted(stored):
    words = ["--static_model_path", "output/model_last/static_vars", "--output_dir", "dynamic"]
    said = run(stored / "pretrain", "ernie_static_to_dynamic.py", words)
    assert "wrote " in said and (stored / "pretrain/dynamic/model_state.pdparams").is_file()
