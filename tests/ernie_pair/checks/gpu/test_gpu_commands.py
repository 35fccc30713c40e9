"""Commands of the check: their errors and time limits, and that nothing they started outlives them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import ROOT
from waiting import until

from ernie_pair.checks.gpu.lab import MARK, Lab, marked_processes
from ernie_pair.core.errors import CheckpointError, LostProcessError
from ernie_pair.runtime.processes.child_command import BrokenRunError

# A program whose argument decides what it prints and how it ends.
PROGRAM = """
import os, subprocess, sys, time
kind, note = sys.argv[1:]
if kind == "family":  # a child in a session of its own, which nobody waits for
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    open(note, "w").close()
    time.sleep(600)
elif kind == "refused":
    sys.exit(print("error: no weights; make some", file=sys.stderr) or 3)
elif kind == "bug":
    raise KeyError(7)
elif kind == "killed":
    print("RuntimeError: the card is gone", flush=True)
    print("and more", flush=True)
    os.kill(os.getpid(), 6)
print("done", os.environ.get("TMPDIR", "") != "", "OMP_NUM_THREADS" in os.environ)
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    (tmp_path / "program_of_check.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    with Lab(tmp_path / "place", "cpu", False) as lab:
        lab.deadline = time.monotonic() + 60
        yield lab


def run(lab, tmp_path, kind, accepted=(0,)):
    return lab.run([kind, str(tmp_path / "note")], module="program_of_check", accepted=accepted)


def test_a_command_returns_its_output_and_an_accepted_code(lab, tmp_path):
    assert run(lab, tmp_path, "").output == "done True True\n"
    assert run(lab, tmp_path, "refused", accepted=(0, 3)).process.returncode == 3


@pytest.mark.parametrize(
    "kind, error, words",
    [
        ("refused", CheckpointError, "no weights; make some (refused "),
        ("bug", BrokenRunError, "ended with exit code 1: KeyError: 7"),
        ("killed", BrokenRunError, "ended with signal 6: RuntimeError: the card is gone"),
    ],
)
def test_a_failure_keeps_its_kind_and_its_message(lab, tmp_path, kind, error, words):
    with pytest.raises(error) as caught:
        run(lab, tmp_path, kind)
    assert words in caught.value.message and "\n" not in caught.value.message


def of_family(lab, tmp_path):
    """Start a command with a child of its own, and return the processes of both."""
    started = lab.started(["family", str(tmp_path / "note")], module="program_of_check")
    running = started.__enter__()
    until((tmp_path / "note").exists)
    found = [pid for pid in marked_processes("") if _names(pid, running)]
    assert len(found) == 2
    return started, found


def environment_of(pid):
    """The environment that a process was started with, as bytes; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _names(pid, running):
    """Whether a process belongs to that command."""
    mark = environment_of(running.process.pid).split(f"{MARK}=".encode())[1].split(b"\0")[0]
    return mark in environment_of(pid)


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_leaving_or_stopping_kills_all_that_was_started(lab, tmp_path):
    started, found = of_family(lab, tmp_path)
    started.__exit__(None, None, None)
    assert all(map(is_gone, found))
    (tmp_path / "note").unlink()
    started, found = of_family(lab, tmp_path)
    lab.stop()
    assert all(map(is_gone, found))
    with pytest.raises(LostProcessError, match="the check is over"):
        run(lab, tmp_path, "")
    started.__exit__(None, None, None)


def test_a_command_beyond_its_time_limit_is_killed(lab, tmp_path):
    lab.deadline = time.monotonic()
    with pytest.raises(LostProcessError, match="family .*: the time of its step was over"):
        run(lab, tmp_path, "family")


def test_waiting_ends_when_the_condition_is_met(lab, tmp_path):
    words = ["family", str(tmp_path / "note")]
    with lab.started(words, module="program_of_check") as running:
        assert running.wait((tmp_path / "note").exists)
    assert running.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_no_processes_or_files_behind(tmp_path, number, code):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    words = f"check --gpu --device cpu --steps 2 --quick --output_file {tmp_path}/out.json".split()
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    check = subprocess.Popen([sys.executable, "-m", "ernie_pair", *words], env=environment, **pipes)
    until(lambda: list(temporary.glob("ernie-pair-check-gpu-*/log/2.txt")))  # the second command: of step 2
    found = until(
        lambda: [pid for pid in marked_processes("") if str(temporary).encode() in environment_of(pid)]
    )
    check.send_signal(number)
    said = check.communicate(timeout=180)[1]
    assert check.returncode == code and said.startswith("stopped; nothing is left")
    assert found and all(map(is_gone, found))
    assert list(temporary.iterdir()) == [] and not list(tmp_path.glob("out*"))
