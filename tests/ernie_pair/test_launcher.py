"""Paddle's launcher as started by this package: absent GPUs, exit codes, and what it does not print."""

import contextlib
import io
import logging
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import paddle
import pytest
from children import python
from paddle.distributed.launch.controllers.controller import ControllerBase
from paddle.distributed.launch.job.container import Container
from places import ROOT

from ernie_pair import launcher
from ernie_pair.core.errors import InputError
from ernie_pair.launcher import refuse_absent_gpus
from ernie_pair.runtime.paddle_patches.launcher import FailedProcess, end_noted


@pytest.fixture(autouse=True)
def cold(monkeypatch):
    """Start the launcher as ever: how it starts and ends its processes is what is tested."""
    monkeypatch.setenv("COLD", "1")


def launch(folder, *words, **environment):
    words = ["-m", "ernie_pair.launcher", "--log_dir", folder / "log", *words]
    return python(*words, cwd=folder, timeout=120, **environment)


def start(folder, script, **streams):
    words = [sys.executable, "-u", "-m", "ernie_pair.launcher", "--log_dir", "log", "--nproc_per_node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    return subprocess.Popen([*words, script], cwd=folder, env=environment, **streams)


SPEAKING = """
import logging, subprocess, sys
from ernie_pair.runtime.processes.console import GOOD, start_console
from ernie_pair.runtime.processes.world import launched_world

start_console(launched_world())
logging.getLogger("ernie_pair").info("better than all before it", extra={"tone": GOOD})
logging.getLogger("ernie_pair").warning("careful")
if "again" not in sys.argv:
    subprocess.run([sys.executable, __file__, "again"], stderr=open("child.log", "w"))
"""


def seen_on_a_terminal(folder):
    (folder / "speaking.py").write_text(SPEAKING)
    terminal, end = pty.openpty()
    process = start(folder, "speaking.py", stdin=end, stdout=end, stderr=end)
    os.close(end)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: all writers have closed it
        while part := os.read(terminal, 1 << 16):
            shown += part
    os.close(terminal)
    assert process.wait(timeout=60) == 0, shown
    return shown.decode()


def test_a_terminal_shows_colours_and_logs_have_none(tmp_path):
    shown = seen_on_a_terminal(tmp_path)
    assert shown.count("better than all before it") == 1 and "\033[32m" in shown and "\033[33m" in shown
    logs = [tmp_path / "log" / f"workerlog.{rank}" for rank in (0, 1)]
    said = [path.read_text() for path in (*logs, tmp_path / "child.log")]
    assert all("careful" in text and "\033" not in text for text in said)
    piped = launch(tmp_path, "--nproc_per_node", 2, "speaking.py").stdout
    assert "better than all before it" in piped and "\033" not in piped


def test_asking_for_absent_gpus_fails_and_starts_nothing(tmp_path):
    done = launch(tmp_path, "--gpus", "0,1", "absent.py", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2 and done.stderr.startswith("error: --gpus 0,1, but ")
    assert done.stderr.count("\n") == 1 and "--nproc_per_node" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("asked, visible, reason", [
    ("0,7", "0,1", "GPU 7 is not among the visible 0,1"),
    ("2", "3", "GPU 2 is not among"),
    ("0, 1", "0,1", ""),
])  # fmt: skip
def test_the_error_names_a_gpu_that_is_not_visible(monkeypatch, asked, visible, reason):
    monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: True)
    monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if not reason:
        return refuse_absent_gpus(asked)
    with pytest.raises(InputError, match=reason):
        refuse_absent_gpus(asked)


@pytest.mark.parametrize("visible, asked, words, given", [
    (0, 4, "x.py --device cpu", {}),
    (2, 2, "x.py", {}),
    (2, 0, "x.py --device gpu", {}),
    (2, 3, "x.py --device=gpu --device cpu", "-1,-1,-1"),
    (8, 2, "x.py --device=cpu --seed 1", "-1,-1"),
])  # fmt: skip
def test_processes_on_the_cpu_see_no_gpu(monkeypatch, visible, asked, words, given):
    monkeypatch.setattr(launcher, "count_cards", lambda: visible)
    found = launcher.environment_of_processes(asked, launcher.is_cpu_asked(words.split()))
    assert found == ({"PADDLE_DISTRI_BACKEND": "gloo", "CUDA_VISIBLE_DEVICES": given} if given else {})
    message = f"--nproc_per_node 9 is more than the {visible} visible GPUs, one for each process; "
    if visible:
        with pytest.raises(InputError) as caught:
            launcher.environment_of_processes(9, on_cpu=False)
        assert caught.value.message == (
            f"{message}start at most {visible}, or add --device cpu behind the file"
        )


def test_rendezvous_ports_are_below_the_ephemeral_range(tmp_path):
    (tmp_path / "told.py").write_text("import os\nprint(os.environ['PADDLE_TRAINER_ENDPOINTS'])\n")
    assert launch(tmp_path, "--nproc_per_node", 2, "told.py", without=["PORT_RANGE"]).returncode == 0
    said = (tmp_path / "log" / "workerlog.0").read_text().split()[-1]
    ports = [int(endpoint.rpartition(":")[2]) for endpoint in said.split(",")]
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(ports) == 2 and all(10000 <= port < first_given for port in ports)


def test_a_failed_process_keeps_its_code_and_leaks_no_env(tmp_path):
    (tmp_path / "fails.py").write_text("import sys\nsys.exit('error: it failed')\n")
    done = launch(tmp_path, "--nproc_per_node", "2", "fails.py", A_PASSWORD="open-sesame")
    assert done.returncode == 1 and done.stderr.startswith("error: rank ")
    assert done.stderr.count("\n") == 1 and "ended with exit code 1: it failed; see " in done.stderr
    assert "error: it failed" in (tmp_path / "log" / "workerlog.0").read_text()
    written = "".join(path.read_text() for path in (tmp_path / "log").iterdir())
    assert "open-sesame" not in written + done.stdout + done.stderr


FAILS_ONE = """
import os, sys, time
if os.environ["PADDLE_TRAINER_ID"] == "1":
    {failure}
time.sleep(100)
"""


@pytest.mark.parametrize(
    "failure, code",
    [("sys.exit(4)", 4), ("os.kill(os.getpid(), 9)", 6), ("os.kill(os.getpid(), 15)", 143)],
    ids=["it ends", "it is killed", "it is asked to end"],
)
def test_the_exit_code_is_that_of_the_failed_process(failure, code, tmp_path):
    (tmp_path / "fails_one.py").write_text(FAILS_ONE.format(failure=failure))
    done = launch(tmp_path, "--nproc_per_node", "2", "fails_one.py")
    assert done.returncode == code, done.stderr


def failed(code, wrote, tail=""):
    return FailedProcess(0, 7, code, "log/workerlog.0", wrote, tail, True)


@pytest.mark.parametrize("first, second, blamed", [
    (failed(6, 1.0), failed(-9, 2.0), 1),
    (failed(6, 1.0), failed(1, 2.0), 1),
    (failed(1, 2.0), failed(1, 1.0), 1),
    (failed(2, 1.0), failed(2, 2.0), 0),
])  # fmt: skip
def test_the_process_that_failed_for_its_own_reasons_is_blamed(first, second, blamed):
    assert launcher.blame([first, second]) is (first, second)[blamed]


@pytest.mark.parametrize("code, tail, found", [
    (
        2,
        "error: earlier\nerror: x.tsv:3: two columns; add one\n",
        (2, "exit code 2: x.tsv:3: two columns; a"),
    ),
    (1, "Traceback (most recent call last):\nKeyError: 3\n", (1, "ended with exit code 1; see log/")),
    (-11, "error: earlier\n", (6, "was killed by SIGSEGV; see log/workerlog.0")),
])  # fmt: skip
def test_the_line_of_a_failed_process_repeats_its_own_error(code, tail, found):
    given, line = launcher.failure_of(failed(code, 1.0, tail))
    assert given == found[0] and found[1] in line and line.startswith("error: rank 0 (pid 7) ")


SPEAKS = """
import os, sys, time
print("rank", os.environ["PADDLE_TRAINER_ID"], flush=True)
"""


def test_a_script_has_words_that_could_be_flags_of_the_launcher(tmp_path):
    (tmp_path / "told.py").write_text("import sys\nprint(*sys.argv[1:])\n")
    words = ["--a", "1", "--log", "x", "--nn", "2"]
    done = launch(tmp_path, "--nproc_per_node", 2, "told.py", *words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log" / "workerlog.1").read_text().split() == words


def test_the_launcher_itself_prints_nothing_by_default(tmp_path):
    (tmp_path / "speaks.py").write_text(SPEAKS)
    for machines in ([], ["--ips", "127.0.0.1"]):
        done = launch(tmp_path, *machines, "--nproc_per_node", "2", "speaks.py")
        assert (done.returncode, done.stdout, done.stderr) == (0, "rank 0\n", "")
    asked = launch(tmp_path, "--nproc_per_node", "2", "--log_level", "INFO", "speaks.py")
    assert "rank 0\n" in asked.stdout and "Configuration" in asked.stderr and "Exit code 0" in asked.stderr


WAITS = """
import signal, sys, time

def stop(number, frame):
    time.sleep(1)  # until the launcher has read the log for the last time by itself
    sys.exit("saved, and stopped")

signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(100)
"""


def test_the_last_output_of_a_stopped_run_is_shown(tmp_path):
    (tmp_path / "waits.py").write_text(WAITS)
    running = start(tmp_path, "waits.py", stdout=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGTERM)
    assert running.communicate(timeout=60)[0] == "saved, and stopped\n" and running.returncode == 143


def test_a_signal_waits_until_a_log_is_read():
    class Log:
        lines = ["first\n", "second\n", ""]

        def readline(self):
            ControllerBase.signal_handler(controller, signal.SIGTERM, None)
            return self.lines.pop(0)

    stopped, shown, container = [], io.StringIO(), Container()
    context = SimpleNamespace(logger=logging.getLogger("LAUNCH"), status=SimpleNamespace(done=lambda: None))
    controller = SimpleNamespace(ctx=context, stop=lambda sigint: stopped.append(shown.getvalue()))
    container._log_handler = Log()
    with end_noted() as end, pytest.raises(SystemExit):
        container.logs(shown)
    assert stopped == ["first\nsecond\n"] and end.signal == signal.SIGTERM
