"""An installed wheel needs no checkout: the seven steps and several processes run in an empty folder."""

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from places import ROOT

pytestmark = [pytest.mark.recipes, pytest.mark.timeout(900)]
SOURCES = ("data_tools", "ernie_pair", "setup.py", "pyproject.toml", "README.md")
SHORT = "--documents 60 --pairs 90 --max_steps 4 --epochs 1 --device cpu"


def run(*words, cwd, **environment):
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env={**clean, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def build_wheel(folder, **environment):
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / name, folder / "sources" / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / "sources" / name)
    words = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "--wheel-dir", folder / "dist"]
    words += ["--no-build-isolation"] if importlib.util.find_spec("pybind11") else []
    said = run(*words, folder / "sources", cwd=folder, **environment)
    shutil.rmtree(folder / "sources")
    (built,) = (folder / "dist").iterdir()
    return built, said


def install_wheel(wheel, folder):
    """The bin folder of an environment with the wheel; it shares the libraries of the current one."""
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "posix_prefix", {"base": str(folder), "platbase": str(folder)}))
    libraries = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (site / "libraries.pth").write_text("".join(f"{path}\n" for path in libraries))
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet"]
    run(*pip, "--no-deps", "--ignore-installed", wheel, cwd=folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "c++").write_text('#!/bin/sh\nexec g++ "$@" -O0\n')  # after setup.py's own -O3
    (folder / "c++").chmod(0o755)
    return build_wheel(folder, CXX=str(folder / "c++"))[0]


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    return install_wheel(wheel, tmp_path_factory.mktemp("environment") / "venv")


@pytest.fixture
def empty(tmp_path):
    folder = tmp_path / "an empty folder"
    folder.mkdir()
    return folder


def test_the_installed_package_is_the_wheel_and_knows_its_url(installed, wheel, empty):
    program = "import data_tools._helpers as h, ernie_pair as e; print(h.__file__, e.__file__); "
    program += "from ernie_pair.core.installation import install_command; print(install_command('tune'))"
    *files, command = run(installed / "python", "-c", program, cwd=empty).split(maxsplit=2)
    assert all(Path(file).is_relative_to(installed.parent) for file in files)
    assert command.strip() == f"pip install 'ernie-pair[tune] @ {wheel.as_uri()}'"
    said = run(installed / "ernie-pair", "--help", cwd=empty)
    assert all(f"  {name} " in said for name in ("quickstart", "check", "prepare", "build vocab"))


CHOOSE = """
from ernie_pair.kernels.choice import choose_kernels
from ernie_pair.kernels.choice import KernelFlags
print(choose_kernels(KernelFlags(), "cpu").describe())
choose_kernels(KernelFlags(kernels="fused"), "cpu")
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or shutil.which("g++") is None,
    reason="no kernels are built here",
)
def test_the_wheel_contains_the_compiled_kernels(wheel, installed, empty):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("ernie_pair/kernels/_fused")]
    assert len(names) == 1 and names[0].endswith(".so")
    if "avx2" in Path("/proc/cpuinfo").read_text():
        assert "fused kernels, a" in run(installed / "python", "-c", CHOOSE, cwd=empty)
        doctor = subprocess.run(
            [installed / "ernie-pair", "doctor"], cwd=empty, capture_output=True, text=True
        )
        assert re.search("^kernels +fused kernels, a", doctor.stdout, re.MULTILINE)


def test_without_a_compiler_the_wheel_has_no_kernels(tmp_path):
    wheel, said = build_wheel(tmp_path / "wheel", CC="/absent/cc", CXX="/absent/c++")
    if sys.platform == "linux" and platform.machine() == "x86_64":
        assert "warning: ernie_pair.kernels._fused is not compiled" in said
        assert "used instead: Paddle's own kernels" in said
    python = install_wheel(wheel, tmp_path / "venv") / "python"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, "-c", CHOOSE], cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert "plain kernels of Paddle: the " in done.stdout and done.returncode != 0
    assert re.search("kernels fused: the .*; use (--)?kernels", done.stderr)
    if platform.machine() == "x86_64":
        assert "the package was built without its compiled kernels" in done.stderr


@pytest.mark.slow
def test_the_wheel_runs_quickstart_and_several_processes(installed, empty):
    said = run(installed / "ernie-pair", "quickstart", "--output_dir", "out", *SHORT.split(), cwd=empty)
    assert said.count("test accuracy") == 3 and "[7/7] predict" in said
    results = json.loads((empty / "out" / "quickstart.json").read_text(encoding="utf-8"))
    assert results["seed"] == 1234 and len(results["valid_lm_loss"]) == 2
    assert len((empty / "out" / "predictions.tsv").read_text().splitlines()) == 11
    flags = "--split 900,50,50 --max_seq_len 48 --micro_batch_size 2 --max_steps 2 --eval_iters 1"
    places = "--model_name_or_path out/small --input_dir out/corpus --output_dir two"
    launch = f"launch pretrain --processes 2 --from_scratch true --device cpu {places} {flags}"
    said = run(installed / "ernie-pair", *launch.split(), cwd=empty)
    assert "2 processes" in said and "end   step 2/2  100.0%" in said
    assert {path.name for path in empty.iterdir()} == {"out", "two"}
