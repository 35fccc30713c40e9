"""`ernie-pair launch`: scripts of one's own, as the tutorials start them, dry runs, and a real probe."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import tiny_pair
import tiny_pretrain
import yaml
from children import command
from launched import OURS, launch_line, one_thread, run_script, words_of
from run_files import events, files_of
from waiting import until

from ernie_pair.checkpoint.run_config import CONFIG_YAML
from ernie_pair.core.files.results import read_own_config

pytestmark = pytest.mark.ranks

# As in the tutorials: it joins the processes before anything else, and has flags called like those of launch.
TRAINS = """
import argparse

import paddle
from settings import SETTINGS

from ernie_pair import PairConfig, PairTrainer, set_seed

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir")
    parser.add_argument("--gpus")
    args = parser.parse_args()
    paddle.set_device("cpu")
    if paddle.distributed.get_world_size() > 1:
        paddle.distributed.init_parallel_env()
    set_seed(3)
    config = PairConfig(args.output_dir, device="cpu", **SETTINGS)
    result = PairTrainer("model", config, "train.tsv", "dev.tsv").train()
    print("rank", paddle.distributed.get_rank(), "step", result.step, "gpus", args.gpus, flush=True)
"""
SETTINGS = {"model_type": "ernie", "from_scratch": True, "max_steps": 4, "batch_size": 8, "eval_freq": 2}

# Without a word of this package. Rank 1 leaves a child behind that only its launcher can end.
PLAIN = """
import os, subprocess, sys, time
import paddle
import paddle.distributed as dist

dist.init_parallel_env()
for step in range(10**6):
    dist.all_reduce(paddle.ones([2]))
    if step == 5 and dist.get_rank() == 1:
        subprocess.Popen(["sleep", "300"])
        {fault}
    if step == 5:
        open(f"ready.{os.getpid()}", "w").close()
    time.sleep(0.01)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "settings.py").write_text(f"SETTINGS = {SETTINGS}\n")
    (tmp_path / "scripts" / "my_train.py").write_text(TRAINS)
    tiny_pair.write_model(tmp_path / "model")
    for seed, (name, rows) in enumerate((("train", 90), ("dev", 41))):
        tiny_pair.write_pairs(tmp_path / f"{name}.tsv", rows, seed)
    return tmp_path


def test_both_launchers_run_a_training_script_alike(folder):
    script = ("scripts/my_train.py", "--gpus", "of the script", "--output_dir")
    done = run(folder, "launch", "--nproc_per_node", "2", "--log_dir", "ours", *script, "a")
    assert "rank 0 step 4 gpus of the script" in done.stdout
    assert "rank 1 step 4 gpus of the script" in (folder / "ours" / "workerlog.1").read_text()
    run_script(folder, *script, "b")
    assert events(folder / "a") == events(folder / "b")
    assert files_of(folder / "a" / "model_last") == files_of(folder / "b" / "model_last")


def test_a_script_is_launched_in_a_single_process(folder):
    words = ["launch", "scripts/my_train.py", "--gpus", "none", "--output_dir", "out"]
    assert "rank 0 step 4 gpus none" in run(folder, *words).stdout and not (folder / "log").exists()


def run(folder, *words, **environment):
    line = [sys.executable, "-m", "ernie_pair", *words]
    done = subprocess.run(line, cwd=folder, env=one_thread(**environment), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def start_plain(folder, fault):
    (folder / "plain.py").write_text(PLAIN.replace("{fault}", fault))
    return subprocess.Popen(
        launch_line("log", "plain.py", launcher=OURS),
        cwd=folder,
        env=one_thread(STARTED_IN=str(folder), COLD="1"),  # its group is killed
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left_in(folder):
    pids = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"STARTED_IN={folder}" in entry.read_text(errors="replace"):
                pids.append(int(entry.parent.name))
    return pids


@pytest.mark.parametrize(
    "fault, code, fate",
    [
        ("os.kill(os.getpid(), 9)", 6, "was killed by SIGKILL"),
        ("raise KeyError('一个错误')", 1, "ended with exit code 1"),
    ],
    ids=["killed", "a traceback"],
)
def test_a_lost_process_ends_the_launch_with_a_line(tmp_path, fault, code, fate):
    process = start_plain(tmp_path, fault)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == code, stderr
    last = stderr.splitlines()[-1]
    assert last.startswith("error: rank 1 (pid ") and last.endswith(f"{fate}; see log/workerlog.1")
    assert stdout.count("KeyError: '一个错误'") == (code == 1)
    assert not left_in(tmp_path)


@pytest.mark.parametrize("number, code", [("SIGTERM", 143), ("SIGKILL", -9), ("SIGHUP", 143)])
def test_a_stopped_launcher_leaves_no_process_behind(tmp_path, number, code):
    process = start_plain(tmp_path, "pass")
    until(lambda: len(list(tmp_path.glob("ready.*"))) == 2, 120)
    process.send_signal(signal.Signals[number])
    if code > 0:
        stderr = process.communicate(timeout=20)[1]
        assert stderr.splitlines()[-1] == "stopped by SIGTERM; what each process printed is in log"
        assert not left_in(tmp_path)
    assert process.wait(20) == code
    ranks = [int(path.suffix[1:]) for path in tmp_path.glob("ready.*")]
    until(lambda: not set(ranks) & set(left_in(tmp_path)), 20)
    for pid in left_in(tmp_path):  # of a launcher that was killed itself: a child of a rank goes on
        os.kill(pid, signal.SIGKILL)


def left(folder):
    return sorted(map(str, folder.rglob("*")))


def dry_plan(folder, monkeypatch, name, *words):
    """The only plan of a dry run in two processes, printed by the first; no file is left behind."""
    monkeypatch.setenv("COLD", "1")  # the log folder is named by the process that `launch` becomes
    before = left(folder)
    done = command("launch", name, "--processes", 2, *words)
    assert done.code == 0, done.told + done.said
    assert left(folder) == before and done.said.count("made_by: ernie-pair") == 1
    return yaml.safe_load(done.said[done.said.index("# The flags of") :])["about"]["plan"]


def test_the_first_of_two_pair_processes_prints_the_plan(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    words = words_of(tiny_pair.train_config(tmp_path, max_steps=8, dry_run=True))
    plan = dry_plan(tmp_path, monkeypatch, "train", *words)
    assert (plan["processes"], plan["samples_per_step"], plan["steps"]) == (2, 32, 8)


def test_pretraining_prints_one_plan_and_then_writes_one_config(tmp_path, monkeypatch):
    model = tiny_pretrain.write_model(tmp_path / "model")
    data = tiny_pretrain.write_corpus(tmp_path / "data", model)
    words = tiny_pretrain.flags(model, data, tmp_path / "out", max_steps=2)
    assert dry_plan(tmp_path, monkeypatch, "pretrain", *words, "--dry_run")["processes"] == 2
    done = command("launch", "pretrain", "--processes", 2, *words)
    assert done.code == 0, done.told + done.said
    assert read_own_config(tmp_path / "out" / CONFIG_YAML)["about"]["layout"]["processes"] == 2
    assert [path.name for path in (tmp_path / "out").glob("config*")] == [CONFIG_YAML]
