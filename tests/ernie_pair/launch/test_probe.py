"""How a probe times the ways to start a run: stand-in runs, each timed in its own processes."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from children import output_of
from places import ROOT
from tiny_pair import write_model, write_pairs
from waiting import until

from data_tools.files.errors import InputError
from data_tools.options.cli import parse_config
from ernie_pair.kernels.library import open_kernels
from ernie_pair.launch import auto_processes as probe
from ernie_pair.launch import time_steps
from ernie_pair.launch.auto_processes import Candidate, StepTimes, measure
from ernie_pair.launch.launch_config import read_launch
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.runtime.processes.world import World

OF_MODEL = ["--model_name_or_path=model", "--output_dir=out"]
PAIRS = [*OF_MODEL, "--train_file=train.tsv", "--dev_file=dev.tsv"]
CORPUS = [*OF_MODEL, "--input_dir=data"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    write_pairs(tmp_path / "train.tsv", 90, seed=0)
    return tmp_path


def candidates(*processes):
    words = ["train", *PAIRS, "--device=cpu"]
    return [Candidate(*read_launch(words, count), 8 // count, rows=8, passes=1) for count in processes]


def timed(monkeypatch, **seconds):
    """Fake the step time, or the failure, for each number of processes; returns which were tried."""
    tried = []

    def take(candidate):
        tried.append(candidate.processes)
        found = seconds[f"of_{candidate.processes}"]
        return found if isinstance(found, str) else StepTimes(found, found, 8, 1 << 20)

    monkeypatch.setattr(probe, "_time", take)
    return tried


def test_the_fastest_is_chosen_and_a_slower_one_ends_the_search(monkeypatch, capsys):
    tried = timed(monkeypatch, of_1=0.9, of_2=0.5, of_4=0.8, of_8=0.1)
    choice = measure(candidates(1, 2, 4, 8))
    assert choice.processes == 2 and tried == [1, 2, 4]
    assert choice.reason.startswith(
        "2 processes x 4 threads: 500 ms for a step of a stand-in, against 900 ms with 1 "
    )
    assert "  4 processes x 2 threads: 800 ms\n" in capsys.readouterr().err


def test_candidates_that_fail_or_exceed_memory_are_skipped(monkeypatch, capsys):
    timed(monkeypatch, of_1="it ended with exit code 2: no such file", of_2=0.5)
    assert measure(candidates(1, 2)).processes == 2
    assert "1 process x 8 threads: it ended with exit code 2: no such file\n" in capsys.readouterr().err
    timed(monkeypatch, of_1="no answer", of_2="no answer")
    with pytest.raises(InputError, match="could not time a step; give a number"):
        measure(candidates(1, 2))
    tried = timed(monkeypatch, of_1=0.9, of_2=0.5, of_4=0.2)
    monkeypatch.setattr(probe, "free_memory", lambda: 3 * float(1 << 20))
    assert measure(candidates(1, 2, 4)).processes == 2 and tried == [1, 2]
    assert "4 processes x 2 threads: not tried" in capsys.readouterr().err


def test_failed_and_silent_processes_are_reported(monkeypatch):
    (candidate,) = candidates(1)
    broken = candidate._replace(flags=[*candidate.flags, "--max_seq_len=1"])
    assert "it ended with exit code 2: --max_seq_len 1 is below" in probe._time(broken)
    monkeypatch.setattr(probe, "SECONDS", 0.01)
    assert probe._time(*candidates(1)) == "no answer in 0 s"


@pytest.mark.parametrize("kernels", ["auto", "plain"])
def test_steps_are_timed_with_the_runs_allocator(monkeypatch, kernels):
    kept = []
    monkeypatch.setattr(time_steps, "keep_freed_memory", lambda: kept.append(True))
    flags = [*PAIRS, "--device=cpu", "--model_type=ernie", f"--kernels={kernels}", "--max_seq_len=24"]
    time_steps.open_pair_steps(parse_config(TrainConfig, flags), World())
    assert bool(kept) == (kernels == "auto" and not open_kernels().reason)


PRETRAINS = """
import sys
from data_tools.options.cli import parse_config
from ernie_pair.launch import time_steps
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.runtime.processes.world import World

time_steps.keep_freed_memory = lambda: print("kept")
time_steps.open_pretrain_steps(parse_config(PretrainConfig, sys.argv[1:]), World())
"""


def test_pretraining_steps_are_timed_with_the_runs_allocator(folder):
    flags = [*CORPUS, "--device=cpu", "--model_type=ernie", "--max_seq_len=24", "--micro_batch_size=2"]
    flags.append("--kernels=plain")
    assert "kept" not in output_of("-c", PRETRAINS, *flags, cwd=folder)


LAUNCHES = """
import sys
from ernie_pair.__main__ import main
from ernie_pair.launch import auto_processes

auto_processes.processes_to_try = lambda: [(2, 1), (1, 2)]
sys.argv = ["ernie-pair", "launch", *sys.argv[1:]]
main()
"""


def marked(mark):
    """Return the processes that were started with ``mark`` in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in entry.read_text(errors="replace"):
                found.append(int(entry.parent.name))
    return found


def test_a_stopped_launch_leaves_no_probe_processes(folder):
    """The first candidate that it times has its own launcher and two processes."""
    mark = f"PROBE_OF={folder}"
    words = ["train", "--processes=auto", "--device=cpu", "--model_type=ernie", *PAIRS]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PROBE_OF": str(folder), "TMPDIR": str(folder)}
    environment["COLD"] = "1"  # the processes are counted
    words = [sys.executable, "-c", LAUNCHES, *words, "--max_seq_len=24"]
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as launch:
        until(lambda: len(marked(mark)) >= 4, 120)
        launch.terminate()
        said = launch.communicate(timeout=120)[1]
    assert launch.returncode == 143 and "stopped" in said and "Traceback" not in said
    until(lambda: not marked(mark), 60)
    assert not list(folder.glob("ernie-pair-*"))


def test_step_time_is_a_fixed_cost_plus_a_cost_per_pass():
    times = StepTimes(one=5.0, further=2.0, rows=8, memory=0)
    assert times.step_seconds(rows=8, passes=1) == 5 and times.step_seconds(rows=16, passes=3) == 3 + 12
    assert StepTimes(1.0, 2.0, 8, 0).step_seconds(8, 1) == 2
