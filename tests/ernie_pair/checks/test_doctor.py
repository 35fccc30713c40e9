"""What doctor prints is correct and can be used as is."""

import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

from data_tools.files import installation
from data_tools.files.installation import missing_requirements
from data_tools.options.cli import parse_config
from ernie_pair.checks import doctor
from ernie_pair.kernels import operator as compile_operator
from ernie_pair.launch.launch_config import read_launch
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.runtime.gpu import cards
from ernie_pair.runtime.gpu.builds import Build
from ernie_pair.runtime.gpu.check_process import Finding


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_suggested_launch_command_is_valid(device, monkeypatch):
    monkeypatch.setattr(doctor, "default_device", lambda: device)
    words = shlex.split(doctor._launch_line())
    assert Path(words[0]).is_file() and words[1:4] == ["-m", "ernie_pair", "launch"]
    config, flags = read_launch(words[4:])
    assert parse_config(TrainConfig, flags).train_file == "lcqmc" and config.on_each_machine == 2
    assert ("cpu" in words) is (device == "cpu") and bool(config.gpus) is (device == "gpu")


def test_a_gpu_build_without_a_gpu_is_not_a_defect(monkeypatch):
    found, installed = {"paddlepaddle": "", "paddlepaddle-gpu": "2.6.2"}, installation.version_of
    monkeypatch.setattr(doctor, "default_device", lambda: "cpu")
    assert doctor._extra_here() == "cpu"
    assert not any(defect.startswith("paddlepaddle") for defect in doctor._check_packages("cpu"))
    for module in (doctor, installation):
        monkeypatch.setattr(module, "version_of", lambda name: found.get(name, installed(name)))
    assert doctor._extra_here() == "gpu"
    assert not any(defect.startswith("paddlepaddle") for defect in doctor._check_packages("gpu"))


FOR_GPUS = Build("2.6.2", "11.8", False, Path("/no/paddle"))


@pytest.fixture
def gpus(monkeypatch):
    """Let doctor check these GPUs; return the defects and the checks run. ``links``: missing links."""

    def look(*capabilities, build=FOR_GPUS, driver=True, links=0, faults=None):
        monkeypatch.setattr(doctor, "default_device", lambda: "gpu" if driver else "cpu")
        monkeypatch.setattr(cards, "has_driver", lambda: driver)
        monkeypatch.setattr(doctor, "count_cards", lambda: len(capabilities))
        monkeypatch.setattr(doctor, "card_at", lambda n: cards.Card(n, f"card {n}", capabilities[n]))
        monkeypatch.setattr(doctor, "unmade_links", lambda build: ["a"] * links)
        facts = {"libraries": {"loaded": ["a", "b"]}, "kernels": {"errors": {"c": 0}}}
        asked = []

        def check(name, number=0, seconds=0):
            asked.append((name, number))
            return (faults or {}).get((name, number), Finding([], facts[name]))

        monkeypatch.setattr(doctor, "run_check", check)
        return doctor._check_gpus(build), asked

    return look


def test_every_gpu_that_paddle_supports_is_tested(gpus, capsys):
    defects, asked = gpus((8, 0), (9, 0), (8, 6))
    assert asked == [("libraries", 0), ("kernels", 0), ("kernels", 2)]
    (defect,) = defects
    assert defect.startswith("GPU 1 (card 1, compute capability 9.0) cannot run Paddle 2.6.2 for CUDA 11.8")
    assert "kernels      1 run on GPU 2, compared with numpy\n" in capsys.readouterr().out


def test_gpu_faults_and_missing_links_are_reported(gpus, capsys):
    aborts = Finding(["kernels: the process was ended by SIGABRT: libnvrtc.so"], {})
    defects, _ = gpus((8, 0), (8, 6), faults={("kernels", 1): aborts})
    assert defects == [f"GPU 1 (card 1, compute capability 8.6): {aborts.faults[0]}"]
    absent = Finding(["libcudnn.so: cannot open shared object file"], {})
    assert gpus((8, 0), faults={("libraries", 0): absent}) == (absent.faults, [("libraries", 0)])
    defects, asked = gpus((8, 0), links=3)
    assert defects == ["3 links to CUDA libraries are missing or wrong; run ernie-pair doctor --link_cuda"]
    assert asked == [] and "cuda         11.8; links missing: /no/paddle/libs" in capsys.readouterr().out


