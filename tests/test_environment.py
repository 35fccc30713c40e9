"""Which environment the scripts take, on a copy of them with a Python that only says what it was asked."""

import os
import shutil
import subprocess

import pytest
from places import ROOT

MADE_FROM = ("setup.py", "constraints.txt", "pyproject.toml")
STAMP = 'cd "$1" && cat setup.py constraints.txt pyproject.toml data_tools/helpers.cpp && echo "$2 $1"'


@pytest.fixture
def clone(tmp_path):
    folder = tmp_path / "clone"
    for inner in ("scripts", "data_tools", ".venv/bin"):
        (folder / inner).mkdir(parents=True)
    for name in ("environment.sh", "test.sh"):
        shutil.copy(ROOT / "scripts" / name, folder / "scripts")
    for name in (*MADE_FROM, "data_tools/helpers.cpp"):
        (folder / name).write_text("")
    python = folder / ".venv" / "bin" / "python"
    python.write_text("#!/bin/sh\necho asked: $*\n")
    python.chmod(0o755)
    return folder


def stamp(folder, device):
    words = ["sh", "-c", f"({STAMP}) | cksum", "sh", str(folder), device]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "made_for, device, is_kept",
    [
        ("cpu", "cpu", True),
        ("gpu", "gpu", True),
        ("gpu", "cpu", True),
        ("cpu", "gpu", False),
        ("", "cpu", False),
    ],
)
def test_an_environment_with_the_gpu_build_serves_the_cpu_too(clone, made_for, device, is_kept):
    if made_for:
        (clone / ".venv" / "stamp").write_text(stamp(clone, made_for))
    environment = {**os.environ, "DEVICE": device, "PYTHON": "/no/python"}
    done = subprocess.run(
        ["sh", str(clone / "scripts" / "test.sh"), "-q"], env=environment, capture_output=True, text=True
    )
    if is_kept:
        assert (done.returncode, done.stdout) == (0, "asked: -m pytest -q\n"), done.stderr
    else:
        assert done.returncode == 2 and "PYTHON=/no/python does not run" in done.stderr
