"""Paddle's launcher as this package starts it: GPUs that are not there, and what it keeps to itself."""

import os
import signal
import subprocess
import sys

import paddle
import pytest
from places import ROOT

from data_tools.base.errors import InputError
from ernie_pair import launcher
from ernie_pair.launcher import refuse_absent_gpus


def launch(folder, *words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "ernie_pair.launcher", "--log_dir", str(folder / "log"), *map(str, words)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_gpus_without_a_gpu_are_one_line_and_nothing_is_started(tmp_path):
    done = launch(tmp_path, "--gpus", "0,1", "absent.py", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2 and done.stderr.startswith("error: --gpus 0,1, but ")
    assert done.stderr.count("\n") == 1 and "--nproc_per_node" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "asked, visible, reason",
    [
        ("0,7", "0,1", "GPU 7 is not among the visible 0,1"),
        ("2", "3", "GPU 2 is not among"),
        ("0, 1", "0,1", ""),
    ],
)
def test_a_gpu_that_is_not_visible_is_named(monkeypatch, asked, visible, reason):
    monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: True)
    monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if not reason:
        return refuse_absent_gpus(asked)
    with pytest.raises(InputError, match=reason):
        refuse_absent_gpus(asked)


@pytest.mark.parametrize(
    "visible, asked, words, given",
    [
        (0, 4, ["x.py", "--device", "cpu"], {}),
        (2, 2, ["x.py"], {}),
        (2, 0, ["x.py", "--device", "gpu"], {}),
        (2, 3, ["x.py", "--device=gpu", "--device", "cpu"], "-1,-1,-1"),
        (8, 2, ["x.py", "--device=cpu", "--seed", "1"], "-1,-1"),
    ],
)
def test_processes_on_the_cpu_are_given_no_gpu(monkeypatch, visible, asked, words, given):
    monkeypatch.setattr(launcher, "count_cards", lambda: visible)
    found = launcher.environment_of_processes(asked, launcher.is_cpu_asked(words))
    wanted = {"PADDLE_DISTRI_BACKEND": "gloo", "CUDA_VISIBLE_DEVICES": given} if given else {}
    assert found == wanted


def test_more_processes_than_gpus_are_one_line(monkeypatch):
    monkeypatch.setattr(launcher, "count_cards", lambda: 2)
    with pytest.raises(InputError) as caught:
        launcher.environment_of_processes(3, on_cpu=False)
    said = caught.value.message
    assert said.startswith("--nproc_per_node 3, but 2 GPU(s) are visible, ")
    assert said.endswith("start at most 2, or add --device cpu behind the file")


def test_a_failed_process_passes_its_code_and_hides_its_env(tmp_path):
    (tmp_path / "fails.py").write_text("import sys\nsys.exit('error: it failed')\n")
    done = launch(tmp_path, "--nproc_per_node", "2", "fails.py", A_PASSWORD="open-sesame")
    assert done.returncode == 1 and "ended with exit code 1" in done.stderr
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
    [("sys.exit(4)", 4), ("os.kill(os.getpid(), 9)", 128 + 9)],
    ids=["it ends", "it is killed"],
)
def test_the_exit_code_is_that_of_the_process_that_failed(failure, code, tmp_path):
    (tmp_path / "fails_one.py").write_text(FAILS_ONE.format(failure=failure))
    done = launch(tmp_path, "--nproc_per_node", "2", "fails_one.py")
    assert done.returncode == code, done.stderr


SPEAKS = """
import os, sys, time
print("rank", os.environ["PADDLE_TRAINER_ID"], flush=True)
"""


def test_the_launcher_itself_says_nothing(tmp_path):
    (tmp_path / "speaks.py").write_text(SPEAKS)
    done = launch(tmp_path, "--nproc_per_node", "2", "speaks.py")
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


def test_a_stopped_run_has_the_last_word(tmp_path):
    (tmp_path / "waits.py").write_text(WAITS)
    words = [sys.executable, "-u", "-m", "ernie_pair.launcher", "--log_dir", "log", "--nproc_per_node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(
        [*words, "waits.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGTERM)
    assert running.communicate(timeout=60)[0] == "saved, and stopped\n"


def test_a_run_on_several_machines_says_that_it_waits(capsys):
    launcher.tell_of_waiting(1, "10.0.0.1:6170")
    launcher.tell_of_waiting(2, "10.0.0.1:6170")
    assert capsys.readouterr().err == "waiting until 2 machines have been started, at 10.0.0.1:6170\n"


def test_the_script_of_pretraining_says_so_too(tmp_path):
    scripts = ROOT / "scripts"
    (tmp_path / "run.sh").write_text((scripts / "run_pretrain_static.sh").read_text())
    (tmp_path / "environment.sh").write_text(f"ROOT={scripts.parent}\nDEVICE=gpu\nPY={sys.executable}\n")
    done = subprocess.run(
        ["sh", "run.sh", "--from_scratch", "true"],
        cwd=tmp_path,
        env={**os.environ, "GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "", "OUTPUT": "out"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and done.stderr.startswith("error: --gpus 0,1, but ")
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()
