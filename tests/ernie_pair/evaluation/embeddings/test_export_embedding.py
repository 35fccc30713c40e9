"""An exported embedding model: the same vectors and fingerprint, without Paddle, and refused if modified."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from children import command
from places import ROOT
from tiny_embedding import write_matches
from tiny_ship import write_trained

from ernie_pair.__main__ import _run as run_here
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.embeddings.embed_config import EvaluateEmbeddingConfig, ExportEmbeddingConfig
from ernie_pair.embeddings.open_embedder import EmbedderOptions, open_embedder
from ernie_pair.evaluation.embeddings import export_embedding as exporting
from ernie_pair.evaluation.embeddings.evaluate_embedding import evaluate_embedding, threshold_of_pairs
from ernie_pair.evaluation.embeddings.export_embedding import export_embedding
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.embedding_json import EmbeddingSettings

pytest.importorskip("onnxruntime")

TEXTS = ["今天气很好", "我", "", "你她它" * 30]
WITHOUT_PADDLE = """
import sys
from ernie_pair import open_embedder

print(open_embedder(sys.argv[1]).embed(["今天"]).shape, "paddle" in sys.modules)
"""


def write_embedding(folder, family="ernie", pooling="mean"):
    write_trained(folder, family)
    (folder / "embedding.json").write_text(EmbeddingSettings(pooling, 32, (8, 32), 24, 0.05).to_json())
    return folder


@pytest.fixture(scope="module")
def folder(module_path):
    write_embedding(module_path / "model")
    export_embedding(ExportEmbeddingConfig(str(module_path / "model"), str(module_path / "ship")))
    return module_path


@pytest.mark.parametrize("family, pooling", [("ernie_gram", "cls"), ("distilbert", "mean")])
def test_any_model_family_is_exported_with_its_parity_error(tmp_path, family, pooling):
    model = write_embedding(tmp_path / "model", family, pooling)
    export_embedding(ExportEmbeddingConfig(str(model), str(tmp_path / "ship")))
    trained, exported = (open_embedder(tmp_path / name) for name in ("model", "ship"))
    assert np.abs(trained.embed(TEXTS) - exported.embed(TEXTS)).max() < 1e-5
    assert json.loads((tmp_path / "ship" / "embedding.json").read_text())["parity"]["onnx"] < 1e-4


@pytest.mark.parametrize("dim", [0, 8])
def test_the_exported_model_computes_the_same_vectors(folder, dim):
    trained, exported = (
        open_embedder(folder / name, options=EmbedderOptions(dim=dim)) for name in ("model", "ship")
    )
    assert exported.backend == "onnx" and trained.dim == exported.dim == (dim or 32)
    assert np.abs(trained.embed(TEXTS) - exported.embed(TEXTS)).max() < 1e-5
    assert trained.fingerprint == exported.fingerprint


def test_an_int8_export_reports_its_cosine_similarity(folder, capfd):
    words = ["export", "embedding", f"--model_path={folder}/model", f"--output_dir={folder}/int8"]
    assert exit_code_of(lambda: run_here([*words, "--quantize=int8"])) == 0
    said = json.loads((folder / "int8" / "embedding.json").read_text())["int8"]
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "int8: cosine" in line]
    assert f"{said['mean_cosine']:.4f}, at least {said['least_cosine']:.4f}" in line
    assert "0.0000" not in line and 0.98 < said["least_cosine"] < said["mean_cosine"] < 1
    float_model, int8 = (open_embedder(folder / name) for name in ("ship", "int8"))
    cosines = (float_model.embed(TEXTS[:2]) * int8.embed(TEXTS[:2])).sum(axis=1)
    assert int8.backend == "onnx-int8" and 0.97 < cosines.min() < 0.99999999
    assert np.allclose(np.linalg.norm(int8.embed(TEXTS[:2]), axis=1), 1, atol=1e-6)
    sizes = [(folder / of).stat().st_size for of in ("ship/model.onnx", "int8/model.int8.onnx")]
    assert sizes[0] > 1.2 * sizes[1] and not (folder / "int8" / "model.onnx").exists()
    assert int8.fingerprint != float_model.fingerprint  # so that an index can tell them apart
    assert "int8: cosine" in (folder / "int8" / "README.md").read_text(encoding="utf-8")


def test_shorter_vectors_are_normalised_prefixes(folder):
    whole, short = (
        open_embedder(folder / "ship", options=EmbedderOptions(dim=dim)).embed(TEXTS) for dim in (0, 8)
    )
    cut = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
    assert np.abs(short - cut).max() < 1e-6
    fingerprints = {
        open_embedder(folder / "ship", options=EmbedderOptions(dim=dim)).fingerprint for dim in (0, 8)
    }
    assert len(fingerprints) == 2


@pytest.mark.parametrize("flags", [{"precision": "bf16"}, {"kernels": "plain"}])
def test_an_exported_model_takes_no_kernels(folder, flags):
    ((name, value),) = flags.items()
    with pytest.raises(InputError, match=f"{name} {value}: .* computes as it was exported; leave it out"):
        open_embedder(folder / "ship", kernels=KernelFlags(**flags))


def test_an_exported_model_does_not_load_paddle(folder):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PADDLE, str(folder / "ship")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == "(1, 32) False", done.stderr


@pytest.mark.parametrize("name", ["model.onnx", "vocab.txt", "config.json"])
def test_a_changed_file_is_refused(folder, tmp_path, name):
    ship = shutil.copytree(folder / "ship", tmp_path / "ship")
    with open(ship / name, "ab") as file:
        file.write(b"\n")
    with pytest.raises(CheckpointError, match="is not the file that was exported"):
        open_embedder(ship)


def test_a_failed_parity_check_exports_nothing(folder, tmp_path, monkeypatch):
    def opened(*words):
        backend = open_vector_backend(*words)
        logits = backend.logits
        backend.logits = lambda *ids: logits(*ids) + 1e-3
        return backend

    open_vector_backend = exporting.open_vector_backend
    monkeypatch.setattr(exporting, "open_vector_backend", opened)
    with pytest.raises(CheckpointError, match="differs from the trained one by 0.001"):
        export_embedding(ExportEmbeddingConfig(str(folder / "model"), str(tmp_path / "ship")))
    assert not list(tmp_path.iterdir())


def test_invalid_exports_and_options_are_refused(folder, tmp_path, capfd):
    export_embedding(ExportEmbeddingConfig(str(folder / "model"), str(folder / "ship")))
    assert "nothing to do" in capfd.readouterr().err
    with pytest.raises(InputError, match="is an exported model already"):
        export_embedding(ExportEmbeddingConfig(str(folder / "ship"), str(tmp_path / "again")))
    bare = write_trained(tmp_path / "bare")
    with pytest.raises(InputError, match="holds no embedding.json"):
        export_embedding(ExportEmbeddingConfig(str(bare), str(tmp_path / "again")))
    with pytest.raises(InputError, match="is an embedding model, .* as embedding_model .*open_embedder"):
        PairPredictor(folder / "ship")
    (tmp_path / "bare" / "export.json").write_text("{}")
    with pytest.raises(InputError, match="an exported model of pairs, .* as model_path .*/bare to serve"):
        open_embedder(bare)
    with pytest.raises(InputError, match="device gpu: this ONNX Runtime has no CUDA; pip uninstall"):
        open_embedder(folder / "ship", "gpu")
    with pytest.raises(InputError, match="make other vectors each; export a folder for each"):
        ExportEmbeddingConfig("model", "ship", quantize="int8", format="onnx-gpu")
    with pytest.raises(InputError, match="its vectors would be others"):
        open_embedder(folder / "ship", options=EmbedderOptions(pooling="cls"))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
def test_a_file_for_cards_is_judged_by_what_a_cpu_has_of_it(tmp_path, pooling):
    model = write_embedding(tmp_path / "model", pooling=pooling)
    export_embedding(ExportEmbeddingConfig(str(model), str(tmp_path / "ship"), format="onnx-gpu"))
    facts = json.loads((tmp_path / "ship" / "embedding.json").read_text())
    assert facts["parity"]["onnx-gpu"] < 1e-5 and facts["fp16"]["least_cosine"] > 0.9999
    trained, exported = (open_embedder(tmp_path / name) for name in ("model", "ship"))
    assert exported.backend == "onnx" and exported.fingerprint == trained.fingerprint
    assert "model.gpu.onnx" in exported.settings.files
    assert "device gpu asks model.gpu.onnx" in (tmp_path / "ship" / "README.md").read_text()


def test_a_command_shows_no_warnings_of_paddles_own_code(folder, tmp_path):
    done = command("export", "--model_path", folder / "model", "--output_dir", tmp_path / "ship")
    assert done.code == 0 and "exported " in done.told
    assert not re.search(r"^[IW]\d{4} ", done.told, re.M), done.told


def test_trained_and_exported_metrics_agree_at_every_dim(folder, tmp_path, capsys):
    pairs = write_matches(tmp_path / "dev.tsv", 30)
    found = {}
    for name in ("model", "ship"):
        output = tmp_path / f"{name}.json"
        flags = {"input_file": str(pairs), "output_file": str(output), "dims": "all", "device": "cpu"}
        evaluate_embedding(EvaluateEmbeddingConfig(model_path=str(folder / name), **flags))
        found[name] = json.loads(output.read_text())
        lines = capsys.readouterr().out.splitlines()
        assert [line.split("  ")[0] for line in lines[:2]] == ["dim 8", "dim 32"]
        threshold = found[name]["threshold"]
        said = "from a similarity of" if threshold["reached"] else "no similarity reaches precision 0.95"
        assert lines[2].startswith(said)
        assert threshold["interval"][0] <= threshold["precision"] <= threshold["interval"][1]
        assert f"mrr {found[name]['dims']['8']['mrr']:.4f}" in lines[0]
    assert found["model"]["dims"] == found["ship"]["dims"]
    assert list(found["ship"]["dims"]) == ["8", "32"] and found["ship"]["queries"] == 30
    assert found["ship"]["metrics"] == found["ship"]["dims"]["32"]
    with pytest.raises(InputError, match="was trained for vectors of length 8, 32"):
        flags = {"input_file": str(pairs), "output_file": str(tmp_path / "x.json"), "dims": "16"}
        evaluate_embedding(EvaluateEmbeddingConfig(model_path=str(folder / "ship"), **flags, device="cpu"))


def test_a_query_is_compared_with_itself_only_if_asked(folder, tmp_path, capfd):
    pairs = tmp_path / "dev.tsv"
    pairs.write_text("我\t你她\t1\n你她\t我\t0\n", encoding="utf-8")
    for same_text in ("leave_out", "keep"):
        flags = {"input_file": str(pairs), "same_text": same_text, "device": "cpu"}
        found = evaluate_embedding(EvaluateEmbeddingConfig(model_path=str(folder / "ship"), **flags))
        is_left_out, printed = same_text == "leave_out", "".join(capfd.readouterr())
        assert found["metrics"]["recall_at_1"] == is_left_out and found["same_text"] == same_text
        assert ("1 of 1 queries stand in the corpus as well" in printed) == is_left_out


def test_a_named_length_above_dim_is_refused(folder, tmp_path):
    pairs = write_matches(tmp_path / "dev.tsv", 30)
    flags = {"input_file": str(pairs), "output_file": str(tmp_path / "x.json"), "dim": 8, "device": "cpu"}
    ask = partial(EvaluateEmbeddingConfig, model_path=str(folder / "ship"), **flags)
    with pytest.raises(InputError, match="dims=32 is above dim=8, the length"):
        evaluate_embedding(ask(dims="8,32"))
    assert not (tmp_path / "x.json").exists()
    evaluate_embedding(ask(dims="all"))
    assert list(json.loads((tmp_path / "x.json").read_text())["dims"]) == ["8"]


def test_a_saved_similarity_goes_with_the_vectors_it_is_of(folder, tmp_path, capfd):
    model = shutil.copytree(folder / "model", tmp_path / "model")
    pairs = write_matches(tmp_path / "dev.tsv", 30)
    flags = {"model_path": str(model), "input_file": str(pairs), "device": "cpu", "save_threshold": True}
    with pytest.raises(InputError, match="no similarity reaches precision 0.999 on .*nothing was saved"):
        evaluate_embedding(EvaluateEmbeddingConfig(**flags, at_precision=0.999))
    assert open_embedder(model).match_threshold is None
    found = evaluate_embedding(EvaluateEmbeddingConfig(**flags, at_precision=0.5))["threshold"]
    export_embedding(ExportEmbeddingConfig(str(model), str(tmp_path / "ship")))
    for name in ("model", "ship"):
        assert open_embedder(tmp_path / name).match_threshold == found["threshold"]
    assert open_embedder(model, options=EmbedderOptions(dim=8)).match_threshold is None
    export_embedding(ExportEmbeddingConfig(str(model), str(tmp_path / "int8"), quantize="int8"))
    assert open_embedder(tmp_path / "int8").match_threshold is None
    assert capfd.readouterr().err.count("is of other vectors") == 2
    with pytest.raises(InputError, match="model_path nowhere is not a folder of yours"):
        evaluate_embedding(EvaluateEmbeddingConfig("nowhere", str(pairs), save_threshold=True))


def test_the_similarity_of_a_precision_is_that_of_the_curve():
    rng = np.random.default_rng(3)
    labels = (rng.random(400) < 0.4).astype(np.float64)
    scores = rng.normal(size=400) * 0.3 + labels * 0.4 - 0.5  # cosines may be negative
    found = threshold_of_pairs(scores, labels, 0.8)
    called = scores >= found["threshold"]
    assert found["reached"] and found["rows"] == called.sum() and found["pairs"] == 400
    assert found["precision"] == pytest.approx(labels[called].mean()) and found["precision"] >= 0.8
    assert found["recall"] == pytest.approx(called[labels == 1].mean())
    assert found["interval"][0] < found["precision"] < found["interval"][1]
    assert threshold_of_pairs(scores, np.ones(400), 0.8) is None
    assert threshold_of_pairs(scores, labels * 2.5, 0.8) is None
