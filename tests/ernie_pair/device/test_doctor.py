"""What doctor says can be used as it stands."""

import shlex
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
    assert not any(defect.startswith("paddlepaddle") for defect in doctor._check_packages())
    monkeypatch.setattr(doctor, "_version_of", lambda name: found.get(name, installed(name)))
    assert not any(defect.startswith("paddlepaddle") for defect in doctor._check_packages())
