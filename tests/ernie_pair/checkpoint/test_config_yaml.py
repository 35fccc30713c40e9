"""config.yaml: its content, how it is read back, and what a later start adds to it."""

import re
import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from data_tools.files.errors import InputError
from data_tools.files.results import read_own_config
from data_tools.options.cli import parse_config
from ernie_pair import TrainConfig, load_config
from ernie_pair.checkpoint import run_config as facts
from ernie_pair.checkpoint.run_config import CONFIG_YAML, git_state, keep_config, replace_config, write_config
from ernie_pair.checks.doctor import DoctorConfig
from ernie_pair.launch.launch_config import read_launch
from ernie_pair.models.commands import AverageConfig
from ernie_pair.pair.config.ask_config import PredictConfig
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig

ODD = {
    "model_name_or_path": "a: b #c",
    "train_file": "数据/训练.tsv",
    "dev_file": "null",
    "output_dir": "out 'here'",
    "label_map": "0=different,1=same",
    "learning_rate": 3.3333333333333335e-05,
    "warmup_steps": 7,
    "max_steps": 12,
    "to_static": "auto",
    "greater_is_better": None,
    "bucket": False,
    "text_a": '- \t\\ "',
    "seed": 2**31 - 1,
}
PRETRAINING = {
    **{"model_name_or_path": "m", "input_dir": "5.0 a 7.0 b", "output_dir": "out"},
    **{"phases": "16:3,32:3", "max_seq_len": 32, "max_steps": 6},
}


def config(**changes):
    return TrainConfig(**{**ODD, **changes})


def written(folder, given=None, command="train"):
    write_config(folder, command, given or config())
    return folder / CONFIG_YAML


def test_every_flag_and_what_it_is_about_is_written(tmp_path, monkeypatch):
    content = yaml.safe_load(written(tmp_path).read_text(encoding="utf-8"))
    assert list(content) == [*(item.name for item in fields(TrainConfig)), "about"]
    assert content["learning_rate"] == 3.3333333333333335e-05
    assert content["train_file"] == "数据/训练.tsv"
    monkeypatch.setattr(sys, "argv", ["/somewhere/ernie_pair/__main__.py", "train", "--text_a", "a b"])
    about = read_own_config(written(tmp_path))["about"]
    assert about["command"] == "train"
    assert about["command_line"] == "ernie-pair train --text_a 'a b'"
    assert {"python", "numpy", "paddlenlp", "ernie-pair"} <= about["versions"].keys()
    assert about["machine"]["cores"] >= 1 and about["machine"]["processor"]
    assert {"date", "folder"} <= about.keys()


@pytest.mark.parametrize(
    "given",
    [config(), PretrainConfig(**PRETRAINING), AverageConfig(["a", "b: c", "null"], "mean"), DoctorConfig()],
    ids=lambda given: type(given).__name__,
)
def test_a_written_config_is_read_back_unchanged(tmp_path, given):
    path = written(tmp_path, given)
    assert parse_config(type(given), [f"--config={path}"]) == given
    assert load_config(type(given), path) == given


def test_flags_and_arguments_override_the_file(tmp_path):
    path = written(tmp_path)
    assert parse_config(TrainConfig, ["--config", str(path), "--output_dir", "b"]) == config(output_dir="b")
    assert load_config(TrainConfig, path, output_dir="b", seed=1) == config(output_dir="b", seed=1)
    path = written(tmp_path, AverageConfig(["a", "b"], "mean"))
    assert parse_config(AverageConfig, ["c", "d", f"--config={path}"]).checkpoints == ["c", "d"]
    given = config(fresh_start=True, allow_change="seed")
    read = load_config(TrainConfig, written(tmp_path, given))
    assert (read.fresh_start, read.allow_change) == (False, "")


@pytest.mark.parametrize("command, program", [("train", "predict"), ("convert --to hf", "convert")])
def test_the_config_of_another_command_is_refused(tmp_path, command, program):
    path = written(tmp_path, command=command)
    fault = f"config.yaml is the configuration of `ernie-pair {command}`, not of `ernie-pair {program}`; give"
    with pytest.raises(InputError, match=fault):
        parse_config(PredictConfig, [f"--config={path}"], f"ernie-pair {program}")


def test_the_config_of_another_command_is_refused_whatever_else(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("about:\n  ? [a, b]\n  : 1\n  command: train\nepochs: 2\n")
    with pytest.raises(InputError, match="is the configuration of `ernie-pair train`, not of"):
        parse_config(PredictConfig, [f"--config={path}"], "ernie-pair predict")
    path = written(tmp_path, PretrainConfig(**PRETRAINING), "pretrain")
    theirs = "is the configuration of `ernie-pair pretrain`, not of `ernie-pair launch"
    with pytest.raises(InputError, match=f"{theirs} --command train`; give it to the first, or write"):
        read_launch([str(path)])
    with pytest.raises(InputError, match=f"{theirs} train`; give it to the first, or write"):
        read_launch(["train", f"--config={path}"])
    path = written(tmp_path)
    path.write_text(f"sed: 1\n{path.read_text()}")
    with pytest.raises(InputError, match=r":1: sed is not a flag; did you mean seed\?"):
        parse_config(TrainConfig, [f"--config={path}"], "ernie-pair train")


def test_gpu_names_come_from_the_driver(tmp_path, monkeypatch):
    (tmp_path / "0000:18:00.0").mkdir()
    (tmp_path / "0000:18:00.0" / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")
    monkeypatch.setattr(facts, "GPUS", tmp_path)
    assert facts.machine()["gpus"] == ["NVIDIA H200"]
    monkeypatch.setattr(facts, "GPUS", tmp_path / "none")
    assert "gpus" not in facts.machine()


def git(folder, *words):
    settings = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(
        ["git", *settings, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_git_state_reports_commit_and_changes_and_runs_no_hook(tmp_path, monkeypatch):
    assert git_state(tmp_path) == {}
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) == {}  # nothing was committed yet
    (tmp_path / "a").write_text("a")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "a")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "untracked").write_text("b")
    monitor = tmp_path / "monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {tmp_path}/was_run\n")
    monitor.chmod(0o755)
    git(tmp_path, "config", "core.fsmonitor", str(monitor))
    assert git_state(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "a").write_text("changed")
    assert git_state(tmp_path) == {"commit": commit, "dirty": True}
    assert not (tmp_path / "was_run").exists()
    monkeypatch.setenv("PATH", str(tmp_path))  # a missing git is no error
    assert git_state(tmp_path) == {}


