"""The commands of the README, run as they stand there, only shorter."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.recipes, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
SHORTER = {
    "make_sample.py": "--pairs 360 --documents 200",
    "run_pretrain_static.sh": "--max_steps 6 --decay_steps 6 --eval_iters 2",
    "train_pair.py": "--max_steps 6",
}


def commands():
    """The logical lines of the README's recipe block."""
    block = re.search(
        r"<!-- recipe -->\n```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S
    )[1]
    lines = block.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def shortened(command):
    """A flag that stands in the command already gets the smaller value; twice it would be refused."""
    for name, flags in SHORTER.items():
        if name in command:
            for flag, value in re.findall(r"(--\w+) (\S+)", flags):
                command = re.sub(rf"{flag} \S+", "", command) + f" {flag} {value}"
    return command


@pytest.fixture(scope="module")
def environment():
    """`python` and `sh scripts/...` as after activating .venv, which scripts/test.sh has made."""
    venv = ROOT / ".venv" / "bin"
    if not (venv / "python").exists():
        pytest.fail("no .venv: run the tests with sh scripts/test.sh")
    return {**os.environ, "PATH": f"{venv}:{os.environ['PATH']}", "DEVICE": "cpu"}


def sh(command, environment, timeout=900):
    done = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout + done.stderr


def test_the_seven_commands(environment, tmp_path):
    found = commands()
    assert len(found) == 7
    for command in found:
        said = sh(
            shortened(command).replace("output/quickstart", str(tmp_path)), {**environment, **paths(tmp_path)}
        )
        if "static_to_dynamic" in command:
            assert said.count("largest difference") == 4
    assert json.loads((tmp_path / "pair" / "test.json").read_text())["rows"] == 40
    predictions = (tmp_path / "predictions.tsv").read_text().splitlines()
    assert predictions[0] == "index\tprediction" and len(predictions) == 41


def paths(folder):
    """What prepare_data.sh takes in place of its defaults, which are the quickstart's."""
    return {"TEXT": str(folder / "sample" / "corpus.txt"), "OUT": str(folder / "corpus")}


def test_the_quickstart_and_its_repetition(environment, tmp_path):
    small = {**environment, "OUT": str(tmp_path / "a run"), "STEPS": "4", "EPOCHS": "1", "PAIRS": "360"}
    first = sh("sh scripts/quickstart.sh", small)
    assert first.count("test accuracy") == 2 and "visualdl --logdir" in first
    before = sorted(
        (path, path.stat().st_mtime) for path in (tmp_path / "a run").rglob("model_state.pdparams")
    )
    again = sh("sh scripts/quickstart.sh", small)
    assert again.count("nothing to do") + again.count("skipped") >= 7
    after = sorted(
        (path, path.stat().st_mtime) for path in (tmp_path / "a run").rglob("model_state.pdparams")
    )
    assert before == after


def test_the_doctor_finds_this_environment_sound(environment):
    assert "sound" in sh("ernie-pair doctor", environment)


def test_the_scripts_name_the_pythons_that_do_when_there_is_none(tmp_path):
    copy = tmp_path / "clone"
    (copy / "scripts").mkdir(parents=True)
    for name in ("environment.sh", "test.sh"):
        (copy / "scripts" / name).write_text((ROOT / "scripts" / name).read_text())
    for name in ("setup.py", "constraints.txt", "pyproject.toml"):
        (copy / name).write_text("")
    (copy / "data_tools").mkdir()
    (copy / "data_tools" / "helpers.cpp").write_text("")
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "dirname", "cat", "cksum"):
        os.symlink(
            subprocess.run(["which", tool], capture_output=True, text=True).stdout.strip(), tools / tool
        )
    done = subprocess.run(
        [str(tools / "sh"), str(copy / "scripts" / "test.sh")],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "error: no CPython 3.9, 3.10, 3.11 or 3.12 is on PATH; "
        "install one, or name it: PYTHON=/path/to/python3.11"
    )
