"""The int8 and bf16 models: how they are judged, when they are rejected, and batch independence."""

import json

import numpy as np
import pytest
from tiny_ship import random_texts, ship, write_trained

from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.deployment import formats as quantize
from ernie_pair.deployment.judge_precision import BF16, FLOAT, INT8
from ernie_pair.evaluation.predict_pair import predict_pair
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.runtime.cpu import LEVEL_ASKED, cpu_level, has_bf16

pytest.importorskip("onnxruntime")

PAIRS = random_texts(80, seed=5)
FILES = {FLOAT: "model.onnx", INT8: "model.int8.onnx"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model with nonzero biases; those of a new model are 0."""
    folder = tmp_path_factory.mktemp("trained")
    model, vocab_file = load_classifier(str(write_trained(folder / "new", num_hidden_layers=2)))
    rng = np.random.default_rng(0)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            weight.set_value(rng.normal(0, 0.3, weight.shape).astype(np.float32))
    (folder / "best").mkdir()
    model.write(folder / "best", vocab_file)
    return folder / "best"


@pytest.fixture(scope="module")
def labelled(model, tmp_path_factory):
    """Pairs labelled with the float model's predictions, so that its accuracy is 1."""
    folder = tmp_path_factory.mktemp("labelled")
    classes = PairPredictor(ship(model, folder / "float", "onnx")).predict(PAIRS).classes
    lines = [f"{a}\t{b}\t{number}\n" for (a, b), number in zip(PAIRS, classes)]
    (folder / "dev.tsv").write_text("".join(lines), encoding="utf-8")
    (folder / "unlabelled.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
    return folder / "dev.tsv"


@pytest.fixture(scope="module")
def exported(model, labelled, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "ship"
    return ship(model, folder, "onnx", quantize="int8", quantize_file=str(labelled), max_accuracy_drop=0.1)


def int8_of(folder):
    return json.loads((folder / "export.json").read_text(encoding="utf-8"))["int8"]


def test_the_int8_figures_match_both_models(exported, labelled):
    facts = int8_of(exported)
    assert facts["judged_on"] == "dev.tsv" and facts["rows"] == len(PAIRS)
    classes = {name: PairPredictor(exported, name).predict(PAIRS).classes for name in (FLOAT, INT8)}
    right = [int(line.split("\t")[2]) for line in labelled.read_text(encoding="utf-8").splitlines()]
    assert facts["accuracy"] == {name: np.mean(given == right) for name, given in classes.items()}
    assert facts["accuracy"][FLOAT] == 1.0 and facts["agreement"] == np.mean(classes[FLOAT] == classes[INT8])
    assert 0 < facts["largest_difference"] < 0.5
    assert set(facts["pairs_per_second"]) == {FLOAT, INT8} and min(facts["pairs_per_second"].values()) > 0
    sizes = {name: (exported / file).stat().st_size for name, file in FILES.items()}
    assert facts["bytes"] == sizes and sizes[INT8] < sizes[FLOAT]


@pytest.mark.skipif(not has_bf16(cpu_level()), reason="the processor has no AVX512-BF16")
def test_bf16_is_compared_with_float32(tmp_path, model, labelled, capfd):
    flags = {"precision": "bf16", "quantize_file": str(labelled)}
    folder = ship(model, tmp_path / "ship", "paddle", max_accuracy_drop=1.0, **flags)
    facts = json.loads((folder / "export.json").read_text(encoding="utf-8"))["bf16"]
    expected, found = (
        PairPredictor(folder, "paddle", precision=precision).logits(PAIRS) for precision in ("fp32", "bf16")
    )
    assert facts["largest_difference"] == pytest.approx(np.abs(expected - found).max(), rel=1e-3)
    assert facts["agreement"] == np.mean(expected.argmax(axis=1) == found.argmax(axis=1))
    assert set(facts["accuracy"]) == {"paddle", BF16} and facts["accuracy"]["paddle"] == 1.0
    assert "bf16: " in capfd.readouterr().err


def test_bf16_without_cpu_support_is_rejected(tmp_path, model, monkeypatch):
    monkeypatch.setenv(LEVEL_ASKED, "avx2")
    with pytest.raises(InputError, match="precision bf16 needs a processor with AVX512-BF16"):
        ship(model, tmp_path / "ship", "paddle", precision="bf16")
    assert not list(tmp_path.iterdir())


def test_every_matmul_weight_is_int8(exported):
    import onnx

    before, after = (onnx.load(str(exported / FILES[name])).graph for name in (FLOAT, INT8))
    constants = {node.output[0] for node in before.node if node.op_type == "Constant"}
    constants |= {tensor.name for tensor in before.initializer}
    weighted = [node for node in before.node if node.op_type == "MatMul" and node.input[1] in constants]
    types = {tensor.name: tensor.data_type for tensor in after.initializer}
    products = [node for node in after.node if node.op_type == "MatMulInteger"]
    assert len(products) == len(weighted) == 2 * 6 + 2
    assert {types[node.input[1]] for node in products} == {onnx.TensorProto.INT8}


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "the library's"])
def test_int8_logits_do_not_depend_on_the_batch(tmp_path, model, monkeypatch, is_ours):
    if not is_ours:
        monkeypatch.setattr(quantize, "_scale_rows", lambda graph: 1)
    folder = ship(model, tmp_path / "ship", "onnx", quantize="int8", max_accuracy_drop=1.0)
    predictor = PairPredictor(folder, INT8)
    together = predictor.logits(PAIRS)
    alone = np.concatenate([predictor.logits([pair]) for pair in PAIRS])
    moved = np.abs(together - alone).max()
    assert moved < 1e-5 if is_ours else moved > 1e-3
    assert int8_of(folder)["alone"][INT8] < 1e-5 if is_ours else int8_of(folder)["alone"][INT8] > 1e-3


def test_int8_logits_agree_with_and_without_fusion(exported):
    """The library's own order of the products would be fused to an operator with a different bias per row."""
    import onnxruntime

    predictor = PairPredictor(exported, INT8)
    fused = predictor.logits(PAIRS)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(exported / FILES[INT8]), options)
    predictor.logits_of_ids = lambda ids, types: session.run(
        None, {"input_ids": ids, "token_type_ids": types}
    )[0]
    assert np.abs(fused - predictor.logits(PAIRS)).max() < 2e-3 * np.abs(fused).max()


