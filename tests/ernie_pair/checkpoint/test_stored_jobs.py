"""Folders of every kind of run, stored by the version before the rooms were put together by subject.

support/stored_jobs.tar.xz holds a folder per kind. Most were killed in the middle: words.json is their
command, and expected/ what the same version had written at the end. The others are finished models, an index
and results.
"""

import json
import os
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from places import ROOT, SUPPORT

from ernie_pair.runtime.paddle_version import can_pretrain, paddle_version
from ernie_pair.weights.weight_files import from_safetensors

needs_pretraining = pytest.mark.skipif(
    not can_pretrain(paddle_version()), reason="this Paddle trains pairs alone"
)


@pytest.fixture
def stored(tmp_path):
    with tarfile.open(SUPPORT / "stored_jobs.tar.xz") as archive:
        archive.extractall(tmp_path)
    return tmp_path


def run(folder, *words):
    """Run a command of today in a stored folder; return what it printed and logged."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "ernie_pair", *words]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    "kind, command, weights",
    [
        ("embedding", "train-embedding", "model.safetensors"),
        ("distill", "distill", "model.safetensors"),
        pytest.param("dynamic", "pretrain", "static_vars.safetensors", marks=needs_pretraining),
    ],
)
def test_a_stored_training_resumes(stored, kind, command, weights):
    folder = stored / kind
    _, log = run(folder, command, *json.loads((folder / "words.json").read_text())[1:])
    assert "resumed output/checkpoints/step_00000004" in log
    ends = [folder / "expected", folder / "output" / "model_last"]
    expected, found = (from_safetensors((end / weights).read_bytes(), weights) for end in ends)
    assert found.keys() == expected.keys()
    for name, array in expected.items():  # another processor may round differently
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5, err_msg=name)


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
    """Numbers are equal to 1e-4, as on another processor; times are not compared."""
    tables = [[line.split("\t") for line in one.read_text("utf-8").splitlines()] for one in (path, expected)]
    assert tables[0][0] == tables[1][0] and len(tables[0]) == len(tables[1])
    kept = [number for number, name in enumerate(tables[0][0]) if "second" not in name and "time" not in name]
    for row, wanted in zip(*(table[1:] for table in tables)):
        for number in kept:
            try:
                assert float(row[number]) == pytest.approx(float(wanted[number]), abs=1e-4)
            except ValueError:
                assert row[number] == wanted[number]


def test_stored_models_predict_as_they_did(stored):
    folder = stored / "pair"
    words = ["--model_path=output/best", "--input_file=dev.tsv", "--device=cpu"]
    run(folder, "predict", *words, "--scores=true", "--output_file=again.tsv")
    assert_same_cells(folder / "again.tsv", folder / "predictions.tsv")


def test_stored_results_are_known_as_done(stored):
    """Nothing is made again, and nothing is taken for a file of the user's."""
    folder = stored / "pair"
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    words = ["--model_path=output/best", "--input_file=dev.tsv", "--device=cpu"]
    run(folder, "predict", *words, "--scores=true", "--output_file=predictions.tsv")
    run(folder, "evaluate", *words, "--output_file=evaluation.json")
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_stored_index_gives_the_hits_it_gave(stored):
    pytest.importorskip("faiss")
    folder = stored / "index"
    out, _ = run(folder, "search", "--index=index", "--model_path=model", "--query=今天", "--top_k=3")
    hits, expected = (
        [line.split("\t") for line in text.splitlines()]
        for text in (out, (folder / "hits.txt").read_text("utf-8"))
    )
    assert [hit[1:] for hit in hits] == [hit[1:] for hit in expected]
