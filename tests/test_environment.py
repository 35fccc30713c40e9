"""Which environment the scripts use, on a copy of them with a Python that only prints its arguments."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from ernie_pair.core.installation import paddle_index

MADE_FROM = ("setup.py", "constraints.txt", "pyproject.toml")
PYTHON = ".venv/bin/python"
PACKAGES = ".venv/lib/python3.11/site-packages"
STAMP = 'cd "$1" && cat setup.py constraints.txt pyproject.toml data_tools/helpers.cpp && echo "$2 $1"'

# The index that a Python would name is that of the first test of a GPU below.
SAYS = """#!/bin/sh
case "$*" in
*"print(paddle_index())"*) echo https://paddle/cu126/ ;;
*) echo "asked: $*" ;;
esac
"""
# A Python outside .venv, whose -m venv puts such a printing Python there.
MAKES = """#!/bin/sh
echo "base: $*"
[ "$2" != venv ] || {{ mkdir -p "$3/bin" && cp '{says}' "$3/bin/python"; }}
"""
INSTALL = "asked: -m pip install --quiet --disable-pip-version-check --no-warn-conflicts "
INSTALL += "--constraint {}/constraints.txt"
TEST = "asked: -m pytest -q"


@pytest.fixture(autouse=True)
def _outside_of_environments(monkeypatch):
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "WITH_TOOLS", "PYTHON", "PADDLE_INDEX"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def clone(tmp_path):
    folder = tmp_path / "a clone"
    for inner in ("scripts", "data_tools", ".venv/bin", ".ci"):
        (folder / inner).mkdir(parents=True)
    scripts = [f"scripts/{name}.sh" for name in ("environment", "lint", "check", "test", "test_peer")]
    for name in (*scripts, ".ci/run"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "scripts" / "runs.sh").write_text(
        'set -eu\n. "$(dirname "$0")/environment.sh"\nexec "$PY" runs\n'
    )
    for name in (*MADE_FROM, "data_tools/helpers.cpp", "scripts/install_chromium.sh"):
        (folder / name).write_text("")
    (folder / "scripts" / "test_readme.sh").write_text("echo asked: README\n")
    write_program(folder / PYTHON, SAYS)
    return folder


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def stamp(folder, device):
    words = ["sh", "-c", f"({STAMP}) | cksum", "sh", str(folder), device]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def finish(folder, device, tools=True):
    for name in ("stamp", "stamp.tools") if tools else ("stamp",):
        (folder / ".venv" / name).write_text(stamp(folder, device))


def run(folder, *words, device="cpu", stderr=subprocess.PIPE, **environment):
    words, environment = words or ("sh", "scripts/test.sh", "-q"), {"DEVICE": device, **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": stderr, "text": True}
    return subprocess.run(words, cwd=folder, env={**os.environ, **environment}, **pipes)


OF_GPU = " --find-links {}/.venv/fetched --extra-index-url https://paddle/cu126/"


def installs(folder, extras):
    """The expected pip calls, and the check that the helper can be imported."""
    build = extras.partition(",")[0]
    install = INSTALL.format(folder)
    places = OF_GPU.format(folder) if build == "gpu" else ""
    return [
        f"{install} pip setuptools wheel",
        f"{install}{places} --editable .[{extras}]",
        f"{install} --no-deps paddlenlp",
        "asked: -c import data_tools._helpers",
    ]


def asked(done):
    """The calls of an environment's Python, except those that query its version and its pip."""
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    small = ("asked: -c import sys", "asked: -m pip --version", "asked: --version")
    return [line for line in done.stdout.splitlines() if not line.startswith(small)]


@pytest.mark.parametrize("made_for, device, is_kept", [
    ("cpu", "cpu", True),
    ("gpu", "gpu", True),
    ("gpu", "cpu", True),
    ("cpu", "gpu", False),
    ("", "cpu", False),
])  # fmt: skip
def test_an_environment_with_the_gpu_build_serves_the_cpu_too(clone, made_for, device, is_kept):
    if made_for:
        finish(clone, made_for)
    changed = [] if is_kept else installs(clone, f"{device},dev")
    assert asked(run(clone, device=device)) == [*changed, TEST]
    assert asked(run(clone, device=device)) == [TEST]


