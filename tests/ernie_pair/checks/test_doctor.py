"""What doctor prints is correct and can be used as is."""

import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

from data_tools.files import installation
from data_tools.files.installation import missing_requirements, requirements_of
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


@pytest.fixture
def installed(monkeypatch):
    """Fake the installed versions of Paddle's builds and of PaddleNLP; all others are as they are."""

    def install(cpu="", gpu="", paddlenlp="2.8.1"):
        names = {"paddlepaddle": cpu, "paddlepaddle-gpu": gpu, "paddlenlp": paddlenlp}
        known = installation.version_of
        for module in (doctor, installation):
            monkeypatch.setattr(
                module, "version_of", lambda name: names[name] if name in names else known(name)
            )

    return install


@pytest.mark.parametrize(
    "cpu, gpu, extra",
    [("3.3.1", "", "cpu"), ("2.6.2", "", "cpu26"), ("", "2.6.2", "gpu"), ("", "2.6.2.post120", "gpu")]
    + [("", "3.3.1", "train"), ("", "", "cpu")],
)
def test_the_installed_paddle_decides_which_extra_is_checked(installed, cpu, gpu, extra):
    """A build for GPUs is no defect without a GPU, and of Paddle 3.3 it is of no extra."""
    installed(cpu, gpu)
    assert doctor._extra_here() == extra
    assert not any("paddlepaddle" in defect for defect in doctor._check_packages(extra))
    assert (doctor._check_versions() == []) is bool(cpu or gpu)


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


@pytest.mark.parametrize("version, asks", [("2.6.2", True), ("2.6.2.post120", False), (None, True)])
def test_only_the_pypi_build_requires_cuda_11_packages(monkeypatch, version, asks):
    installed = metadata.version

    def version_of(name):
        if name == "paddlepaddle-gpu" and version is None:
            raise metadata.PackageNotFoundError(name)
        return version if name == "paddlepaddle-gpu" else installed(name)

    monkeypatch.setattr(metadata, "version", version_of)
    required = [str(one) for one in requirements_of("", "gpu")]
    assert any(name.startswith("nvidia-cudnn-cu11") for name in required) is asks
    if version:
        assert not any(name.startswith("paddlepaddle") for name in missing_requirements("gpu"))


@pytest.mark.parametrize(
    "version, is_sound",
    [("2.6.2", True), ("3.3.0", True), ("3.3.1", True), ("2.6.1", False), ("3.0.0", False)]
    + [("3.1.1", False), ("3.2.2", False), ("3.4.0", False), ("", False)],
)
def test_doctor_reports_which_paddle_versions_are_tested(installed, capsys, version, is_sound):
    installed(version)
    defects = doctor._check_versions()
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"paddlepaddle {version or 'missing'} (tested: 3.3 and 2.6.2)"
    assert len(defects) == (not is_sound)
    assert all("; pip install " in defect and "[cpu]" in defect for defect in defects)
    if version.startswith("3.3"):
        assert not any(name.startswith("paddlepaddle") for name in missing_requirements("cpu"))


@pytest.mark.parametrize("version", ["", "2.7.2"])
def test_a_missing_paddlenlp_is_a_defect_with_its_command(installed, capsys, version):
    installed("3.3.1", paddlenlp=version)
    command = "pip install --no-deps paddlenlp==2.8.1"
    assert doctor._check_versions() == [f"paddlenlp 2.8.1 is not installed; {command}"]
    assert f"paddlenlp    {version or 'missing'} (tested: 2.8.1)" in capsys.readouterr().out
    assert installation.missing_of_stack("cpu")[-1] == "paddlenlp==2.8.1"
    if not version:
        assert installation.install_command("cpu").endswith(f"[cpu]' && {command}")


@pytest.mark.parametrize(
    "lacks, answer", [(None, "yes"), ("onnx", "no: pip install "), ("onnxruntime", "no: ")]
)
def test_the_table_says_what_works(monkeypatch, lacks, answer):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == lacks else name)
    table = doctor.what_works()
    assert table["export to ONNX"].startswith(answer) and table["int8"] == table["export to ONNX"]
    assert table["pretraining, static graph"] == table["converter"] == "yes"
    assert "paddlepaddle-gpu==3.3.1 -i https://www.paddlepaddle.org.cn/" in table["GPUs"]


def test_the_cpu_extra_requires_what_training_needs():
    asked = {requirement.name for requirement in requirements_of("", "cpu")}
    assert {"paddlepaddle", "numpy", "scikit-learn"} <= asked and not asked & {"ernie-pair", "paddlenlp"}
    assert {"paddlepaddle", "paddlenlp", "numpy"} <= {one.name for one in requirements_of("", "cpu26")}
    light = {requirement.name for requirement in requirements_of("", "predict")}
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
