"""The watchdog, with ranks as separate processes that run nothing else."""

import json
import os
import signal
import subprocess
import sys

import pytest
from children import python
from places import ROOT
from waiting import until

from ernie_pair.core.errors import InputError
from ernie_pair.runtime.processes import watchdog
from ernie_pair.runtime.processes.world import World

# Rank argv[2] of 2: says "here" when both have been seen, then does argv[3].
RANK = """
import sys, time
from pathlib import Path
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import NumbersError, LostProcessError, Stopped
from ernie_pair.runtime.processes import watchdog
from ernie_pair.runtime.processes.world import World

watchdog.POLL_SECONDS, watchdog.POLLS_PER_BEAT, watchdog.SILENT_SECONDS = 0.02, 2, 1.0
watchdog.GRACE_SECONDS, watchdog.MIN_LIMIT, watchdog.FIRST_ON_GPU = 0.1, 0.5, 0.5
folder, rank, action = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

def wait_for_both():
    while len(list((folder / "ranks").glob("*.json"))) < 2:
        time.sleep(0.01)
    time.sleep(0.2)
    print("here", flush=True)

def run():
    with watchdog.Watchdog(folder, World(rank, 2), action.rpartition(" on ")[2]) as watch:
        if action == "waits alone":
            print("here", flush=True)
            time.sleep(60)
        wait_for_both()
        if action == "waits":
            time.sleep(60)
        elif action == "finishes late":
            time.sleep(1.5)
        elif action == "fails":
            raise NumbersError("the loss is nan")
        elif action == "is stopped":
            raise Stopped("stopped", 143)
        elif action == "meets a broken collective":
            time.sleep(0.3)
            raise RuntimeError("Connection closed by peer")
        elif action == "is told of an error of the other":
            raise LostProcessError("rank 0: LookupError: a bug")
        elif action == "has that error":
            time.sleep(1.5)  # more than it takes to see the other one's end
            raise LookupError("a bug")
        elif action == "hangs in an update":
            for step in range(3):
                time.sleep(0.01)
                watch.step_done(step)
            time.sleep(60)
        elif action.startswith("is long in the first step"):
            time.sleep(1.5)  # what is done before it has no limit of that kind
            watch.steps_begin()
            time.sleep(1.5)
        elif action == "evaluates long":
            for step in range(3):
                watch.step_done(step)
            with watch.paused():
                time.sleep(1.5)

sys.exit(exit_code_of(run))
"""


@pytest.fixture
def ranks(tmp_path):
    """Starts a rank for each action; those still alive are killed at the end."""
    started = []

    def start(*actions):
        for rank, action in enumerate(actions):
            command = [sys.executable, "-c", RANK, str(tmp_path), str(rank), action]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            started.append(subprocess.Popen(command, env={"PYTHONPATH": str(ROOT)}, **pipes))
        assert all(process.stdout.readline() == "here\n" for process in started)
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


def end_of(process):
    _, said = process.communicate(timeout=30)
    return process.returncode, said


@pytest.mark.parametrize("actions, ended, other", [
    (("finishes late", "ends"), (0, ""), 0),
    (("finishes late", "is stopped"), (0, ""), 143),
    (("evaluates long", "waits"), (0, ""), None),  # work outside steps has no time limit
    (("is long in the first step on cpu", "waits"), (0, ""), None),
    (("fails", "fails"), (4, "error: the loss is nan\n"), 4),
])  # fmt: skip
def test_no_rank_is_reported_lost_that_ends_by_itself(ranks, tmp_path, actions, ended, other):
    first, second = ranks(*actions)
    assert end_of(first) == ended and (other is None or end_of(second)[0] == other)
    if other == 0:
        assert list(tmp_path.iterdir()) == []


GONE = ("error: rank 1 (pid {pid}) on {node} is gone; start the same",)
SILENT = ("error: rank 1 (pid {pid})", "no sign of life for")


@pytest.mark.parametrize("action, number, words", [
    ("waits", signal.SIGKILL, GONE),
    ("meets a broken collective", signal.SIGKILL, GONE),
    ("waits", signal.SIGSTOP, (*SILENT, "Current thread")),
    ("meets a broken collective", signal.SIGSTOP, SILENT),
    ("hangs in an update", 0, ("no step has ended for", "Thread")),
    ("is long in the first step on gpu", 0, ("no step has ended for",)),
])  # fmt: skip
def test_a_lost_rank_ends_the_other_with_a_line_naming_it(ranks, action, number, words):
    """Also as a zombie, for nobody calls wait; a collective breaks long before SILENT_SECONDS."""
    first, second = ranks(action, "waits")
    second.send_signal(number)
    code, said = end_of(first)
    known = {"pid": second.pid, "node": os.uname().nodename}
    assert code == 6 and all(word.format(**known) in said for word in words), said
    assert words is not GONE or said.count("\n") == 1
    assert "Traceback" not in said and "time.sleep" not in said.splitlines()[0]