def test_int8_that_loses_accuracy_is_not_exported(tmp_path, model, labelled, monkeypatch, capfd):
    monkeypatch.setattr(quantize, "LARGEST", 1)  # three levels instead of 255
    flags = {"quantize": "int8", "quantize_file": str(labelled)}
    assert exit_code_of(lambda: ship(model, tmp_path / "ship", "onnx", **flags)) == 3
    error = capfd.readouterr().err.splitlines()[-1]
    assert "int8 loses too much (accuracy 1.0000 in float32, 0." in error
    assert "with --max_accuracy_drop 0.01: nothing is exported" in error
    assert not list(tmp_path.iterdir())
    folder = ship(model, tmp_path / "ship", "onnx", max_accuracy_drop=1.0, **flags)
    assert int8_of(folder)["accuracy"][INT8] < 0.99


@pytest.mark.parametrize("given", ["unlabelled.tsv", ""], ids=["unlabelled", "made up"])
def test_without_labels_int8_is_judged_by_agreement(tmp_path, model, labelled, monkeypatch, capfd, given):
    flags = {"quantize": "int8", "quantize_file": str(labelled.with_name(given)) if given else ""}
    folder = ship(model, tmp_path / "ship", "onnx", max_accuracy_drop=0.1, **flags)
    said = capfd.readouterr().err
    assert ("has no labels: int8 is judged by how often" if given else "judged by made-up pairs") in said
    facts = int8_of(folder)
    assert "accuracy" not in facts and 0.9 <= facts["agreement"] <= 1
    assert facts["judged_on"] == (given or "made-up pairs") and (facts["sha256"] is None) is not bool(given)
    monkeypatch.setattr(quantize, "LARGEST", 1)
    with pytest.raises(CheckpointError, match="int8 loses too much .the same class for 0"):
        ship(model, tmp_path / "other", "onnx", **flags)
    assert not (tmp_path / "other").exists()


def test_a_missing_quantize_file_is_reported_before_exporting(tmp_path, model):
    with pytest.raises(InputError, match=r"absent\.tsv: no such file"):
        ship(model, tmp_path / "ship", "onnx", quantize="int8", quantize_file=str(tmp_path / "absent.tsv"))
    assert not list(tmp_path.iterdir())


def test_int8_is_used_only_when_named_as_the_backend(exported, tmp_path):
    assert PairPredictor(exported).backend == FLOAT  # auto: the verified float model
    lines = "".join(f"{a}\t{b}\n" for a, b in PAIRS)
    (tmp_path / "new.tsv").write_text(lines, encoding="utf-8")
    out = tmp_path / "out.tsv"
    predict_pair(PredictConfig(str(exported), str(tmp_path / "new.tsv"), str(out), backend=INT8))
    written = [int(line.split("\t")[1]) for line in out.read_text(encoding="utf-8").splitlines()[1:]]
    assert written == PairPredictor(exported, INT8).predict(PAIRS).classes.tolist()
