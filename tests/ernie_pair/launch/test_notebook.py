"""notebook_launcher: result, errors and shutdown of a function in several processes, without Paddle."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from waiting import until

from ernie_pair import notebook_launcher
from ernie_pair.core.errors import InputError, LostProcessError
from ernie_pair.launch.notebook import _devices_of, _environments
from ernie_pair.runtime.processes.world import World, launched_world

# How Python sees a notebook: definitions in a main module that has no file.
NOTEBOOK = """
from ernie_pair import notebook_launcher
factor = 3

class Answer:
    def __init__(self, value):
        self.value = value

class Own(Exception):
    pass

def double(value):
    return Answer(2 * value)

def ask(value):
    from ernie_pair.runtime.processes.world import launched_world
    print("in the first" if launched_world().is_first else "in the second", flush=True)
    return double(factor * value)

def fail():
    raise Own("of a cell")

answer = notebook_launcher(ask, (7,))
print(type(answer) is Answer, answer.value)
try:
    notebook_launcher(fail)
except Own as error:
    print("Own", error)
"""

# Starts two processes that write down their pids and never end by themselves. Like a kernel, it handles
# interrupts even if the shell that started the tests ignores them.
ENDLESS = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from ernie_pair import notebook_launcher

def wait(folder):
    import os, signal, time
    from ernie_pair.runtime.processes.world import launched_world
    saved = os.path.join(folder, f"saved.{launched_world().rank}")
    signal.signal(signal.SIGTERM, lambda *_: (open(saved, "w").close(), os._exit(0)))
    with open(os.path.join(folder, f".{os.getpid()}"), "w"):
        os.rename(os.path.join(folder, f".{os.getpid()}"), os.path.join(folder, f"pid.{os.getpid()}"))
    time.sleep(600)

notebook_launcher(wait, (sys.argv[1],))
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr("ernie_pair.launch.notebook.GRACE_SECONDS", 1.0)


def where():
    return launched_world().rank, launched_world().size, os.environ["PADDLE_TRAINER_ENDPOINTS"].count(":")


def fail(rank, error):
    if launched_world().rank == rank:
        raise error
    time.sleep(600)


def kill(rank):
    if launched_world().rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def leave(rank, code):
    if launched_world().rank == rank:
        print("error: a last word", file=sys.stderr, flush=True)
        os._exit(code)
    time.sleep(600)


def test_the_result_of_rank_0_is_returned(capfd):
    assert notebook_launcher(where, num_processes=3) == (0, 3, 3)
    done = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["in the first", "True 42", "Own of a cell"]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("error", [ValueError("a bug"), InputError("bad input; fix it")])
def test_an_error_in_any_process_is_raised_with_its_traceback(rank, error):
    with pytest.raises(type(error), match=str(error)) as caught:
        notebook_launcher(fail, (rank, error))
    assert f"rank {rank}:" in str(caught.value.__cause__) and "in fail" in str(caught.value.__cause__)


@pytest.mark.parametrize("function, arguments, end", [
    (kill, (0,), "rank 0 was killed by SIGKILL"),
    (kill, (1,), "rank 1 was killed by SIGKILL"),
    (leave, (1, 6), "rank 1 ended with exit code 6: error: a last word"),
])  # fmt: skip
def test_how_a_process_ended_is_reported_with_its_rank(function, arguments, end):
    with pytest.raises(LostProcessError, match=end):
        notebook_launcher(function, arguments)


def test_what_cannot_be_sent_or_launched_is_rejected(monkeypatch):
    lock = threading.Lock()
    with pytest.raises(InputError, match="cannot be sent to other processes .*; make what it uses inside"):
        notebook_launcher(lambda: lock)
    with pytest.raises(InputError, match="cannot be sent back .*; return numbers, texts or arrays"):
        notebook_launcher(threading.Lock)
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(InputError, match="is one of several already"):
        notebook_launcher(where)


def test_processes_get_the_launchers_environment(monkeypatch):
    environments = _environments(2, ["3", "5"])
    for rank, environment in enumerate(environments):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            assert launched_world() == World(rank, 2)
        assert environment["CUDA_VISIBLE_DEVICES"] == "3,5"
        assert environment["FLAGS_selected_gpus"] == str(rank)
        assert environment["PADDLE_CURRENT_ENDPOINT"] in environment["PADDLE_TRAINER_ENDPOINTS"].split(",")
        assert "PADDLE_DISTRI_BACKEND" not in environment
    on_cpu = _environments(2, [])[1]
    assert on_cpu["PADDLE_DISTRI_BACKEND"] == "gloo" and on_cpu["CUDA_VISIBLE_DEVICES"] == ""


def test_the_first_visible_gpus_are_used(monkeypatch):
    monkeypatch.setattr("ernie_pair.launch.notebook.default_device", lambda: "gpu")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [_devices_of(gpus, 2) for gpus in (None, "", "4, 6")] == [["0", "1"], [], ["4", "6"]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,7")
    assert _devices_of(None, 2) == ["2", "3"]


@pytest.mark.parametrize(
    "visible, devices", [("", []), ("-1", []), ("-1,0", []), ("5", ["5"]), ("2, 3,-1,4", ["2", "3"])]
)
def test_hidden_gpus_are_not_used(monkeypatch, visible, devices):
    """CUDA takes the devices before the first that does not exist, and none of an empty list."""
    monkeypatch.setattr("ernie_pair.launch.notebook.default_device", lambda: "gpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert _devices_of(None, len(devices) or 2) == devices
    for one in ("4", "4,-1,5"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", one)
        with pytest.raises(InputError, match=f"2 is more than the 1 GPU of CUDA_VISIBLE_DEVICES={one}; .*''"):
            notebook_launcher(where, num_processes=2)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_a_killed_notebook(tmp_path, number):
    notebook = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLD": "1", "TMPDIR": str(tmp_path)},  # the launcher of the processes matters
    )
    until(lambda: len(list(tmp_path.glob("pid.*"))) == 2)
    pids = [int(path.name[4:]) for path in tmp_path.glob("pid.*")]
    notebook.send_signal(number)
    said = notebook.communicate(timeout=60)[1]
    until(lambda: not any(map(is_alive, pids)))
    until(lambda: len(list(tmp_path.glob("saved.*"))) == 2)
    assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)
    if number == signal.SIGTERM:
        assert (notebook.returncode, said) == (143, "stopped by SIGTERM\n")
        assert not list(tmp_path.glob("ernie-pair-*"))