def test_test_tools_are_installed_only_for_tests(clone):
    assert asked(run(clone, "sh", "scripts/runs.sh")) == [*installs(clone, "cpu"), "asked: runs"]
    assert asked(run(clone, "sh", "scripts/runs.sh")) == ["asked: runs"]
    assert asked(run(clone)) == [*installs(clone, "cpu,dev"), TEST]
    assert asked(run(clone)) == [TEST]
    assert asked(run(clone, "sh", "scripts/runs.sh")) == ["asked: runs"]


@pytest.mark.parametrize("name", ["setup.py", "constraints.txt", "pyproject.toml", "data_tools/helpers.cpp"])
def test_an_edit_updates_the_environment_in_place(clone, name):
    finish(clone, "cpu")
    (clone / ".venv" / "mine").write_text("kept")
    (clone / name).write_text("another line\n")
    done = run(clone)
    assert asked(done) == [*installs(clone, "cpu,dev"), TEST]
    assert done.stderr == f"updating {clone}/.venv for cpu: it is compiled anew, which takes minutes\n"
    assert (clone / ".venv" / "mine").read_text() == "kept"


FETCHES = (
    "asked: -m pip download --quiet --disable-pip-version-check --no-deps --retries 1 --timeout 30 "
    "--index-url {} --constraint {}/constraints.txt --dest {}/.venv/fetched paddlepaddle-gpu"
)


def test_the_gpu_build_replaces_the_cpu_build(clone):
    """Once it is fetched: an index that cannot be reached changes nothing."""
    finish(clone, "cpu")
    (clone / PACKAGES / "paddlepaddle-3.3.1.dist-info").mkdir(parents=True)
    done = run(clone, device="gpu")
    start, *rest = installs(clone, "gpu,dev")
    assert FETCHES.format("https://paddle/cu126/", clone, clone) in done.stderr.splitlines()
    assert asked(done) == [start, "asked: -m pip uninstall --quiet --yes paddlepaddle", *rest, TEST]


# A Python whose pip cannot fetch the GPU build, and one whose GPU build does not compute on the card.
FAULTS = {
    "no index": ('*"-m pip download"*) echo "ERROR: no route" >&2; exit 1 ;;', "cannot be fetched from {}"),
    "no code": ("*set_device*) exit 1 ;;", "the build of {} does not compute on the card"),
}


@pytest.fixture
def with_driver(clone):
    """The clone on a machine with an NVIDIA driver, without DEVICE: a function that runs a script there."""
    script = clone / "scripts" / "environment.sh"
    script.write_text(script.read_text().replace("/dev/nvidiactl", f"'{clone}/driver'"))
    (clone / "driver").touch()
    words = ("sh", "scripts/runs.sh")
    return lambda device="", **environment: run(clone, *words, device=device, **environment)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_gpu_that_paddle_cannot_use_leaves_the_cpu_build(clone, with_driver, fault):
    case, said = FAULTS[fault]
    write_program(clone / PYTHON, SAYS.replace('case "$*" in\n', f'case "$*" in\n{case}\n'))
    (clone / "scripts" / "runs.sh").write_text('. scripts/environment.sh\necho "on $DEVICE"\n')
    done = with_driver()
    notes = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1 and notes[0].startswith("note: the CPU build of Paddle is used: "), done.stderr
    assert said.format("https://paddle/cu126/") in notes[0]
    assert asked(done)[-1] == "on cpu" and installs(clone, "cpu")[1] in asked(done)
    assert ("asked: -m pip uninstall --quiet --yes paddlepaddle-gpu" in asked(done)) is (fault == "no code")
    again = with_driver()  # without another try, which would take a minute
    assert asked(again) == ["on cpu"] and again.stderr.splitlines() == notes
    refused = with_driver(device="gpu")
    assert refused.returncode == 2 and "error: DEVICE=gpu: " in refused.stderr
    assert "or set DEVICE=cpu" in refused.stderr


def test_with_a_driver_the_gpu_build_comes_from_its_own_index(clone, with_driver):
    for name in ("__init__.py", "version.py", "core", "runtime"):
        copy = shutil.copytree if (ROOT / "ernie_pair" / name).is_dir() else shutil.copy
        (clone / "ernie_pair").mkdir(exist_ok=True)
        copy(ROOT / "ernie_pair" / name, clone / "ernie_pair" / name)
    asks = f'cd "{clone}" && exec {sys.executable} -c "$2"'
    write_program(clone / PYTHON, SAYS.replace("echo https://paddle/cu126/", asks))
    done = with_driver(PADDLE_INDEX="https://mirror/cu129/")
    assert FETCHES.format("https://mirror/cu129/", clone, clone) in done.stderr.splitlines()
    assert asked(done)[-1] == "asked: runs" and "note: " not in done.stderr
    assert not (clone / ".venv" / "without_gpu").exists()


