"""Exported models: the parity check, the folder's contents, rejected inputs, and no partial output."""

import hashlib
import json
import math
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from shutil import copytree
from types import ModuleType

import paddle
import pytest
from run_files import Killed, files_of
from tiny_ship import MAX_SEQ_LEN, PADDLE, PROGRAM, ship, write_trained

from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.atomic_files import own_name
from ernie_pair.core.installation import extra_here, install_command
from ernie_pair.deployment import export_pair as export
from ernie_pair.deployment import formats as export_formats
from ernie_pair.deployment import pir_onnx
from ernie_pair.deployment.export_pair import ExportConfig, export_pair
from ernie_pair.inference.predictor import PairPredictor

COMMON = {"config.json", "vocab.txt", "tokenizer_config.json", "export.json", "README.md"}
UNHASHED = ("export.json", "README.md")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_trained(tmp_path_factory.mktemp("trained") / "best-accuracy-0.9000")


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    return ship(model, tmp_path_factory.mktemp("exported") / "ship", max_seq_len=20)


@pytest.fixture
def earlier(exported, tmp_path):
    return Path(copytree(exported, tmp_path / "ship"))


def manifest_of(folder):
    return json.loads((folder / "export.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("family", ["ernie", "ernie_gram"])
@pytest.mark.parametrize("format", ["paddle", "onnx", "both"])
def test_an_export_is_verified_and_has_a_complete_manifest(tmp_path, capfd, family, format):
    if format != "paddle":
        pytest.importorskip("onnxruntime")
    trained = write_trained(tmp_path / "best", family)
    folder = ship(trained, tmp_path / "ship", format)
    backends = {"paddle", "onnx"} if format == "both" else {format}
    models = (PADDLE if "paddle" in backends else set()) | ({"model.onnx"} if "onnx" in backends else set())
    assert set(files_of(folder)) == COMMON | models
    manifest = manifest_of(folder)
    assert set(manifest["parity"]) == backends
    assert all(0 <= difference < 1e-4 for difference in manifest["parity"].values())
    said = capfd.readouterr().err
    assert all(f"largest difference of {name:<6}" in said for name in backends)
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files_of(folder).items()}
    assert manifest["files"] == {name: hashes[name] for name in hashes if name not in UNHASHED}
    assert (folder / "vocab.txt").read_bytes() == (trained / "vocab.txt").read_bytes()
    assert (folder / "config.json").read_bytes() == (trained / "config.json").read_bytes()
    assert manifest["vocab_sha256"] == WordPiece.from_file(trained / "vocab.txt").sha256
    facts = {key: manifest[key] for key in ("labels", "max_seq_len", "temperature", "model")}
    assert facts == {"labels": ["0", "1"], "max_seq_len": MAX_SEQ_LEN, "temperature": 1.0, "model": "best"}
    build = "paddlepaddle-gpu" if paddle.is_compiled_with_cuda() else "paddlepaddle"
    assert manifest["versions"][build] == paddle.__version__


def test_onnx_has_named_io_dynamic_axes_and_one_embedding(tmp_path, model):
    pytest.importorskip("onnxruntime")
    import onnx

    graph = onnx.load(str(ship(model, tmp_path / "ship", "onnx") / "model.onnx")).graph
    ends = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    lengths = ["batch", "length"]
    assert ends == {"input_ids": lengths, "token_type_ids": lengths, "logits": ["batch", 2]}
    constants = [node.attribute[0].t for node in graph.node if node.op_type == "Constant"]
    shapes = [tuple(tensor.dims) for tensor in (*graph.initializer, *constants)]
    assert shapes.count((35, 32)) == 1


def test_an_export_is_compared_on_padded_and_on_full_rows(model):
    tokenizer = WordPiece.from_file(model / "vocab.txt", True)
    padded, lengths = [], []
    for ids, types, *_ in export_formats.parity_batches(tokenizer, 20):
        is_end = (ids == tokenizer.pad_id)[:, ::-1].cumprod(axis=1)[:, ::-1].astype(bool)
        assert types[~is_end].any() and not types[is_end].any()
        padded += is_end.sum(axis=1).tolist()
        lengths += [ids.shape[1]] * len(ids)
    assert (0, 20) in zip(padded, lengths) and sum(count > 2 for count in padded) > len(padded) / 4


@pytest.mark.parametrize("bias, reason", [(0.5, "by 0.5, more than 0.0001"), (math.nan, "by nan")])
def test_an_export_that_differs_from_the_model_is_rejected(tmp_path, model, monkeypatch, bias, reason):
    write_paddle = export.write_paddle

    def write_other(trained, folder):
        trained.classifier.bias.set_value(trained.classifier.bias + bias)
        return write_paddle(trained, folder)

    monkeypatch.setattr(export, "write_paddle", write_other)
    with pytest.raises(CheckpointError, match=f"the paddle model differs from the trained one {reason}"):
        ship(model, tmp_path / "ship")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("changes, code, reason", [
    ({"model_path": "absent"}, 2, "--model_path absent is not a folder"),
    ({"model_path": "empty"}, 2, "no config.json and no vocab.txt"),
    ({"output_dir": "file"}, 2, "file is a file; give a folder"),
    ({"output_dir": "full"}, 2, "full holds mine.txt, which would be lost"),
    ({"output_dir": "model"}, 2, "model holds config.json, which would be lost"),
    ({"output_dir": "file/ship"}, 5, "file"),
    ({"max_seq_len": 129}, 2, "--max_seq_len 129 is more than the model's 128 positions; use 128"),
])  # fmt: skip
def test_invalid_flags_give_a_one_line_error_and_change_no_file(
    tmp_path, model, monkeypatch, capfd, changes, code, reason
):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "full", "model"):
        (tmp_path / name).mkdir()
    for path in ("file", "full/mine.txt", "model/config.json", "model/vocab.txt"):
        (tmp_path / path).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    flags = {"model_path": str(model), "output_dir": "ship", **changes}
    assert exit_code_of(lambda: export_pair(ExportConfig(**flags))) == code
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and reason in error
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("told, length", [(17, 17), (None, 128), (4000, 128)])
def test_max_seq_len_defaults_to_the_training_length(tmp_path, told, length):
    trained = write_trained(tmp_path / "best")
    tokenizer = json.loads((trained / "tokenizer_config.json").read_text())
    if told:
        tokenizer["model_max_length"] = told
    (trained / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert manifest_of(ship(trained, tmp_path / "ship", max_seq_len=0))["max_seq_len"] == length
    assert json.loads((tmp_path / "ship" / "tokenizer_config.json").read_text()) == tokenizer


def test_a_model_without_a_tokenizer_config_is_exported(tmp_path):
    trained = write_trained(tmp_path / "best")
    (trained / "tokenizer_config.json").unlink()
    folder = ship(trained, tmp_path / "ship")
    assert "tokenizer_config.json" not in manifest_of(folder)["files"]
    assert PairPredictor(folder, "paddle").predict([("今天", "你好")]).classes.shape == (1,)


def test_missing_onnxruntime_is_reported_before_exporting(tmp_path, model, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(
        InputError, match=re.escape(f"onnxruntime is not installed; {install_command(extra_here())}")
    ):
        ship(model, tmp_path / "ship", "both")
    assert not list(tmp_path.iterdir())


def test_an_export_overwrites_an_export_but_no_user_file(model, earlier):
    assert manifest_of(earlier)["max_seq_len"] == 20
    before = files_of(earlier)
    assert files_of(ship(model, earlier, max_seq_len=20)) == before  # already up to date
    with pytest.raises(InputError, match="exists; pass overwrite=True .*max_seq_len=20 and not 30"):
        ship(model, earlier, max_seq_len=30)
    assert manifest_of(ship(model, earlier, max_seq_len=30, overwrite=True))["max_seq_len"] == 30
    (earlier / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds notes\.txt, which would be lost"):
        ship(model, earlier, overwrite=True)


@pytest.mark.parametrize("stage", ["write_paddle", "open_backend", "_write_manifest"])
def test_a_killed_export_leaves_the_previous_one_intact(tmp_path, model, earlier, monkeypatch, stage):
    before = files_of(earlier)
    step = getattr(export, stage)

    def step_and_die(*given, **named):
        step(*given, **named)
        raise Killed

    monkeypatch.setattr(export, stage, step_and_die)
    with pytest.raises(Killed):
        ship(model, earlier, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["ship"] and files_of(earlier) == before


def test_leftovers_of_a_killed_export_are_removed(tmp_path, model):
    left = tmp_path / own_name(".tmp-ship")
    left.mkdir()
    (left / PROGRAM).write_text("half")
    assert set(files_of(ship(model, tmp_path / "ship"))) == COMMON | PADDLE
    assert [path.name for path in tmp_path.iterdir()] == ["ship"]


def test_a_model_that_onnx_cannot_express_is_refused(tmp_path, model, monkeypatch):
    pytest.importorskip("onnxruntime")
    converter = ModuleType("paddle2onnx")
    converter.__spec__ = ModuleSpec("paddle2onnx", None)
    converter.export = lambda *given, **named: b""
    monkeypatch.setitem(sys.modules, "paddle2onnx", converter)
    monkeypatch.delitem(pir_onnx.TRANSLATIONS, "softmax")
    with pytest.raises(InputError, match="cannot express this model in ONNX; pass format paddle"):
        ship(model, tmp_path / "ship", "onnx")
    assert not list(tmp_path.iterdir())


def test_an_operator_without_a_translation_is_named(tmp_path, model, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(export_formats, "find_spec", lambda name: None)
    monkeypatch.delitem(pir_onnx.TRANSLATIONS, "softmax")
    with pytest.raises(InputError, match="^no translation to ONNX of softmax in .*; pass format paddle, or "):
        ship(model, tmp_path / "ship", "onnx")
    assert not list(tmp_path.iterdir())
