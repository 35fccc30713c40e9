"""What doctor says can be used as it stands."""

import shlex
import sys
from pathlib import Path

import pytest

from data_tools.base.cli import parse_config
from ernie_pair.device import doctor
from ernie_pair.launch.launch_config import read_launch
from ernie_pair.pair.config.pair_config import TrainConfig


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_launch_line_starts_a_training_that_is_understood(device, monkeypatch):
    monkeypatch.setattr(doctor, "default_device", lambda: device)
    words = shlex.split(doctor._launch_line())
    assert Path(words[0]).is_file() and words[1:4] == ["-m", "ernie_pair", "launch"]
    config, flags = read_launch(words[4:])
    assert parse_config(TrainConfig, flags).train_file == "lcqmc" and config.on_each_machine == 2
    assert ("cpu" in words) is (device == "cpu") and bool(config.gpus) is (device == "gpu")


def test_a_gpu_build_without_a_gpu_is_no_defect(monkeypatch):
    found, installed = {"paddlepaddle": None, "paddlepaddle-gpu": "2.6.2"}, doctor._version_of
    monkeypatch.setattr(doctor, "default_device", lambda: "cpu")
    assert doctor._extra_here() == "cpu"
    assert not any(defect.startswith("paddlepaddle") for defect in doctor._check_packages("cpu"))
    monkeypatch.setattr(doctor, "_version_of", lambda name: found.get(name, installed(name)))
    assert doctor._extra_here() == "gpu"
    assert not any(defect.startswith("paddlepaddle") for defect in doctor._check_packages("gpu"))


def test_what_cpu_asks_for_is_what_training_asks_for():
    asked = {requirement.name for requirement in doctor._requirements("cpu")}
    assert {"paddlepaddle", "paddlenlp", "numpy", "scikit-learn"} <= asked and "ernie-pair" not in asked
    light = {requirement.name for requirement in doctor._requirements("predict")}
    assert {"onnxruntime", "numpy", "tokenizers"} <= light and not light & {"paddlepaddle", "paddlenlp"}


def test_without_paddle_only_asking_models_is_checked(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(doctor, "_version_of", lambda name: None)
    monkeypatch.setattr(doctor, "_check_packages", lambda extra: print("checked", extra) or [])
    monkeypatch.setitem(sys.modules, "paddle", None)
    doctor.doctor(doctor.DoctorConfig(str(tmp_path)))
    shown = capsys.readouterr().out
    assert "checked predict\n" in shown and "asks exported models; to train too: pip install " in shown
    assert shown.endswith("sound\n")