@pytest.mark.parametrize("driver", [True, False])
def test_a_gpu_build_without_a_gpu_suggests_no_installation(gpus, capsys, driver):
    defects, asked = gpus(driver=driver)
    assert asked == [] and len(defects) == driver and not any("install" in defect for defect in defects)
    assert "cpu: this Paddle is for CUDA 11.8, but " in capsys.readouterr().out


def test_without_the_right_build_nothing_is_tested(gpus):
    cpu = FOR_GPUS._replace(cuda="")
    assert gpus(build=cpu, driver=False) == ([], [])
    ((defect,), _) = gpus(build=cpu)
    assert "a driver is loaded" not in defect and "this Paddle is the CPU build; pip install" in defect


@pytest.mark.parametrize(
    "version, asks", [("2.6.2", True), ("2.6.2.post120", False), ("3.1.1", False), (None, True)]
)
def test_only_the_pypi_build_requires_cuda_11_packages(monkeypatch, version, asks):
    installed = metadata.version

    def version_of(name):
        if name == "paddlepaddle-gpu" and version is None:
            raise metadata.PackageNotFoundError(name)
        return version if name == "paddlepaddle-gpu" else installed(name)

    monkeypatch.setattr(metadata, "version", version_of)
    for missing in (missing_requirements("gpu"), [str(one) for one in doctor._requirements("gpu")]):
        assert any(name.startswith("nvidia-cudnn-cu11") for name in missing) is asks
    if version:
        assert not any(name.startswith("paddlepaddle") for name in missing_requirements("gpu"))


@pytest.mark.parametrize(
    "version, is_sound",
    [("2.6.2", True), ("3.0.0", True), ("3.1.1", True), ("3.3.1", True)]
    + [("2.6.1", False), ("2.5.2", False), ("3.4.0", False), ("", False)],
)
def test_doctor_reports_which_paddle_versions_are_tested(monkeypatch, capsys, version, is_sound):
    installed = installation.version_of
    given = {"paddlepaddle": version, "paddlepaddle-gpu": ""}
    for module in (doctor, installation):
        monkeypatch.setattr(module, "version_of", lambda name: given.get(name, installed(name)))
    defects = [defect for defect in doctor._check_packages("cpu") if defect.startswith("paddlepaddle")]
    said = capsys.readouterr().out.splitlines()
    tested = "(tested: 2.6.2, 3.0 and 3.1; without pretraining 3.2 and 3.3)"
    assert f"paddlepaddle {version or 'missing'} {tested}" in said
    assert len(defects) == (not is_sound)
    assert all(defect.endswith("; pip install 'paddlepaddle==2.6.2'") for defect in defects)
    assert ("paddlepaddle==2.6.2" in missing_requirements("cpu")) is not is_sound


def test_the_cpu_extra_requires_what_training_needs():
    asked = {requirement.name for requirement in doctor._requirements("cpu")}
    assert {"paddlepaddle", "paddlenlp", "numpy", "scikit-learn"} <= asked and "ernie-pair" not in asked
    light = {requirement.name for requirement in doctor._requirements("predict")}
    assert {"onnxruntime", "numpy", "tokenizers"} <= light and not light & {"paddlepaddle", "paddlenlp"}


def test_without_paddle_only_inference_is_checked(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(doctor, "version_of", lambda name: "")
    monkeypatch.setattr(doctor, "_check_packages", lambda extra: print("checked", extra) or [])
    monkeypatch.setitem(sys.modules, "paddle", None)
    doctor.doctor(doctor.DoctorConfig(str(tmp_path)))
    shown = capsys.readouterr().out
    assert "checked predict\n" in shown
    assert "use          runs exported models; to train too: pip install " in shown
    assert shown.endswith("no defects found\n")


def test_the_state_of_the_pretraining_operator_is_reported(monkeypatch):
    monkeypatch.setattr(compile_operator, "find_operator", lambda cache: cache / "operator.so")
    assert doctor._operator() == "compiled: pretraining uses the kernels too"

    def refuse(cache):
        raise compile_operator.OperatorError("there is no compiler g++")

    monkeypatch.setattr(compile_operator, "find_operator", refuse)
    assert doctor._operator() == "pretraining uses Paddle's own kernels: there is no compiler g++"
