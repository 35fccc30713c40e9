"""The steps of the quickstart and of the check, with a program in place of Python that records them."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ernie_pair.checks import quickstart as running
from ernie_pair.checks.quickstart import CheckConfig, QuickstartConfig, check, quickstart
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import CheckpointError, InputError, MachineError
from ernie_pair.core.files.atomic_folder import only_writer

# It creates the model folders that later steps use, and runs FAULT when COMMAND is called.
PROGRAM = """#!/bin/sh
shift 3
echo "$* threads=$OMP_NUM_THREADS" >>'{folder}/asked'
for word in "$@"; do
    case $word in --output_dir=*/pair*) mkdir -p "${{word#*=}}/best-accuracy-0.9" ;; esac
done
case "$*" in '{command}'*) {fault} ;; esac
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a program in place of Python; returns a function that lists the commands it was given."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def put(command="nothing", fault="exit 1"):
        python = tmp_path / "python"
        python.write_text(PROGRAM.format(folder=tmp_path, command=command, fault=fault))
        python.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(python))
        return lambda: (tmp_path / "asked").read_text().splitlines()

    return put


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "collect_results", lambda folder: {"accuracy": 0.9})
    monkeypatch.setattr(running, "render_table", lambda results, folder: f"the table of {folder}")
    return QuickstartConfig(output_dir=str(tmp_path / "a run"), pairs=90, max_steps=7, epochs=3, device="cpu")


def test_the_quickstart_runs_its_seven_steps_in_order(program, config, tmp_path, capsys, monkeypatch):
    asked = program()
    monkeypatch.setattr(running, "cpu_threads", lambda: 7)
    quickstart(config)
    words = [line.split()[0] for line in asked()]
    assert words[:4] == ["make-sample", "build", "prepare", "new-model"]
    assert words[4:] == ["launch", "convert", "train", "train", "evaluate", "evaluate", "predict"]
    said = capsys.readouterr()
    assert [line[:5] for line in said.err.splitlines() if line] == [f"[{n}/7]" for n in range(1, 8)]
    assert f"the table of {config.output_dir}" in said.out and f"board '{config.output_dir}', or" in said.out
    assert json.loads((tmp_path / "a run" / "quickstart.json").read_text()) == {"accuracy": 0.9}
    steps, epochs = asked()[4], asked()[6:8]
    assert steps.startswith("launch pretrain ") and "--max_steps=7 --decay_steps=7 " in steps
    assert all("--epochs=3" in line and line.endswith("threads=3") for line in epochs)
    assert asked()[8].endswith("threads=") and "--pairs=90" in asked()[0]


@pytest.mark.parametrize("library", ["paddle", "rjieba"])
def test_nothing_starts_if_a_training_library_is_missing(program, config, tmp_path, monkeypatch, library):
    program()
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=f"^{library} is not installed; pip install "):
        quickstart(replace(config))
    assert not (tmp_path / "a run").exists() and not (tmp_path / "asked").exists()


def test_the_gpus_flag_is_passed_to_pretraining(program, config):
    asked = program()
    quickstart(replace(config, device="gpu", gpus="2"))
    assert "--gpus=2 --use_amp=true" in asked()[4] and "--device=gpu" in asked()[4]


def test_a_second_quickstart_in_the_same_folder_is_refused(program, config):
    asked = program()
    with only_writer(Path(config.output_dir)), pytest.raises(MachineError, match="another run writes this"):
        quickstart(config)
    quickstart(config)
    assert asked()


@pytest.mark.parametrize("command, fault, error, code", [
    ("build", "exit 2", InputError, 2),
    ("convert", "echo it >&2; exit 3", CheckpointError, 3),
    ("launch", "kill -15 $$", None, 143),
])  # fmt: skip
def test_a_failed_step_ends_the_quickstart(program, config, capfd, command, fault, error, code):
    asked = program(command, fault)
    assert exit_code_of(lambda: quickstart(config)) == code
    assert asked()[-1].startswith(command) and f", {command}; its lines stand above" in capfd.readouterr().err


def test_a_failed_training_stops_the_one_running_in_parallel(program, config, tmp_path):
    scratch = f"train --model_name_or_path={tmp_path}/a run/small"
    program(scratch, "exec sleep 60")
    own = tmp_path / "python"
    other = "case \"$*\" in *'a run/dynamic --output_dir'*) exit 4 ;; esac\n"
    own.write_text(own.read_text().replace('case "$*" in \'train', other + 'case "$*" in \'train'))
    began = time.monotonic()
    assert exit_code_of(lambda: quickstart(config)) == 4
    assert time.monotonic() - began < 30


def test_a_failed_training_from_scratch_names_its_log(program, config, tmp_path):
    program(f"train --model_name_or_path={tmp_path}/a run/small", "echo error: too small; exit 2")
    with pytest.raises(InputError, match=r"too small \(step 5, train from scratch; see .*pair_scratch.log\)"):
        quickstart(config)


def test_sigterm_ends_the_quickstart_and_its_running_step(program, tmp_path):
    program("make-sample", f"echo $$ >{tmp_path}/child; exec sleep 60")
    code = f"import sys; sys.executable = {str(tmp_path / 'python')!r}; sys.argv = ['x', 'quickstart', "
    code += f"'--output_dir', {str(tmp_path / 'out')!r}]; from ernie_pair.__main__ import main; main()"
    python = os.path.join(sys.base_prefix, "bin", "python3")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    running = subprocess.Popen([python, "-c", code], env=environment, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    said = running.communicate(timeout=30)[1]
    assert running.returncode == 143 and "stopped; run the same command to continue" in said
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "child").read_text()), 0)


def test_the_check_says_ok_for_each_part(program, capsys):
    program()
    check(CheckConfig(device="cpu"))
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "PASSED   all 9 steps"
    names = "doctor make-sample build prepare new-model pretrain convert train predict"
    assert [line.split()[:2] for line in lines] == [["OK", name] for name in names.split()]


@pytest.mark.parametrize("command, fault, code, lines", [
    (
        "convert", "echo 'error: no weights; make some' >&2; exit 3", 3,
        ["FAILED   convert: no weights; make some", "not run  train, predict"],
    ),
    (
        "doctor", "echo 'DEFECT       no numpy'; echo 'error: 1 defect found by doctor' >&2; exit 2", 2,
        ["FAILED   doctor: 1 defect found", "         DEFECT       no numpy", "OK       predict"],
    ),
    (
        "make-sample", "printf 'Traceback (most recent call last):\\nKeyError: 7\\n' >&2; exit 1", 1,
        ["FAILED   make-sample: a run ended with exit code 1, which is a bug", "         KeyError: 7"],
    ),
])  # fmt: skip
def test_the_check_says_what_failed(program, capsys, command, fault, code, lines):
    program(command, fault)
    assert exit_code_of(lambda: check(CheckConfig(device="cpu"))) == code
    said = capsys.readouterr()
    for line in lines:
        assert any(one.startswith(line) for one in said.out.splitlines()), said.out
    assert "PASSED" not in said.out
    assert said.err.startswith(f"error: {command}: ") and said.err.count("\n") == 1
