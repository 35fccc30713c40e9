"""Evaluation and prediction in half precision: casts requested from a simulated GPU, and errors."""

import contextlib
import json

import paddle
import pytest
from tiny_pair import write_pairs
from tiny_ship import write_trained

from ernie_pair.core.errors import InputError
from ernie_pair.evaluation import inference_model
from ernie_pair.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.evaluation.predict_pair import predict_pair
from ernie_pair.pairs.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.pairs.train.trainer import PairConfig, PairTrainer


@pytest.fixture(scope="module")
def world(module_path):
    write_trained(module_path / "model")
    write_pairs(module_path / "pairs.tsv", 40)
    return module_path


@pytest.fixture
def gpu(monkeypatch):
    """Make this CPU pass for a GPU of capability 8.0; returns the casts that were requested."""
    casts = []

    @contextlib.contextmanager
    def auto_cast(**asked):
        casts.append(asked)
        yield

    monkeypatch.setattr(inference_model, "start_device", lambda device, world: f"{device}:0, A card")
    monkeypatch.setattr(paddle.device.cuda, "get_device_capability", lambda number: (8, 0))
    monkeypatch.setattr(paddle.amp, "auto_cast", auto_cast)
    return casts


def config_of(config_class, world, out, **flags):
    paths = [str(path) for path in (world / "model", world / "pairs.tsv", out)]
    return config_class(*paths, **{"device": "gpu", **flags})


@pytest.mark.parametrize("precision, dtype", [("fp16", "float16"), ("bf16", "bfloat16")])
def test_gpu_prediction_runs_under_auto_cast(world, gpu, tmp_path, capfd, precision, dtype):
    predict_pair(config_of(PredictConfig, world, tmp_path / "out.tsv", precision=precision))
    assert gpu == [{"level": "O1", "dtype": dtype}]
    said = capfd.readouterr().err
    assert "on gpu:0, A card, 1 process" in said and f"products in {precision}: " in said
    assert len((tmp_path / "out.tsv").read_text().splitlines()) == 41


def test_an_evaluation_records_its_precision(world, gpu, tmp_path):
    flags = {"bootstrap": 0, "swap": False}
    evaluate_pair(config_of(EvaluateConfig, world, tmp_path / "half", precision="fp16", **flags))
    evaluate_pair(config_of(EvaluateConfig, world, tmp_path / "whole", **flags))
    said = [json.loads((tmp_path / name).read_text())["kernels"] for name in ("half", "whole")]
    reason = "the fused kernels are for the CPU"
    half = f"plain kernels of Paddle, products in fp16: {reason}"
    assert said == [half, f"plain kernels of Paddle: {reason}"]
    assert [asked["dtype"] for asked in gpu] == ["float16"]


def test_bf16_is_rejected_on_an_old_gpu(world, gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(paddle.device.cuda, "get_device_capability", lambda number: (7, 5))
    with pytest.raises(InputError, match="precision bf16 needs a GPU of compute capability 8.0, this one"):
        predict_pair(config_of(PredictConfig, world, tmp_path / "out.tsv", precision="bf16"))


def test_gpu_training_with_precision_fp16_suggests_use_amp(world, gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "ernie_pair.pairs.train.trainer.start_training_device", lambda *given: "gpu:0, A card"
    )
    config = PairConfig(str(tmp_path / "out"), device="gpu", precision="fp16", max_seq_len=32)
    with pytest.raises(InputError, match="use use_amp=True amp_dtype float16 instead"):
        PairTrainer(str(world / "model"), config)