@pytest.mark.parametrize("actions, which, code, words", [
    (("has that error", "is told of an error of the other"), 0, 1, ("Traceback", "LookupError: a bug\n")),
    (("has that error", "is told of an error of the other"), 1, 6, ("rank 0: LookupError: a bug\n",)),
    (("meets a broken collective", "waits"), 0, 1, ("RuntimeError: Connection closed by peer",)),
    (("waits", "fails"), 0, 6, ("has ended: the loss is nan",)),
])  # fmt: skip
def test_a_rank_that_fails_says_why_and_tells_the_other(ranks, actions, which, code, words):
    ended, said = end_of(ranks(*actions)[which])
    assert ended == code and all(word in said for word in words), said


RECORD = {"pid": 1, "born": 2, "place": "here", "host": "node", "counter": 3, "error": ""}


@pytest.mark.parametrize("data", [
    *(b"", b"\xff", b"null", b"[]", b"7" * 9000, b"[" * 1024),
    b'{"pid": 1}',
    *(
        json.dumps({**RECORD, **wrong}).encode()
        for wrong in ({"counter": "3"}, {"error": ["no"]}, {"pid": 1.5}, {"host": "n" * 2000})
    ),
], ids=lambda data: data[:20].decode("ascii", "replace"))  # fmt: skip
def test_an_invalid_record_is_ignored(tmp_path, data):
    path, peer = tmp_path / "00001.json", watchdog._Peer()
    path.write_bytes(data)
    assert peer.look(path, 1.0) == "" and peer.record is None
    path.write_text(json.dumps(RECORD))
    assert peer.look(path, 1.0) == ""
    path.write_bytes(data)
    assert "no sign of life" in peer.look(path, watchdog.SILENT_SECONDS) and peer.record == RECORD


def test_an_error_in_a_record_is_reported_on_one_line(tmp_path, ranks):
    (first,) = ranks("waits alone")
    record = json.loads((tmp_path / "ranks" / "00000.json").read_text())
    forged = {**record, "pid": 7, "error": "all is well\nerror: not so \x1b[31m"}
    (tmp_path / "ranks" / "00001.json").write_text(json.dumps(forged))
    code, said = end_of(first)
    assert code == 6 and said.count("\n") == 1 and "\x1b" not in said and "all is well" in said


@pytest.mark.parametrize(
    "said",
    ["文件" * 150, "\\" * 500, "a" * 2000, "文件 \udce6" * 90],
    ids=["chinese", "escapes", "long", "surrogates"],
)
def test_the_record_of_a_long_error_stays_readable(tmp_path, said):
    with pytest.raises(InputError), watchdog.Watchdog(tmp_path, World(1, 2)):
        raise InputError(said)
    path, peer = tmp_path / "ranks" / "00001.json", watchdog._Peer()
    assert peer.look(path, 1.0).partition("has ended: ")[2].startswith(said[:180])
    assert path.stat().st_size == watchdog.RECORD_BYTES
    watchdog.clear_heartbeats(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_records_have_a_fixed_size_and_contain_the_pid(ranks, tmp_path):
    _, second = ranks("waits", "waits")
    seen = set()

    def look():
        data = (tmp_path / "ranks" / "00001.json").read_bytes()
        assert len(data) == 1024 and json.loads(data)["pid"] == second.pid
        seen.add(json.loads(data)["counter"])
        return len(seen) == 3

    until(look, 20)


START = """
import sys, time
from ernie_pair.runtime.processes import watchdog
from ernie_pair.runtime.processes.world import World

watchdog.NOTICE_SECONDS, watchdog.START_SECONDS = 0.1, 0.35
with watchdog.all_start(World(0, int(sys.argv[1]))):
    time.sleep(float(sys.argv[2]))
time.sleep(0.5)
"""


@pytest.mark.parametrize(
    "size, seconds, code, lines",
    [(2, 0.25, 0, 2), (2, 30, 6, 4), (1, 0.5, 0, 0)],
    ids=["late", "never", "one"],
)
def test_startup_reports_waiting_for_a_rank_and_times_out(size, seconds, code, lines):
    done = python("-c", START, size, seconds, timeout=30)
    said = done.stderr.splitlines()
    assert done.returncode == code and len(said) == lines
    assert all("waiting for all 2 processes to start" in line for line in said[: lines - (code == 6)])
    assert (code == 6) == ("error: not all 2 processes have started" in done.stderr)