def keep(folder, given, step=0, run_id="ab12"):
    keep_config(folder, "train", given, step, known_by={"run_id": run_id})
    return folder / CONFIG_YAML


def test_a_changed_flag_is_recorded_once_and_a_same_one_never(tmp_path):
    before = keep(tmp_path, config()).read_bytes()
    assert keep(tmp_path, config(fresh_start=False), step=4).read_bytes() == before
    path = keep(tmp_path, config(seed=3), step=4)
    assert load_config(TrainConfig, path) == config()  # the flags stay those of the first start
    (change,) = read_own_config(path)["about"]["changes"]
    assert (change["step"], change["flags"]) == (4, {"seed": [2**31 - 1, 3]})
    before = path.read_bytes()
    assert keep(tmp_path, config(seed=3), step=6).read_bytes() == before
    keep(tmp_path, config(), step=8)
    assert [one["step"] for one in read_own_config(path)["about"]["changes"]] == [4, 8]
    path.write_text(re.sub("(?m)^output_dir: .*\n", "", path.read_text()))
    *_, change = read_own_config(keep(tmp_path, config(), step=9))["about"]["changes"]
    assert change["flags"] == {"output_dir": [None, config().output_dir]}


def test_a_changed_version_is_recorded(tmp_path, monkeypatch):
    keep(tmp_path, config())
    monkeypatch.setattr(facts, "__version__", "9.9")
    monkeypatch.setattr("ernie_pair.checkpoint.run_config.versions", lambda: {"ernie-pair": "9.9"})
    (change,) = read_own_config(keep(tmp_path, config(), step=2))["about"]["changes"]
    assert change["versions"]["ernie-pair"][1] == "9.9" and "flags" not in change


@pytest.mark.parametrize("content", ["seed: 1\n", "about: {made_by: me}\n", "- a\n", "a: [\n", "\x00", ""])
def test_a_config_yaml_of_the_user_is_kept(tmp_path, caplog, content):
    (tmp_path / CONFIG_YAML).write_text(content)
    keep(tmp_path, config())
    keep(tmp_path, config(), step=2)
    assert (tmp_path / CONFIG_YAML).read_text() == content
    assert load_config(TrainConfig, tmp_path / "config-2.yaml") == config()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config-2.yaml", CONFIG_YAML]
    assert caplog.text.count("does not belong to this run and stays") == 1


def test_another_runs_config_and_a_symlink_are_left_alone(tmp_path):
    before = keep(tmp_path, config()).read_bytes()
    keep(tmp_path, config(seed=1), run_id="cd34")
    assert (tmp_path / CONFIG_YAML).read_bytes() == before
    assert load_config(TrainConfig, tmp_path / "config-2.yaml").seed == 1
    target = (tmp_path / CONFIG_YAML).rename(tmp_path / "target.yaml")
    before = target.read_bytes()
    (tmp_path / CONFIG_YAML).symlink_to(target)
    keep(tmp_path, config())
    assert target.read_bytes() == before and (tmp_path / CONFIG_YAML).is_symlink()


def test_replaced_results_have_the_current_flags(tmp_path):
    for seed in (1, 2):
        replace_config(tmp_path, "compare-models", config(seed=seed))
    assert load_config(TrainConfig, tmp_path / CONFIG_YAML).seed == 2


@pytest.mark.parametrize(
    "text, message",
    [
        ("sed: 1", r":1: sed is not a flag"),
        ("seed: a", r":1: seed takes a whole number"),
        ("seed: 1\nabout: 3", r"flags\.yaml:2: about is not a flag"),  # it is ignored as a block alone
    ],
)
def test_the_error_names_the_wrong_line(tmp_path, text, message):
    path = tmp_path / "flags.yaml"
    path.write_text(f"{text}\n")
    with pytest.raises(InputError, match=message):
        load_config(TrainConfig, path)


def test_launch_accepts_a_config_and_logs_a_dry_run_elsewhere(tmp_path):
    path = written(tmp_path, TrainConfig(**{**ODD, "device": "cpu"}))
    launch, words = read_launch([str(path), "--processes", "2", "--output_dir", "b"])
    assert launch.processes == 2 and launch.log_dir == "b/log"
    assert parse_config(TrainConfig, words) == config(output_dir="b", device="cpu")
    words = [str(written(tmp_path, config(device="cpu"))), "--processes", "2", "--dry_run"]
    assert Path(read_launch(words)[0].log_dir).parent == Path(tempfile.gettempdir())
    assert read_launch([*words, "--log_dir", "mine"])[0].log_dir == "mine"
