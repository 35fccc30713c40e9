"""The launch file: written by the wizard, read, and turned into processes."""

import io
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tiny_pair import write_model, write_pairs

from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError
from ernie_pair.core.run_module import RUN_MODULE
from ernie_pair.launch import launch as launching
from ernie_pair.launch import wizard
from ernie_pair.launch.launch import (
    is_script,
    launch,
    launch_environment,
    read_launch,
    read_script,
    wrap_in_launcher,
)
from ernie_pair.launch.wizard import QuestionsConfig, write_launch_file
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.runtime import gpu
from ernie_pair.runtime.gpu import Build
from ernie_pair.runtime.processes.child_command import ernie_pair_words

FLAGS = {"model_name_or_path": "model", "train_file": "train.tsv", "dev_file": "dev.tsv", "output_dir": "out"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    write_pairs(tmp_path / "train.tsv", 90, seed=0)
    write_pairs(tmp_path / "dev.tsv", 41, seed=1)
    return tmp_path


def write(folder, block=None, **flags):
    launch = {} if block is None else {"launch": block}
    (folder / "pair.yaml").write_text(yaml.safe_dump({**launch, **FLAGS, **flags}, sort_keys=False))
    return "pair.yaml"


def started(*words):
    """The command that would be run, without the interpreter."""
    config, flags = read_launch(words)
    run = [*ernie_pair_words("-u"), config.command, *flags]
    return [word for word in wrap_in_launcher(config, run) if word not in (sys.executable, RUN_MODULE)]


LAUNCHER = ["-m", "ernie_pair.launcher", "--log_dir", "out/log"]


def run(**flags):
    given = {**FLAGS, **flags}.items()
    return ["-u", "-m", "ernie_pair", "train", *(f"--{name}={value}" for name, value in given)]


@pytest.mark.parametrize("block, device, words", [
    (None, "cpu", []),
    ({"processes": 1}, "gpu", []),
    ({"processes": 2}, "cpu", [*LAUNCHER, "--nproc_per_node", "2"]),
    ({"gpus": "2,3"}, "gpu", [*LAUNCHER, "--gpus", "2,3"]),
    ({"gpus": "3"}, "gpu", [*LAUNCHER, "--gpus", "3"]),
    (
        {"processes": 4, "nnodes": 2, "master": "10.0.0.1:8090", "log_dir": "said"},
        "cpu",
        [*LAUNCHER[:3], "said", "--nproc_per_node", "4", "--nnodes", "2", "--master", "10.0.0.1:8090"],
    ),
])  # fmt: skip
def test_a_launch_file_becomes_launcher_arguments(folder, block, device, words):
    assert started(write(folder, block, device=device, epochs=5)) == [*words, *run(device=device, epochs=5)]


def test_flags_override_the_launch_file(folder):
    values = {"learning_rate": 1e-3, "batch_size": 8, "label_map": "0=no,1=yes", "bucket": False}
    file = write(folder, {"processes": 2}, device="cpu", **values)
    words = started(file, "--learning-rate", "0.01", "--processes=3", "--bucket")
    assert words[:6] == [*LAUNCHER, "--nproc_per_node", "3"]
    config = parse_config(TrainConfig, words[words.index("train") + 1 :])
    assert (config.label_map, config.batch_size, config.bucket) == ("0=no,1=yes", 8, True)
    assert [word for word in words if "rate" in word] == ["--learning_rate=0.01"] and "--bucket=true" in words


def test_evaluate_and_predict_can_be_launched(folder):
    flags = {"model_path": "model", "input_file": "dev.tsv", "output_file": "o", "device": "cpu"}
    for command in ("evaluate", "predict"):
        block = {"command": command, "processes": 2}
        (folder / "ask.yaml").write_text(yaml.safe_dump({"launch": block, **flags}))
        words = started("ask.yaml")
        assert words[3] == "log" and words[8:10] == ["ernie_pair", command] and "--model_path=model" in words
        assert started("ask.yaml", "--command", "predict", "--processes=1")[3] == "predict"


def test_a_pair_of_texts_is_passed_as_two_arguments(folder):
    words = ["--model_path", "model", "--device", "cpu", "--processes", "2"]
    given = read_launch(["predict", "--pair", "今天 天气", "b=c", *words])[1]
    assert parse_config(PredictConfig, given).pair == ["今天 天气", "b=c"]
    (folder / "ask.yaml").write_text(yaml.safe_dump({"launch": {"command": "predict"}, "pair": ["a", "7"]}))
    assert parse_config(PredictConfig, read_launch(["ask.yaml", *words])[1]).pair == ["a", "7"]


def test_the_vectors_of_a_file_are_launched():
    words = ["embed", "--model_path=model", "--input_file=t.txt", "--output_dir=vectors"]
    logs = ["-m", "ernie_pair.launcher", "--log_dir", "log"]
    assert started(*words, "--gpus=0,1", "--device=gpu")[:6] == [*logs, "--gpus", "0,1"]
    assert started(*words, "--processes=2", "--device=cpu")[:6] == [*logs, "--nproc_per_node", "2"]
    with pytest.raises(InputError, match="device gpu:1 with several processes: name a GPU for each"):
        read_launch([*words, "--gpus=0,1", "--device=gpu:1"])


PRETRAIN = ["--model_name_or_path=model", "--input_dir=data", "--output_dir=out"]


@pytest.mark.parametrize("asked, launcher, groups", [
    (["--device=cpu"], [], 1),
    (["--processes=4", "--device=cpu"], [*LAUNCHER, "--nproc_per_node", "4"], 4),
    (["--nproc_per_node", "4", "--device=cpu"], [*LAUNCHER, "--nproc_per_node", "4"], 4),
    (["--nproc-per-node=4", "--device=cpu"], [*LAUNCHER, "--nproc_per_node", "4"], 4),
    (["--gpus=0,1", "--device=gpu", "--sharding_degree=2"], [*LAUNCHER, "--gpus", "0,1"], 1),
    (
        ["--gpus=0,1", "--nnodes=2", "--master=10.0.0.1:6170", "--device=gpu", "--sharding_degree=2"],
        [*LAUNCHER, "--gpus", "0,1", "--nnodes", "2", "--master", "10.0.0.1:6170"],
        2,
    ),
    (["--processes=2", "--dp_degree=1", "--sharding_degree=2", "--device=cpu"], None, 1),
])  # fmt: skip
def test_pretraining_is_launched_without_a_file(asked, launcher, groups):
    words = started("pretrain", *PRETRAIN, *asked)
    assert launcher is None or words[: len(launcher)] == launcher
    place = words.index("ernie_pair")
    assert words[place - 2 : place + 2] == ["-u", "-m", "ernie_pair", "pretrain"]
    assert parse_config(PretrainConfig, words[place + 2 :]).dp_degree == groups


def test_training_and_pretraining_start_with_or_without_a_file(folder):
    flags = dict(word[2:].split("=") for word in PRETRAIN)
    block = {"command": "pretrain", "processes": 2}
    (folder / "pretrain.yaml").write_text(yaml.safe_dump({"launch": block, **flags, "device": "cpu"}))
    words = started("pretrain.yaml", "--max_steps=7")
    assert words[4:6] == ["--nproc_per_node", "2"] and {"--dp_degree=2", "--max_steps=7"} < set(words)
    flags = [*(f"--{name}={value}" for name, value in FLAGS.items()), "--device=cpu"]
    assert started("train", *flags) == [*run()[:4], *flags]


ON_GPU = {"device": "gpu"}
SCRIPT = "import sys\nprint(sys.argv)\n"
REFUSED = [  # launch:, other flags of the file, words, what is named
    ({"proceses": 2}, {}, [], "pair.yaml:2: proceses is not a flag; did you mean --processes?"),
    ({}, {"epoch": 2}, [], "pair.yaml:6: epoch is not a flag; did you mean --epochs?"),
    ({}, {"file": "x"}, [], "pair.yaml:6: file"),
    ({}, {"epochs": [1]}, [], "pair.yaml:6: epochs"),
    ({"processes": None}, {}, [], "pair.yaml:2: processes"),
    ({"processes": "two"}, {}, [], "pair.yaml:2: processes"),
    ({}, {"epochs": 0}, [], "--epochs 0"),
    ({}, {}, ["--epoch=2"], "did you mean --epochs?"),
    ({}, {"epochs": "many"}, [], "pair.yaml:6: epochs"),
    ({"gpus": "0"}, {"device": "cpu"}, [], "--gpus 0 and --device cpu"),
    ({"gpus": "0,1", "processes": 3}, ON_GPU, [], "--gpus 0,1 and --processes 3"),
    ({"processes": 2}, ON_GPU, [], "name a GPU for each"),
    ({"nnodes": 2}, {"device": "cpu"}, [], "--master"),
    ({"command": "sing"}, {}, [], "pair.yaml:2: command takes one of train, distill"),
]


@pytest.mark.parametrize("block, flags, words, named", REFUSED)
def test_launch_errors_are_reported_before_anything_starts(folder, monkeypatch, block, flags, words, named):
    monkeypatch.setattr(launching.os, "execve", None)
    with pytest.raises(InputError) as caught:
        launch([write(folder, block, **flags), *words])
    assert named in caught.value.message


@pytest.mark.parametrize("words, reason", [
    ([], "give a file or one of train, "),
    (["--epochs=3"], "epochs stands before the file or command to start, where only flags of launch"),
    (["--num_processes", "2", "my.py"], "did you mean processes"),
    (["--processes", "2"], "give a file or one of train, .*, or a script of your own"),
    (["mine", "--train_file=a"], "neither a command of launch nor a file; give one of train, .* a Python"),
    (["predikt"], "predikt is neither a command of launch nor a file; give one of train"),
    (["absent.yaml"], "absent.yaml is neither .* nor a file; .*, a file that ernie-pair config has"),
    (["absent.py", "--lr", "1"], "absent.py is neither .* nor a file; give .*, or a Python script"),
    (["model"], "model is a folder; give one of"),
    (["--command=pretrain", "my.py"], "a command.*, and my.py is a script; leave it out"),
    (["--config=train.yaml", "my.py"], "a command.*, and my.py is a script; leave it out"),
])  # fmt: skip
def test_a_missing_or_unknown_launch_target_is_an_error(folder, words, reason):
    (folder / "my.py").write_text(SCRIPT)
    with pytest.raises(InputError, match=reason):
        launch(words)
    for text in ("#!/bin/sh\nexec python my.py --lr 1\n", "一句话。", "[1, 2\n", "\0"):
        (folder / "my").write_text(text)
        with pytest.raises(InputError, match="my is neither a Python script nor a YAML file of flags; name"):
            launch(["my", "--lr", "1"])


def script_words(*words):
    """The command that would be run for a script, without the interpreter."""
    config, run = read_script(words)
    return [word for word in wrap_in_launcher(config, run) if word not in (sys.executable, RUN_MODULE)]


def test_words_behind_a_script_are_its_own(folder):
    (folder / "my.py").write_text(SCRIPT)
    own = ["my.py", "--gpus", "7", "--help", "--", "-x", "--processes=9"]
    assert script_words(*own) == ["-u", *own]
    launcher = ["-m", "ernie_pair.launcher", "--log_dir", "log"]
    assert script_words("--nproc_per_node", "2", *own) == [*launcher, "--nproc_per_node", "2", "-u", *own]
    assert script_words("--gpus=0,1", *own) == [*launcher, "--gpus", "0,1", "-u", *own]
    words = ["--nnodes", "2", "--master", "10.0.0.1:8090", "--processes=2", "--log_dir=mine", "my.py"]
    assert script_words(*words)[3:9] == ["mine", "--nproc_per_node", "2", "--nnodes", "2", "--master"]


def test_flags_of_launch_may_stand_before_a_command_or_a_file(folder):
    file = write(folder, {"processes": 3}, device="cpu")
    assert started("--processes", "2", file) == started(file, "--processes=2")
    words = [*PRETRAIN, "--device=cpu"]
    assert started("--nproc-per-node=2", "pretrain", *words) == started("pretrain", "--processes=2", *words)


@pytest.mark.parametrize("name, text, is_one", [
    ("my.py", "max_steps: 1", True),
    ("my", f"#!/usr/bin/env python3\n{SCRIPT}(", True),
    ("my", SCRIPT, True),
    ("my", "max_steps: 1\nbatch_size: 2\n", False),
    ("my.txt", "# only a comment\n", False),
    ("my.yaml", SCRIPT, False),
])  # fmt: skip
def test_scripts_are_told_from_files_of_flags(folder, name, text, is_one):
    (folder / name).write_text(text)
    assert is_script(folder / name) is is_one


@pytest.mark.parametrize(
    "build, said",
    [("", "this Paddle is the CPU build and no NVIDIA driver"), ("12", "no NVIDIA driver is loaded")],
)
def test_gpus_without_a_gpu_blame_no_flag_that_is_not_given(monkeypatch, build, said):
    monkeypatch.setattr(gpu, "installed_build", lambda: Build("3.3.1", build, None))
    monkeypatch.setattr(gpu, "has_driver", lambda: False)
    flags = [f"--{name}={value}" for name, value in FLAGS.items()]
    with pytest.raises(InputError) as caught:
        launch(["train", "--gpus", "0,1", *flags])
    message = caught.value.message
    assert message.startswith("--gpus 0,1, but there is no GPU to use: ") and said in message
    assert message.endswith("or use the CPU: --processes 2 in its place") and "--device" not in message


def test_unused_gpus_are_hidden_from_the_launcher(folder, monkeypatch):
    config, _ = read_launch([write(folder, {"processes": 2}, device="cpu")])
    monkeypatch.setattr("ernie_pair.launch.launch.default_device", lambda: "cpu")
    assert launch_environment(config) == {}
    monkeypatch.setattr("ernie_pair.launch.launch.default_device", lambda: "gpu")
    assert launch_environment(config) == {"PADDLE_DISTRI_BACKEND": "gloo", "CUDA_VISIBLE_DEVICES": "-1,-1"}


def answer(monkeypatch, *answers, **settings):
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{answer}\n" for answer in answers)))
    write_launch_file(QuestionsConfig(**settings))


ON_CPU = ("cpu", "2", "", "8", "", "model", "ernie", "train.tsv", "dev.tsv", "")


def test_the_wizards_answers_make_a_launchable_file(folder, monkeypatch, capsys):
    answer(monkeypatch, *ON_CPU)
    assert yaml.safe_load((folder / "pair.yaml").read_text()) == {
        "launch": {"processes": 2, "nnodes": 1},
        "device": "cpu", "batch_size": 8, "gradient_accumulation_steps": 1,
        "model_name_or_path": "model", "model_type": "ernie",
        "train_file": "train.tsv", "dev_file": "dev.tsv", "output_dir": "output",
    }  # fmt: skip
    assert capsys.readouterr().out.endswith("pair.yaml is written; start it: ernie-pair launch pair.yaml\n")
    assert started("pair.yaml")[:2] == ["-m", "ernie_pair.launcher"]
    answer(monkeypatch, *ON_CPU, output_file="my pair.yaml")
    *_, command = capsys.readouterr().out.rstrip("\n").partition("start it: ")
    assert shlex.split(command) == ["ernie-pair", "launch", "my pair.yaml"]  # as a shell reads it


def test_the_wizard_asks_more_questions_for_gpus(folder, monkeypatch):
    words = ("gpu", "0, 1", "2", "10.0.0.1:8090", "float16", "32", "1", "stage2")
    answer(monkeypatch, *words, "ernie-gram-zh", "", "lcqmc", "", "out", output_file="gpus.yaml")
    read = yaml.safe_load((folder / "gpus.yaml").read_text())
    assert read["launch"] == {"gpus": "0,1", "nnodes": 2, "master": "10.0.0.1:8090"}
    assert (read["use_amp"], read["amp_dtype"]) == (True, "float16")
    assert (read["sharding"], read["model_type"]) == ("stage2", "ernie_gram")
    assert (read["train_file"], read["dev_file"], read["device"]) == ("lcqmc", "lcqmc", "gpu")
    words = started("gpus.yaml")
    assert words[4:10] == ["--gpus", "0,1", "--nnodes", "2", "--master", "10.0.0.1:8090"]


@pytest.mark.parametrize("place, wrong, reason", [
    (0, "tpu", "'tpu' is not one of cpu, gpu"),
    (1, "0", "'0' is not a whole number of 1 or more"),
    (2, "two", "'two' is not a whole number"),
    (5, "absent/model", "absent/model is not a folder"),
    (6, "gpt", "'gpt' is not one of ernie"),
    (7, "absent.tsv", "absent.tsv: no such file"),
    (7, "", "this question needs an answer"),
    (9, "dev.tsv", "dev.tsv is a file"),
])  # fmt: skip
def test_a_wrong_answer_from_a_pipe_is_an_error_at_once(folder, monkeypatch, place, wrong, reason):
    answers = list(ON_CPU)
    answers[place] = wrong
    with pytest.raises(InputError) as caught:
        answer(monkeypatch, *answers)
    assert reason in str(caught.value) and not (folder / "pair.yaml").exists()


def test_an_existing_file_is_kept_unless_overwrite_is_set(folder, monkeypatch):
    (folder / "pair.yaml").write_text("mine")
    with pytest.raises(InputError, match="pair.yaml exists; pass overwrite"):
        answer(monkeypatch, *ON_CPU)
    assert (folder / "pair.yaml").read_text() == "mine"
    answer(monkeypatch, *ON_CPU, overwrite=True)
    assert "train.tsv" in (folder / "pair.yaml").read_text()


def test_a_wrong_answer_on_a_terminal_is_asked_again(folder):
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "ernie_pair", "config"]
    asking = subprocess.Popen(words, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    os.write(ours, "".join(f"{answer}\n" for answer in ("tpu", *ON_CPU)).encode())
    said, errors = asking.communicate(timeout=60)
    assert asking.returncode == 0, errors
    assert "'tpu' is not one of cpu, gpu; answer with one of them" in said and said.count("cpu or gpu?") == 2
    assert yaml.safe_load((folder / "pair.yaml").read_text())["train_file"] == "train.tsv"


class Terminal(io.StringIO):
    """Answers as if they were typed."""

    def isatty(self):
        return True


def type_answers(monkeypatch, *answers):
    monkeypatch.setattr(sys, "stdin", Terminal("".join(f"{answer}\n" for answer in answers)))
    write_launch_file(QuestionsConfig())


def test_contradicting_answers_repeat_the_question_concerned(folder, monkeypatch, capsys):
    """The last question that the reason names; what was answered before it stays."""

    def check(words):
        if yaml.safe_load(Path(words[0]).read_text())["batch_size"] == 8:
            raise InputError("--batch_size 8 does not go with --device cpu; choose another")

    monkeypatch.setattr(wizard, "read_launch", check)
    type_answers(monkeypatch, *ON_CPU, "16")
    read = yaml.safe_load((folder / "pair.yaml").read_text())
    assert (read["batch_size"], read["train_file"], read["launch"]["processes"]) == (16, "train.tsv", 2)
    said = capsys.readouterr().out
    assert "  --batch_size 8 does not go with" in said and said.count("in one forward pass") == 2
    assert said.count("Training pairs") == said.count("cpu or gpu?") == 1
    with pytest.raises(InputError, match="batch_size=8 does not go"):
        answer(monkeypatch, *ON_CPU, "16", output_file="piped.yaml")
    assert not list(folder.glob("piped.yaml*"))

    def refuse(words):
        raise InputError("--seed 3 is odd; leave it out")

    monkeypatch.setattr(wizard, "read_launch", refuse)  # about no question: it ends
    (folder / "pair.yaml").unlink()
    with pytest.raises(InputError, match="seed=3 is odd"):
        type_answers(monkeypatch, *ON_CPU)
    assert not list(folder.glob("pair.yaml*"))


def test_answers_that_end_too_soon_are_an_error(folder, monkeypatch):
    with pytest.raises(InputError, match="the answers end before 'Training pairs"):
        answer(monkeypatch, *ON_CPU[:7])
    with pytest.raises(InputError, match="the answers end before 'How many micro-.*nothing is written"):
        type_answers(monkeypatch, *ON_CPU[:4])  # on a terminal it is no default
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="the questions: standard input is closed"):
        write_launch_file(QuestionsConfig())
    assert not list(folder.glob("pair.yaml*"))


SHORT = {"from_scratch": True, "model_type": "ernie", "max_steps": 2, "batch_size": 16, "device": "cpu"}


def test_one_process_starts_directly_and_passes_its_exit_code(folder):
    file = write(folder, {"processes": 1}, **SHORT)
    words = [sys.executable, "-m", "ernie_pair", "launch", file]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (folder / "out" / "checkpoints" / "step_00000002").is_dir()
    bad = subprocess.run([*words, "--train_file", "absent.tsv"], capture_output=True, text=True)
    assert bad.returncode == 2 and bad.stderr.splitlines()[-1].startswith("error: absent.tsv: no such file")


def test_a_signal_reaches_the_run(folder):
    file = write(folder, {"processes": 1}, **{**SHORT, "max_steps": 10**6, "logging_freq": 1})
    words = [sys.executable, "-m", "ernie_pair", "launch", file]
    environment = {**os.environ, "COLD": "1"}  # where `launch` becomes the run
    running = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment)
    for line in running.stderr:
        if re.search(r"train step +3/", line):
            running.send_signal(signal.SIGINT)
            break
    rest = running.communicate(timeout=60)[1]
    assert running.returncode == 130 and "stopped by SIGINT after step" in rest and ", saved" in rest
