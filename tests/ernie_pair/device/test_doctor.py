"""What doctor says can be used as it stands."""

import shlex
from pathlib import Path

import pytest

from data_tools.base.cli import parse_config
from ernie_pair.device import doctor
from ernie_pair.pair.config.pair_config import TrainConfig


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_launch_line_starts_a_training_that_is_understood(device, monkeypatch):
    monkeypatch.setattr(doctor, "default_device", lambda: device)
    words = shlex.split(doctor._launch_line())
    script = next(place for place, word in enumerate(words) if word.endswith("train_pair.py"))
    assert Path(words[0]).is_file() and Path(words[script]).is_file()
    assert words[1:3] == ["-m", "ernie_pair.launcher"] and "--help" not in words
    assert parse_config(TrainConfig, words[script + 1 :]).train_file == "lcqmc"
    assert ("cpu" in words) is (device == "cpu")


def test_a_gpu_build_without_a_gpu_is_no_defect(monkeypatch):
    found, installed = {"paddlepaddle": None, "paddlepaddle-gpu": "2.6.2"}, doctor._version_of
    monkeypatch.setattr(doctor, "default_device", lambda: "cpu")
    assert not any(defect.startswith("paddlepaddle") for defect in doctor._check_packages())
    monkeypatch.setattr(doctor, "_version_of", lambda name: found.get(name, installed(name)))
    assert not any(defect.startswith("paddlepaddle") for defect in doctor._check_packages())