@pytest.mark.parametrize("driver, capability, cuda", [
    ("470.57.02", "8.0", "cu118"),
    ("535.104.05", "9.0", "cu118"),
    ("550.54.14", "7.0", "cu126"),
    ("570.86", "12.0", "cu129"),
    ("580.65.06", "8.9", "cu126"),
    ("580.65.06", "10.0", "cu130"),
    ("", "", "cu126"),
])  # fmt: skip
def test_the_index_follows_from_the_driver_and_the_card(tmp_path, monkeypatch, driver, capability, cuda):
    monkeypatch.delenv("PADDLE_INDEX", raising=False)
    write_program(tmp_path / "nvidia-smi", f"#!/bin/sh\n[ -z '{driver}' ] || echo '{driver}, {capability}'\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert paddle_index() == f"https://www.paddlepaddle.org.cn/packages/stable/{cuda}/"


def test_an_incomplete_environment_is_completed(clone, tmp_path):
    """With a dangling link in place of its Python, and after a failed installation."""
    python = clone / PYTHON
    (clone / ".venv" / "mine").write_text("kept")
    python.unlink()
    python.symlink_to("/no/such/python3")
    says = write_program(tmp_path / "says", SAYS.replace("echo", '[ "$3" != install ] || exit 1\necho'))
    base = write_program(tmp_path / "base", MAKES.format(says=says))
    done = run(clone, PYTHON=str(base))
    assert done.returncode == 1 and f"base: -m venv {clone}/.venv\n" in done.stdout
    assert not (clone / ".venv" / "stamp").exists() and (clone / ".venv" / "mine").read_text() == "kept"
    write_program(python, SAYS)
    assert asked(run(clone, PYTHON="/no/python")) == [*installs(clone, "cpu,dev"), TEST]


def test_an_environment_of_another_python_is_left_alone(clone):
    write_program(clone / PYTHON, '#!/bin/sh\n[ "$1" != -c ]\n')
    done = run(clone)
    assert done.returncode == 2
    assert "is not CPython 3.10 to 3.13; move" in done.stderr and done.stderr.count("\n") == 1


def test_without_python_the_usable_versions_are_named(clone, tmp_path):
    (clone / PYTHON).unlink()
    (tmp_path / "bin").mkdir()
    for tool in ("sh", "dirname", "cat", "cksum"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    done = run(clone, PATH=str(tmp_path / "bin"))
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "error: no CPython 3.10 to 3.13 is on PATH; install one, or name it: PYTHON=/path/to/python3.11"
    )


# An active environment, suitable or with a fault, with all test tools or without two of them.
ACTIVE = """#!/bin/sh
case "$2" in
*util.find_spec*) [ "$3 $4" = '{clone} cpu' ] && [ -n '{fault}' ] && echo '{fault}' ;;
*'m("dev")'*) printf '{lacks}' ;;
*) echo "active: $*"; [ "$2" != pip ] || cat ;;
esac
exit 0
"""


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
@pytest.mark.parametrize("fault", ["", "it lacks paddlepaddle<3.4,>=3.3"])
def test_an_active_environment_is_used_if_it_is_suitable(clone, tmp_path, variable, fault):
    finish(clone, "cpu")
    text = ACTIVE.format(clone=clone, fault=fault, lacks="")
    write_program(tmp_path / "active" / "bin" / "python", text)
    active = {variable: str(tmp_path / "active")}
    done = run(clone, **active)
    if fault:
        assert asked(done) == [TEST]
        assert done.stderr == f"note: the active environment {tmp_path}/active is not used: {fault}\n"
    else:
        assert asked(done) == ["active: -m pytest -q"]
        assert done.stderr == f"using the active environment {tmp_path}/active\n"


def test_only_test_tools_are_added_to_an_active_environment(clone, tmp_path):
    text = ACTIVE.format(clone=clone, fault="", lacks="pytest<9,>=8\\nruff==0.8.1\\n")
    write_program(tmp_path / "active" / "bin" / "python", text)
    done = run(clone, VIRTUAL_ENV=str(tmp_path / "active"))
    pip = "active: -m pip install --quiet --disable-pip-version-check --requirement /dev/stdin"
    assert asked(done) == [pip, "pytest<9,>=8", "ruff==0.8.1", "active: -m pytest -q"]
    assert done.stderr.splitlines()[1:] == [f"adding the test tools to {tmp_path}/active"]
    assert asked(run(clone, "sh", "scripts/runs.sh", VIRTUAL_ENV=str(tmp_path / "active"))) == [
        "active: runs"
    ]


def fault_of_this_environment(root, device, tools=""):
    text = (ROOT / "scripts/environment.sh").read_text()
    program = re.search(r"FAULT_OF_ENVIRONMENT='(.*?)'\n", text, re.S)[1]
    words = [sys.executable, "-c", program, str(root), device, tools]
    return subprocess.run(words, cwd="/", capture_output=True, text=True, check=True).stdout.strip()


def test_missing_packages_of_an_active_environment_are_found():
    finds = "from importlib.util import find_spec; print(find_spec('ernie_pair').origin)"
    found = subprocess.run([sys.executable, "-c", finds], cwd="/", capture_output=True, text=True, check=True)
    root = os.path.dirname(os.path.dirname(found.stdout))
    assert fault_of_this_environment(root, "cpu") == ""
    assert fault_of_this_environment("/", "cpu") == "this package is not installed in it from here"
    lacks = fault_of_this_environment(root, "gpu")
    assert lacks == "" or lacks.startswith("it lacks paddlepaddle-gpu<3.4,>=3.3")


# A Python whose environment the user made: it suits, for the CPU alone.
OF_THE_USER = SAYS.replace(
    'case "$*" in\n', 'case "$*" in\n*util.find_spec*cpu*) ;;\n*util.find_spec*) echo it lacks a build ;;\n'
)


def test_an_environment_of_the_user_is_used_as_it_is(clone, with_driver):
    write_program(clone / PYTHON, OF_THE_USER)
    before = sorted(clone.rglob("*"))
    done = run(clone, "sh", "scripts/runs.sh")
    assert asked(done) == ["asked: runs"] and done.stderr == "" and sorted(clone.rglob("*")) == before
    done = with_driver()
    assert asked(done) == ["asked: runs"]
    assert "note: the CPU build of Paddle is used: it is in " in done.stderr
    assert asked(run(clone)) == [*installs(clone, "cpu,dev"), TEST]  # which are to work on what is here


LINTED = ["-m ruff check .", "-m ruff format --check .", "-m mypy"]
SPREAD = "-n 4 --dist loadfile --no-loadscope-reorder"
# Where the processor has more: the tests of its level once more, as if it had AVX2 alone.
OF_LEVELS = "level and not ranks and not recipes and not slow and not gpu_wheel"
AT_AVX2 = [f"-m pytest -m {OF_LEVELS} {SPREAD}"] if "avx512" in Path("/proc/cpuinfo").read_text() else []


@pytest.mark.parametrize("line, tests", [
    ("sh scripts/lint.sh", []),
    ("sh scripts/check.sh -x", ["-m pytest -m not ranks and not recipes and not slow -x"]),
    ("sh scripts/test_peer.sh -x", ["-m pytest tests/peer -x"]),
    (
        "bash .ci/run",
        [
            "scripts/count_lines.py",
            f"-m pytest tests/peer {SPREAD.replace('4', '2')}",
            *("README", *AT_AVX2, f"-m pytest {SPREAD}"),
        ],
    ),
])  # fmt: skip
def test_the_linter_and_the_type_check_come_before_the_tests(clone, line, tests):
    finish(clone, "cpu")
    done = run(clone, *line.split())
    installs = ("-m pip", "-m venv", "fetch_minilm")  # of the other libraries
    calls = [call for call in done.stdout.splitlines() if not any(words in call for words in installs)]
    linted = [] if "test_peer" in line else LINTED
    assert calls == [f"asked: {one}" for one in linted + tests], done.stderr
    assert done.returncode == 0


def test_a_wheel_is_built_only_into_an_empty_folder(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    done = run(ROOT, "sh", "scripts/build_wheel.sh", OUT=str(tmp_path), PYTHON="/no/python")
    assert done.returncode == 2 and f"OUT={tmp_path} is not empty; choose another folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_peer_tests_are_skipped_if_torch_cannot_be_installed(clone):
    finish(clone, "cpu")
    write_program(clone / PYTHON, SAYS + '[ "$2" != pip ]\n')
    done = run(clone, "bash", ".ci/run")
    assert done.returncode == 0 and "tests/peer is not run" in done.stderr
    assert "-m pytest tests/peer" not in done.stdout
    assert done.stdout.endswith(f"asked: -m pytest {SPREAD}\n")
