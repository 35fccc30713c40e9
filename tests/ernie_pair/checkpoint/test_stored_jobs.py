"""Folders of every kind of run, stored by earlier versions: they resume, load and are known as done.

support/stored_jobs.tar.xz holds a folder per kind, stored before the rooms were put together by subject. Most
were killed in the middle: words.json is their command, and expected/ what the same version had written at the
end. The others are finished models, an index and results. support/stored_runs.tar.xz holds, for pretraining
and for pair training, a model, its data, an output folder whose newest checkpoint is that of step 4, and the
weights expected after step 6; support/stored_pir.tar.xz the same for pretraining with Paddle 3.3, the others
with 2.6.2: each version resumes what the other has begun.
"""

import csv
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from children import python
from places import SCRIPTS, SUPPORT
from tiny_pretrain import flags

from ernie_pair.checkpoint.manifest import installed_versions
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.runtime.paddle_patches.pir_programs import builds_pir
from ernie_pair.weights.weight_files import from_safetensors

PRETRAINED = "static_vars.safetensors"


@pytest.fixture
def stored(tmp_path, request):
    with tarfile.open(SUPPORT / f"stored_{getattr(request, 'param', 'jobs')}.tar.xz") as archive:
        archive.extractall(tmp_path)
    return tmp_path


of_runs = pytest.mark.parametrize("stored", ["runs"], indirect=True)


def run(folder, *words, script=("-m", "ernie_pair")):
    """Run a command of today in a stored folder; return what it printed and logged."""
    done = python(*script, *words, cwd=folder, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def assert_as_stored(folder, name, atol=1e-5):
    """Another processor may round differently; a run that started from scratch would be far off."""
    ends = [folder / "expected", folder / "output" / "model_last"]
    expected, found = (from_safetensors((end / name).read_bytes(), name) for end in ends)
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_allclose(found[key], array, rtol=0, atol=atol, err_msg=key)


@pytest.mark.parametrize(
    "kind, command, weights",
    [
        ("embedding", "train-embedding", "model.safetensors"),
        ("distill", "distill", "model.safetensors"),
        ("dynamic", "pretrain", PRETRAINED),
    ],
)
def test_a_stored_training_resumes(stored, kind, command, weights):
    folder = stored / kind
    _, log = run(folder, command, *json.loads((folder / "words.json").read_text())[1:])
    assert "resumed output/checkpoints/step_00000004" in log
    assert_as_stored(folder, weights)


@pytest.mark.parametrize(
    "kind, command, made, runs",
    [
        ("folds", "cross-validate", ["predictions.tsv"], "fold-*"),
        ("search", "search-params", ["trials.tsv"], "trials/trial-*"),
        ("starts", "compare starts", [], "*-seed-1234"),
    ],
)
def test_a_stored_series_goes_on_with_the_next_run(stored, kind, command, made, runs):
    folder = stored / kind
    (first,) = (path for path in (folder / "output").glob(runs) if path.is_dir())
    before = (first / "metrics.jsonl").stat().st_mtime_ns
    run(folder, *command.split(), *json.loads((folder / "words.json").read_text())[1:])
    assert (first / "metrics.jsonl").stat().st_mtime_ns == before  # the finished run was not repeated
    assert len([path for path in (folder / "output").glob(runs) if path.is_dir()]) == 2
    for name in made:
        assert_same_cells(folder / "output" / name, folder / "expected" / name)


def assert_same_cells(path, expected):
    """Numbers are equal to 1e-4, as on another processor; times and newer columns are not compared."""
    tables = [list(csv.DictReader(one.open(encoding="utf-8"), delimiter="\t")) for one in (path, expected)]
    assert len(tables[0]) == len(tables[1]) > 0
    kept = [name for name in tables[1][0] if "second" not in name and "time" not in name]
    for row, wanted in zip(*tables):
        for name in kept:
            try:
                assert float(row[name]) == pytest.approx(float(wanted[name]), abs=1e-4)
            except ValueError:
                assert row[name] == wanted[name]


def test_stored_models_predict_what_they_did(stored):
    folder = stored / "pair"
    words = ["--model_path=output/best", "--input_file=dev.tsv", "--device=cpu"]
    run(folder, "predict", *words, "--scores=true", "--output_file=again.tsv")
    assert_same_cells(folder / "again.tsv", folder / "predictions.tsv")


def test_a_stored_index_gives_the_hits_it_gave(stored):
    pytest.importorskip("faiss")
    folder = stored / "index"
    out, _ = run(folder, "search", "--index=index", "--embedding_model=model", "--text=今天", "--top_k=3")
    hits, expected = (
        [line.split("\t") for line in text.splitlines()]
        for text in (out, (folder / "hits.txt").read_text("utf-8"))
    )
    assert [hit[1:] for hit in hits] == [hit[1:] for hit in expected]


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


def assert_tells_of_paddle(said, stored_with="2.6.2"):
    """Another version of Paddle than that of a stored run resumes it and logs the difference."""
    version = installed_versions().get("paddlepaddle")
    assert (f"paddlepaddle {version} (was {stored_with})" in said) == (version not in (stored_with, None))


NO_DROPOUT = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}


@pytest.mark.parametrize(
    "stored, stored_with, changes", [("runs", "2.6.2", {}), ("pir", "3.3.1", NO_DROPOUT)], indirect=["stored"]
)
def test_a_stored_pretraining_run_converts_and_resumes(stored, stored_with, changes):
    """Versions of Paddle drop by other masks, so only a run without dropout ends alike in the other."""
    words = ["--static_model_path", "output/model_last/static_vars", "--output_dir", "dynamic"]
    _, said = run(stored / "pretrain", *words, script=[SCRIPTS / "ernie_static_to_dynamic.py"])
    assert "wrote " in said and (stored / "pretrain/dynamic/model_state.pdparams").is_file()
    places = (Path("pretrain") / name for name in ("model", "corpus", "output"))
    words = flags(*places, seed=7, kernels="plain", **changes)
    _, said = run(stored, *words, script=[SCRIPTS / "run_pretrain_static.py"])
    assert "resumed pretrain/output/checkpoints/step_00000004: 16 samples seen" in said
    assert_tells_of_paddle(said, stored_with)
    has_own_masks = not changes and builds_pir()
    assert_as_stored(stored / "pretrain", PRETRAINED, atol=5e-3 if has_own_masks else 1e-5)


@of_runs
def test_a_stored_pair_run_resumes_and_its_best_model_loads(stored):
    settings = {"model_name_or_path": "model", "model_type": "ernie", "from_scratch": "true"}
    settings.update(train_file="train.tsv", dev_file="dev.tsv", output_dir="output", device="cpu")
    settings.update(batch_size=16, logging_freq=1, max_steps=6, checkpoint_steps=2, eval_freq=3)
    settings.update(learning_rate=0.01, kernels="plain")
    words = [f"--{name}={value}" for name, value in settings.items()]
    _, said = run(stored / "pair", *words, script=["-c", AS_BEFORE, SCRIPTS / "train_pair.py"])
    assert "resumed output/checkpoints/step_00000004: 64 samples seen" in said
    assert_tells_of_paddle(said)
    assert_as_stored(stored / "pair", "model.safetensors")
    model, vocab_file = load_classifier(str(stored / "pair/output/best-accuracy-0.5122"))
    assert (model.num_classes, model.spec.labels.names, vocab_file.name) == (2, ("0", "1"), "vocab.txt")
