"""The number of processes that a probe chooses: candidates, equal step sizes, and the cached choice."""

import json
import pwd
import shutil
from pathlib import Path

import pytest
from tiny_pair import write_model, write_pairs

from data_tools.files.errors import InputError
from data_tools.options.cli import parse_config
from ernie_pair.checks import doctor
from ernie_pair.launch import auto_processes
from ernie_pair.launch.auto_processes import Choice, choose_processes, processes_to_try, sizes_of
from ernie_pair.launch.launch_config import read_launch
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.runtime import cpu as cpu_cores

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
        *("--hidden_dropout_prob=0", "--attention_probs_dropout_prob=0", "--binary_head=false"),
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


def test_a_relative_xdg_cache_home_is_ignored(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert auto_processes.user_cache() == Path("~/.cache/ernie-pair").expanduser()
