"""What doctor prints is correct and can be used as is."""

import shlex
import sys
from pathlib import Path

import pytest

from ernie_pair.checks import doctor
from ernie_pair.core import installation
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.installation import missing_requirements
from ernie_pair.kernels import operator as compile_operator
from ernie_pair.launch.launch import read_launch
from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.runtime import gpu
from ernie_pair.runtime.gpu import Build, Finding


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


@pytest.mark.parametrize("cpu, gpu, extra", [("3.3.1", "", "cpu"), ("", "3.3.1", "gpu"), ("", "", "cpu")])
def test_the_installed_paddle_decides_which_extra_is_checked(installed, cpu, gpu, extra):
    """A build for GPUs is no defect without a GPU."""
    installed(cpu, gpu)
    assert installation.extra_here() == extra
    assert not any("paddlepaddle" in defect for defect in doctor._check_packages(extra))
    assert (doctor._check_versions() == []) is bool(cpu or gpu)


FOR_GPUS = Build("3.3.1", "12.6", Path("/no/paddle"))


@pytest.fixture
def gpus(monkeypatch):
    """Let doctor check these GPUs; return the defects and the checks run."""

    def look(*capabilities, build=FOR_GPUS, driver=True, faults=None):
        monkeypatch.setattr(doctor, "default_device", lambda: "gpu" if driver else "cpu")
        for module in (gpu, doctor):
            monkeypatch.setattr(module, "has_driver", lambda: driver)
        monkeypatch.setattr(doctor, "count_cards", lambda: len(capabilities))
        monkeypatch.setattr(doctor, "card_at", lambda n: gpu.Card(n, f"card {n}", capabilities[n]))
        facts = {"kernels": {"errors": {"c": 0}}}
        asked = []

        def check(name, number=0, seconds=0):
            asked.append((name, number))
            return (faults or {}).get((name, number), Finding([], facts[name]))

        monkeypatch.setattr(doctor, "run_check", check)
        return doctor._check_gpus(build), asked

    return look


def test_every_gpu_is_tested(gpus, capsys):
    defects, asked = gpus((8, 0), (9, 0), (8, 6))
    assert asked == [("kernels", number) for number in range(3)] and defects == []
    assert "kernels      1 run on GPU 2, compared with numpy\n" in capsys.readouterr().out


def test_gpu_faults_are_reported(gpus):
    aborts = Finding(["kernels: the process was ended by SIGABRT: libnvrtc.so"], {})
    defects, _ = gpus((8, 0), (8, 6), faults={("kernels", 1): aborts})
    assert defects == [f"GPU 1 (card 1, compute capability 8.6): {aborts.faults[0]}"]


@pytest.mark.parametrize("driver", [True, False])
def test_a_gpu_build_without_a_gpu_suggests_no_installation(gpus, capsys, driver):
    defects, asked = gpus(driver=driver)
    assert asked == [] and len(defects) == driver and not any("install" in defect for defect in defects)
    assert "cpu: this Paddle is for CUDA 12.6, but " in capsys.readouterr().out


def test_a_driver_beside_the_cpu_build_shows_the_line_for_gpus(gpus, capsys, installed):
    installed("3.3.1")
    cpu = FOR_GPUS._replace(cuda="")
    assert gpus(build=cpu, driver=False) == ([], []) and capsys.readouterr().out == "device       cpu\n"
    assert gpus(build=cpu) == ([], [])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("device       cpu: an NVIDIA driver is loaded, and for its GPUs: ")
    line = line.partition("GPUs: ")[2]
    index = "--extra-index-url https://www.paddlepaddle.org.cn/packages/stable/cu126/"
    assert line.startswith(f"pip uninstall -y paddlepaddle && pip install {index} ") and "[gpu]" in line


@pytest.mark.parametrize(
    "version, is_sound",
    [("3.3.0", True), ("3.3.1", True), ("2.6.2", False), ("3.2.2", False), ("3.4.0", False), ("", False)],
)
def test_doctor_reports_which_paddle_versions_are_tested(installed, capsys, version, is_sound):
    installed(version)
    defects = doctor._check_versions()
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"paddlepaddle {version or 'missing'} (tested: 3.3)"
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
    monkeypatch.setattr(doctor, "is_there", lambda name: name != lacks)
    table = doctor.what_works()
    assert table["export to ONNX"].startswith(answer) and table["int8"] == table["export to ONNX"]
    assert table["pretraining, static graph"] == table["converter"] == "yes"
    assert "[gpu]" in table["GPUs"] or table["GPUs"] == "yes"


def test_without_paddle_only_inference_is_checked(monkeypatch, capsys, tmp_path):
    for module in (doctor, installation):
        monkeypatch.setattr(module, "version_of", lambda name: "")
    monkeypatch.setattr(doctor, "_check_packages", lambda extra: print("checked", extra) or [])
    monkeypatch.setitem(sys.modules, "paddle", None)
    doctor.doctor(doctor.DoctorConfig(str(tmp_path)))
    shown = capsys.readouterr().out
    assert "checked predict\n" in shown
    assert "use          runs exported models; to train too: pip install " in shown
    assert shown.endswith("no defects found\n")


@pytest.mark.parametrize("lacks, extra, cannot", [
    ("prometheus_client", "cpu", ["serve"]),
    ("optuna", "tune", ["search-params"]),
    ("ray", "ray", ["--engine ray"]),
    ("mlflow", "mlflow", ["--report_to mlflow"]),
    ("pypinyin", "cpu", ["--robustness all", "--robustness homophone"]),
    ("datasketch", "cpu", ["audit text", "train", "pipeline", "export"]),
    ("faiss", "cpu", [
        "audit duplicates", "evaluate search", "index", "search", "--index", "--faq_file",
    ]),
])  # fmt: skip
def test_commands_that_cannot_run_are_named_with_a_pip_line(monkeypatch, lacks, extra, cannot):
    monkeypatch.setattr(doctor, "is_there", lambda name: name != lacks)
    found = doctor.what_lacks()
    said = f"{lacks} is not installed; {installation.install_command(extra)}"
    assert {found[what] for what in cannot} == {said}
    assert "audit pairs" not in found and "predict" not in found
    assert lacks == "datasketch" or sorted(found) == sorted(cannot)


def test_a_line_of_doctor_says_what_cannot_run(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(doctor, "is_there", lambda name: name != "prometheus_client")
    monkeypatch.setattr(doctor, "_check_packages", lambda extra: [])
    doctor.doctor(doctor.DoctorConfig(str(tmp_path)))
    assert "cannot run   serve: prometheus_client is not installed; pip install " in capsys.readouterr().out


def test_the_state_of_the_pretraining_operator_is_reported(monkeypatch):
    monkeypatch.setattr(compile_operator, "find_operator", lambda cache: cache / "operator.so")
    assert doctor._operator() == "compiled: pretraining uses the kernels too"

    def refuse(cache):
        raise compile_operator.OperatorError("there is no compiler g++")

    monkeypatch.setattr(compile_operator, "find_operator", refuse)
    assert doctor._operator() == "pretraining uses Paddle's own kernels: there is no compiler g++"
