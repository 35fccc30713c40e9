"""Prediction with Ray: the same bytes as from one process, for a trained and for an exported model."""

import os
import shutil
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from tiny_ship import random_texts, ship, write_trained

from ernie_pair.core.errors import InputError, MachineError
from ernie_pair.core.process_pool import ray_map
from ernie_pair.evaluation.inference_model import TrainedScorer
from ernie_pair.evaluation.predict_pair import predict_pair
from ernie_pair.inference import ray_flags
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.pairs.config.ask_config import PredictConfig

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
RAY = {"engine": "ray", "workers": 2}


@pytest.fixture(scope="module")
def here(module_path):
    """A trained model, its export, and pairs with one malformed row."""
    ship(
        write_trained(module_path / "best"),
        module_path / "ship",
        "both" if find_spec("onnxruntime") else "paddle",
    )
    lines = [f"{a}\t{b}\n" for a, b in random_texts(90, seed=4)]
    lines[41] = "alone\n"
    (module_path / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    return module_path


def asked(here, name, **flags):
    config = {"output_file": str(here / name), "scores": True, "on_bad_row": "skip", "overwrite": True}
    return {"input_file": str(here / "pairs.tsv"), **config, **flags}


@needs_ray
def test_ray_output_of_an_exported_model_is_byte_identical(here, monkeypatch):
    monkeypatch.setattr(PairPredictor, "window", 20)
    predict_pair(PredictConfig(str(here / "ship"), **asked(here, "alone.tsv", threads=2)))
    predict_pair(PredictConfig(str(here / "ship"), **asked(here, "ray.tsv", **RAY)))
    rows = (here / "ray.tsv").read_text().splitlines()
    assert len(rows) == 91 and rows[42].split("\t")[0] == "41" and not rows[42].strip("41\t")
    assert (here / "ray.tsv").read_bytes() == (here / "alone.tsv").read_bytes()


@needs_ray
@pytest.mark.slow  # as the exported one; embed of a trained encoder opens it by Ray in the quick tests
def test_ray_output_of_a_trained_model_is_byte_identical(here, monkeypatch):
    monkeypatch.setattr(TrainedScorer, "window", 30)
    flags = {"model_path": str(here / "best"), "device": "cpu"}
    predict_pair(PredictConfig(**flags, **asked(here, "one.tsv")))
    predict_pair(PredictConfig(**flags, **asked(here, "tasks.tsv", **RAY)))
    assert (here / "tasks.tsv").read_bytes() == (here / "one.tsv").read_bytes()


def test_output_of_one_engine_is_up_to_date_for_the_other(here, capfd):
    """What one engine has written, the other need not compute again."""
    predict_pair(PredictConfig(str(here / "ship"), **asked(here, "made.tsv")))
    again = asked(here, "made.tsv", overwrite=False, **RAY)
    predict_pair(PredictConfig(str(here / "ship"), **again))
    assert "nothing to do" in capfd.readouterr().err


def test_a_model_that_is_exported_again_is_opened_again(here, tmp_path):
    """A second run in one process must not answer with the model that it opened for the first."""
    other = ship(write_trained(tmp_path / "other", initializer_range=0.1), tmp_path / "ship")
    predict_pair(PredictConfig(str(other), **asked(here, "wanted.tsv")))
    folder = Path(shutil.copytree(here / "ship", tmp_path / "copy"))
    predict_pair(PredictConfig(str(folder), **asked(here, "again.tsv")))
    before = (here / "again.tsv").read_bytes()
    shutil.rmtree(folder)
    other.rename(folder)
    predict_pair(PredictConfig(str(folder), **asked(here, "again.tsv")))
    assert (here / "again.tsv").read_bytes() == (here / "wanted.tsv").read_bytes() != before


@needs_ray
def test_each_worker_keeps_one_gpu_of_its_own(tmp_path, monkeypatch):
    import ray

    def worker_of(item):
        time.sleep(0.2)
        return os.environ.get("CUDA_VISIBLE_DEVICES"), os.getpid()

    start = ray.init
    monkeypatch.setattr(ray, "init", lambda **where: start(**where, num_gpus=2))  # which nobody touches
    found = list(ray_map(worker_of, range(6), 2, on_gpus=True))
    assert {gpu for gpu, _ in found} == {"0", "1"} and len(set(found)) == 2

    def killed_once(item, mark=tmp_path / "died"):
        if item == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item, os.environ["CUDA_VISIBLE_DEVICES"]

    assert [item for item, gpu in ray_map(killed_once, range(4), 2, on_gpus=True) if gpu] == [0, 1, 2, 3]
    for workers, gpus, cure in ((3, 2, "use workers=2"), (1, 0, "pass device.*cpu")):
        monkeypatch.setattr(ray, "init", lambda **where: start(**where, num_gpus=gpus))  # noqa: B023
        with pytest.raises(InputError, match=f"workers={workers}: Ray sees {gpus} GPUs, and each.*; {cure}"):
            list(ray_map(worker_of, range(2), workers, on_gpus=True))
        assert not ray.is_initialized()


@needs_ray
def test_only_what_asks_for_gpus_gets_one(monkeypatch):
    found, given = [], ("m", "in.tsv", "out.tsv")
    monkeypatch.setattr(ray_flags, "ray_map", lambda *words: found.append(words[-1]))
    for device in ("auto", "cpu", "gpu"):
        PredictConfig(*given, engine="ray", device=device).mapped(len, [])
    assert found == [False, False, True]
    with pytest.raises(InputError, match="device gpu:1: with engine ray each task has a GPU; pass"):
        PredictConfig(*given, engine="ray", device="gpu:1")


def test_an_unreachable_ray_cluster_is_reported_first(here):
    pytest.importorskip("ray")
    flags = asked(here, "y.tsv", engine="ray", ray_address="127.0.0.1:9")
    with pytest.raises(MachineError, match="no Ray cluster at ray_address 127.0.0.1:9"):
        predict_pair(PredictConfig(str(here / "ship"), **flags))
    assert not Path(flags["output_file"]).exists()
