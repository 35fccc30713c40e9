"""The number of processes that a probe chooses: candidates, equal steps, the cached choice, and the probe."""

import json
import os
import pwd
import shutil
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
from ernie_pair.checks import doctor
from ernie_pair.kernels.library import open_kernels
from ernie_pair.launch import auto_processes, time_steps
from ernie_pair.launch import auto_processes as probe
from ernie_pair.launch.auto_processes import (
    Candidate,
    Choice,
    StepTimes,
    choose_processes,
    measure,
    processes_to_try,
    sizes_of,
)
from ernie_pair.launch.launch_config import read_launch
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.runtime import cpu as cpu_cores
from ernie_pair.runtime.processes.world import World

OF_MODEL = ["--model_name_or_path=model", "--output_dir=out"]
PAIRS = [*OF_MODEL, "--train_file=train.tsv", "--dev_file=dev.tsv"]
CORPUS = [*OF_MODEL, "--input_dir=data"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    monkeypatch.setattr(auto_processes, "processes_to_try", lambda: [(1, 4), (2, 2), (4, 1)])
    write_model(tmp_path / "model")
    write_pairs(tmp_path / "train.tsv", 90, seed=0)
    return tmp_path


@pytest.fixture
def fastest(monkeypatch):
    """Install a probe that finds the given number of processes fastest; returns what it was asked."""
    asked = []

    def put(processes):
        def measured(candidates):
            asked.append([one.words for one in candidates])
            return Choice(processes, "for a reason")

        monkeypatch.setattr(auto_processes, "measure", measured)
        return asked

    return put


def chosen(command, *words):
    words = [command, "--processes=auto", "--device=cpu", *words]
    config, flags = choose_processes(words, *read_launch(words))
    return config.processes, parse_config(TrainConfig if command == "train" else PretrainConfig, flags)


@pytest.mark.parametrize(
    "cores, quota, asked, tried",
    [
        (1, None, 0, [(1, 1)]),
        (2, None, 0, [(1, 2), (2, 1)]),
        (6, None, 0, [(1, 6), (2, 3), (4, 1), (6, 1)]),
        (8, None, 2, [(1, 2), (2, 2), (4, 2)]),
        (2, None, 8, [(1, 8)]),
        (64, 2.6, 0, [(1, 3), (2, 1), (3, 1)]),  # limited by the CPU quota
    ],
)
def test_candidates_use_all_cores_or_the_threads_asked_for(cores, quota, asked, tried, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(cpu_cores, "usable_cores", lambda: list(range(cores)))
    monkeypatch.setattr(cpu_cores, "cpu_quota", lambda: quota)
    monkeypatch.setattr(auto_processes, "share_of", cpu_cores.share_of.__wrapped__)
    monkeypatch.setattr(auto_processes, "asked_threads", lambda: asked)
    assert processes_to_try() == tried


@pytest.mark.parametrize(
    "batch_size, accumulation, processes, rows, passes",
    [(64, 1, 1, 64, 1), (64, 1, 4, 16, 1), (64, 4, 2, 64, 2), (6, 5, 2, 5, 3), (7, 1, 2, None, None)],
)
def test_pairs_per_step_do_not_depend_on_process_count(batch_size, accumulation, processes, rows, passes):
    flags = [*PAIRS, f"--batch_size={batch_size}", f"--gradient_accumulation_steps={accumulation}"]
    config = parse_config(TrainConfig, flags)
    found = sizes_of(config, processes)
    if rows is None:
        assert found is None
        return
    assert found == {"batch_size": rows, "gradient_accumulation_steps": passes}
    assert rows * passes * processes == config.pairs_per_step(1) and rows <= batch_size


@pytest.mark.parametrize(
    "micro, global_, processes, rows", [(32, 128, 1, 32), (32, 128, 8, 16), (8, 0, 2, 4), (8, 0, 3, None)]
)
def test_pretraining_batch_does_not_depend_on_process_count(micro, global_, processes, rows):
    flags = [*CORPUS, f"--micro_batch_size={micro}", f"--global_batch_size={global_}"]
    found = sizes_of(parse_config(PretrainConfig, flags), processes)
    expected = {"micro_batch_size": rows, "global_batch_size": global_ or micro}
    assert found == (None if rows is None else expected)


def test_the_fastest_count_is_used_for_the_same_step(fastest):
    fastest(4)
    processes, config = chosen("train", *PAIRS, "--batch_size=32", "--gradient_accumulation_steps=2")
    assert processes == 4 and config.pairs_per_step(4) == 64 and config.batch_size == 16
    fastest(2)
    processes, config = chosen("pretrain", *CORPUS, "--micro_batch_size=16", "--global_batch_size=32")
    assert processes == config.dp_degree == 2
    assert (config.samples_per_step, config.micro_batch_size, config.accumulation_steps) == (32, 16, 1)


def test_user_parallel_degrees_limit_the_candidates(fastest):
    asked = fastest(4)
    chosen("pretrain", *CORPUS, "--sharding_degree=2", "--micro_batch_size=8")
    assert asked == [["2 processes x 2 threads", "4 processes x 1 thread"]]


def test_a_single_candidate_is_not_probed_and_none_is_an_error(fastest, capsys):
    asked = fastest(1)
    assert chosen("train", *PAIRS, "--batch_size=7")[0] == 1 and asked == []
    assert "the only way that the flags allow" in capsys.readouterr().err
    with pytest.raises(InputError, match="finds no number of processes that these flags allow"):
        chosen("pretrain", *CORPUS, "--dp_degree=3", "--micro_batch_size=8")


def test_a_choice_is_cached_only_for_equivalent_runs(fastest, folder, capsys):
    asked = fastest(2)
    chosen("train", *PAIRS)
    assert chosen("train", *PAIRS, "--seed=7", "--learning_rate=0.1")[0] == 2 and len(asked) == 1
    (note,) = (folder / "kept" / "ernie-pair").glob("processes-*.json")
    said = capsys.readouterr().err
    assert f"for a reason (measured at an earlier start; to measure again, remove {note})" in said
    chosen("train", *PAIRS, "--max_seq_len=64"), chosen("train", *PAIRS, "--batch_size=8")
    write_model(folder / "model", num_hidden_layers=1)
    chosen("train", *PAIRS)
    assert len(asked) == 4


@pytest.mark.parametrize("command, flags", [("train", PAIRS), ("pretrain", CORPUS)])
def test_a_dry_run_does_not_cache_its_choice(fastest, folder, command, flags):
    asked = fastest(2)
    assert chosen(command, *flags, "--dry_run=true")[0] == 2 and not (folder / "kept").exists()
    chosen(command, *flags)
    assert chosen(command, *flags, "--dry_run=true")[0] == 2 and len(asked) == 2  # a cached choice is used


@pytest.mark.parametrize(
    "flag",
    [
        "--hidden_dropout_prob=0",
        "--attention_probs_dropout_prob=0",
        "--binary_head=false",
        "--use_amp=true --amp_dtype=float32",
    ],
)
def test_flags_that_change_step_cost_trigger_a_new_probe(fastest, flag):
    asked = fastest(2)
    corpus = [*CORPUS, "--micro_batch_size=8"]
    chosen("pretrain", *corpus), chosen("pretrain", *corpus, *flag.split())
    assert len(asked) == 2


def test_unusable_caches_keep_no_choice(fastest, folder, capsys):
    asked = fastest(2)
    chosen("train", *PAIRS)
    (note,) = (folder / "kept" / "ernie-pair").glob("processes-*.json")
    note.write_text(json.dumps({**json.loads(note.read_text()), "processes": "many"}))
    assert chosen("train", *PAIRS)[0] == 2 and len(asked) == 2
    shutil.rmtree(folder / "kept")
    (folder / "kept").write_text("a file")
    assert chosen("train", *PAIRS)[0] == chosen("train", *PAIRS)[0] == 2 and len(asked) == 4
    assert "(not kept: " in capsys.readouterr().err


def test_without_a_home_folder_no_choice_is_cached(fastest, monkeypatch, capsys):
    asked = fastest(2)
    for name in ("XDG_CACHE_HOME", "HOME"):  # a container user that is not in the password database
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    assert chosen("train", *PAIRS)[0] == 2 and len(asked) == 1
    assert (
        "(not kept: this user has no home folder to keep a cache in; set HOME or" in capsys.readouterr().err
    )
    assert doctor._operator().startswith("pretraining uses Paddle's own kernels: this user has no home")


@pytest.mark.parametrize(
    "words, reason",
    [
        (["train", *PAIRS, "--device=gpu"], "--processes auto is for the CPU; add --device cpu"),
        (["train", *PAIRS, "--gpus=0,1", "--device=gpu"], "--gpus 0,1 and --processes auto differ"),
        (["train", *PAIRS, "--nnodes=2", "--master=a:1"], "--processes auto measures one machine"),
        (
            ["predict", "--model_path=model", "--input_file=i", "--output_file=o"],
            "--processes auto is for train and pretrain; give predict a number",
        ),
        (["train", *PAIRS, "--processes=few"], "--processes takes a whole number or auto, not 'few'"),
    ],
)
def test_unsupported_uses_of_processes_auto_are_rejected(words, reason):
    asked = [] if any("--processes" in word for word in words) else ["--processes=auto"]
    with pytest.raises(InputError) as caught:
        read_launch([*words, *asked])
    assert reason in caught.value.message


# --- the probe: stand-in runs, each timed in its own processes


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
