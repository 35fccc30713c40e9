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
    for inner in ("scripts", "data_tools", ".venv/bin", ".ci"):
        (folder / inner).mkdir(parents=True)
    for name in (
        "scripts/environment.sh",
        "scripts/lint.sh",
        "scripts/check.sh",
        "scripts/test.sh",
        "scripts/test_peer.sh",
        ".ci/run",
    ):
        shutil.copy(ROOT / name, folder / name)
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


LINTED = ["-m ruff check .", "-m ruff format --check .", "-m mypy"]


@pytest.mark.parametrize(
    "words, tests",
    [
        (["sh", "scripts/lint.sh"], []),
        (["sh", "scripts/check.sh", "-x"], ["-m pytest -m not ranks and not recipes and not slow -x"]),
        (["sh", "scripts/test_peer.sh", "-x"], ["-m pytest tests/peer -x"]),
        (
            ["bash", ".ci/run"],
            ["-m pytest tests/peer", "-m pytest -n 2 --dist loadgroup --no-loadscope-reorder"],
        ),
    ],
    ids=("lint", "check", "peer", "ci"),
)
def test_the_linter_and_the_type_check_come_before_the_tests(clone, words, tests):
    (clone / ".venv" / "stamp").write_text(stamp(clone, "cpu"))
    environment = {**os.environ, "DEVICE": "cpu"}
    done = subprocess.run(words, cwd=clone, env=environment, capture_output=True, text=True)
    asked = [line for line in done.stdout.splitlines() if "-m pip install" not in line]
    linted = [] if "scripts/test_peer.sh" in words else LINTED
    assert asked == [f"asked: {one}" for one in linted + tests], done.stderr
    assert done.returncode == 0


def test_an_index_without_torch_leaves_its_tests_out(clone):
    (clone / ".venv" / "stamp").write_text(stamp(clone, "cpu"))
    python = clone / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\necho asked: $*\n[ "$2" != pip ]\n')
    environment = {**os.environ, "DEVICE": "cpu"}
    done = subprocess.run(["bash", ".ci/run"], cwd=clone, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "tests/peer is not run" in done.stderr
    assert "-m pytest tests/peer" not in done.stdout
    assert done.stdout.endswith("asked: -m pytest -n 2 --dist loadgroup --no-loadscope-reorder\n")


def test_type_check_errors_end_the_check_before_the_tests(clone):
    (clone / ".venv" / "stamp").write_text(stamp(clone, "cpu"))
    python = clone / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\necho asked: $*\n[ "$2" != mypy ]\n')
    environment = {**os.environ, "DEVICE": "cpu"}
    for words in (["sh", "scripts/check.sh"], ["bash", ".ci/run"]):
        done = subprocess.run(words, cwd=clone, env=environment, capture_output=True, text=True)
        assert done.returncode == 1 and "pytest" not in done.stdout
