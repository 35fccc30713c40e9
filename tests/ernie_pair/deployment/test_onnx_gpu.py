"""The file for cards: its graph by what a CPU has of it, and by what its operators are documented to do."""

import json

import numpy as np
import onnx
import paddle
import pytest
from fused_operators import OPERATORS, RemovePadding
from onnx.reference import ReferenceEvaluator
from tiny_ship import random_texts, ship, write_trained

from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.deployment import onnx_gpu
from ernie_pair.deployment.export_config import ExportConfig
from ernie_pair.deployment.formats import compute_answers
from ernie_pair.deployment.onnx_gpu import EITHER, PACKED, PADDED, GpuGraph
from ernie_pair.inference import backends
from ernie_pair.inference.exported_model import GPU, GPU_FILES
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.inference.token_rows import Batch
from ernie_pair.models.networks.classifier import load_classifier

pytest.importorskip("onnxruntime")
CHANGES = {"num_hidden_layers": 2, "initializer_range": 0.1}
# {name: the family, and what its config.json says besides}
MODELS = {
    "ernie": ("ernie", {}), "ernie_gram": ("ernie_gram", {}),
    "match": ("ernie", {"match_embeddings": True, "unmatched_ids": [0, 1, 2, 3]}),
    "first layers": ("distilbert", {}), "relu": ("bert", {"hidden_act": "relu"}),
    "tanh": ("bert", {"hidden_act": "gelu_new"}), "one layer": ("electra", {"num_hidden_layers": 1}),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_trained(tmp_path_factory.mktemp("trained") / "best", **CHANGES)


def opened(folder):
    """The model, batches that end with padding, and its logits of them."""
    model, _ = load_classifier(str(folder))
    for name, weight in model.named_parameters():
        if name.endswith("bias") or "match" in name:  # which a new model has 0
            weight.set_value(paddle.randn(weight.shape) * 0.2)
    rng, batches = np.random.default_rng(0), []
    for kept in ([5], [2, 17, 9], [24, 24, 3, 11]):
        places, lengths = np.arange(max(kept)), np.array(kept)[:, None]
        ids = np.where(places < lengths, rng.integers(5, 30, (len(kept), len(places))), 0)
        types = ((places > lengths // 2) & (places < lengths)).astype(np.int64)
        batches.append(Batch(ids, types, None))
    return model, batches, compute_answers(model, batches)


def largest(found, expected):
    return max(np.abs(one - other).max() for one, other in zip(found, expected))


def evaluated(graph, batches, folder, precision, rows):
    """What the file answers by the operators' documented meaning."""
    graph.write(folder, precision, rows)
    evaluator = ReferenceEvaluator(onnx.load(str(folder / GPU_FILES[0])), new_ops=OPERATORS)
    feeds = [{"input_ids": batch.input_ids, "token_type_ids": batch.token_type_ids} for batch in batches]
    return [evaluator.run(None, feed)[0] for feed in feeds]


@pytest.mark.parametrize("name", MODELS)
def test_fused_float32_on_a_cpu_gives_the_models_logits(tmp_path, name):
    family, more = MODELS[name]
    model, batches, expected = opened(write_trained(tmp_path / "best", family, **{**CHANGES, **more}))
    with GpuGraph(model).twin("fp32", 2) as twin:
        found = [twin.logits(batch.input_ids, batch.token_type_ids) for batch in batches]
    assert largest(found, expected) < 1e-6 * max(1, np.abs(np.concatenate(expected)).max())
    assert np.concatenate(expected).std() > 0.01


@pytest.mark.parametrize("rows", [PADDED, PACKED, EITHER])
def test_the_operators_of_a_card_give_the_models_logits(folder, tmp_path, rows):
    model, batches, expected = opened(folder)
    graph = GpuGraph(model)
    assert largest(evaluated(graph, batches, tmp_path, "fp32", rows), expected) < 2e-6
    rounded = evaluated(graph, batches, tmp_path, "fp16", rows)
    assert 1e-6 < largest(rounded, expected) < 5e-3
    with graph.twin("fp16", 2) as twin:  # by which it is judged
        cast = [twin.logits(batch.input_ids, batch.token_type_ids) for batch in batches]
    assert 1e-6 < largest(cast, expected) < 2 * largest(rounded, expected)
    graph.write(tmp_path, "bf16", rows)  # ONNX Runtime has Attention of bfloat16, and nothing that packs it
    kinds = {node.op_type for node in onnx.load(str(tmp_path / GPU_FILES[0])).graph.node}
    assert "Attention" in kinds if rows != PACKED else "RemovePadding" in kinds


def test_short_and_uneven_batches_are_computed_without_padding(folder, tmp_path, monkeypatch):
    model, batches, expected = opened(folder)
    asked, run = [], RemovePadding._run
    monkeypatch.setattr(RemovePadding, "_run", lambda *given: asked.append(1) or run(*given))
    graph, way = GpuGraph(model), {}
    monkeypatch.setattr(onnx_gpu, "PACKED_LENGTH", 20)
    for name, kept in (("short", [5, 5]), ("full", [24, 24]), ("uneven", [24, 3])):
        ids = np.where(np.arange(max(kept)) < np.array(kept)[:, None], 7, 0)
        asked.clear()
        evaluated(graph, [Batch(ids, np.zeros_like(ids), None)], tmp_path, "fp32", EITHER)
        way[name] = bool(asked)
    assert way == {"short": True, "full": False, "uneven": True}


def test_the_export_says_how_it_was_judged(folder, tmp_path, capfd, monkeypatch):
    exported = ship(folder, tmp_path / "ship", GPU)
    facts = json.loads((exported / "export.json").read_text())
    assert {*facts["parity"]} == {"onnx", GPU} and facts["parity"][GPU] < 1e-5
    assert facts["fp16"]["agreement"] > 0.98 and not facts["fp16"]["pairs_per_second"]
    assert 0 < facts["fp16"]["largest_difference"] < 0.05
    model = onnx.load(str(exported / GPU_FILES[0]))
    assert [(prop.key, prop.value) for prop in model.metadata_props] == [("precision", "fp16")]
    assert "device gpu asks model.gpu.onnx" in (exported / "README.md").read_text()
    assert "fp16: judged by its rounding on this CPU" in capfd.readouterr().err
    predictor = PairPredictor(exported)
    assert predictor.backend == "onnx" and np.isfinite(predictor.logits(random_texts(3))).all()
    with pytest.raises(InputError, match="backend onnx-gpu is for a GPU; pass device gpu, or backend onnx"):
        PairPredictor(exported, GPU)
    monkeypatch.setattr(
        backends, "_load_cuda", lambda onnxruntime: None
    )  # of a build whose CUDA is not found
    with pytest.raises(InputError, match="device gpu:1: .*RemovePadding.*; (libcudart.so|it takes a driver)"):
        PairPredictor(exported, GPU, device="gpu:1")


def test_a_file_that_answers_otherwise_is_not_exported(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(
        onnx_gpu._Build, "rounded", lambda self, name: self.node("Mul", name, self.number(-1, "f4"))
    )
    with pytest.raises(CheckpointError, match="differs from the trained one by"):
        ship(folder, tmp_path / "ship", GPU)
    assert not (tmp_path / "ship").exists()


def test_layers_of_another_kind_are_refused(folder, tmp_path):
    with pytest.raises(InputError, match="operators compute its layers .TransformerEncoderLayerWithRotary"):
        ship(write_trained(tmp_path / "rotary", "roformer"), tmp_path / "ship", GPU)
    with pytest.raises(InputError, match="no operator has its activation, silu; pass format onnx"):
        ship(write_trained(tmp_path / "silu", "bert", hidden_act="silu"), tmp_path / "ship", GPU)
    assert not (tmp_path / "ship").exists()


@pytest.mark.parametrize("format, precision", [("paddle", "fp16"), ("onnx", "bf16"), ("onnx", "fp16")])
def test_a_precision_of_another_format_is_refused(format, precision):
    with pytest.raises(InputError, match=f"precision {precision} is not of format {format}; use fp32, or"):
        ExportConfig("best", "ship", format=format, precision=precision)
