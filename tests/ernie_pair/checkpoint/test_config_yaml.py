"""config.yaml: its content, how it is read back, what a later start adds, and runs that start from it."""

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_pretrain
import yaml
from children import command, output_of
from run_files import files_of
from tiny_pair import train_config
from yaml import YAMLError

from ernie_pair import PairConfig, PairTrainer, TrainConfig, load_config
from ernie_pair.checkpoint import run_config as facts
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.checkpoint.run_config import CONFIG_YAML, git_state, keep_config, replace_config
from ernie_pair.checks.doctor import DoctorConfig
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.results import Results, read_own_config
from ernie_pair.deployment.export_config import ExportConfig
from ernie_pair.deployment.export_pair import export_pair
from ernie_pair.embeddings.embed_config import EmbedConfig, ExportEmbeddingConfig
from ernie_pair.evaluation.embeddings.embed import embed
from ernie_pair.evaluation.embeddings.export_embedding import export_embedding
from ernie_pair.evaluation.inference_model import InferenceModel
from ernie_pair.evaluation.predict_pair import predict_pair
from ernie_pair.launch.launch import read_launch
from ernie_pair.mining.mine_pairs import MineConfig, mine_pairs
from ernie_pair.models.commands import AverageConfig
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.convert.convert import ConvertConfig
from ernie_pair.retrieval import search_texts
from ernie_pair.retrieval.build_index import IndexConfig, make_index

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
    "model_name_or_path": "m", "input_dir": "5.0 a 7.0 b", "output_dir": "out",
    "phases": "16:3,32:3", "max_seq_len": 32, "max_steps": 6,
}  # fmt: skip


def config(**changes):
    return TrainConfig(**{**ODD, **changes})


def written(folder, given=None, command="train"):
    text = facts.text_of_config(facts.flags_of(given or config()), facts.about_now(command))
    (folder / CONFIG_YAML).write_text(text, encoding="utf-8")
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
    keep_config(folder, "train", given, step, identity={"run_id": run_id})
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


def test_a_flag_newer_than_the_file_is_no_change_at_its_default(tmp_path):
    path = keep(tmp_path, config(seed=TrainConfig.seed))
    path.write_text(before := re.sub("(?m)^seed: .*\n", "", path.read_text()))
    keep(tmp_path, config(seed=TrainConfig.seed), step=2)
    assert path.read_text() == before
    (change,) = read_own_config(keep(tmp_path, config(), step=4))["about"]["changes"]
    assert change["flags"] == {"seed": [TrainConfig.seed, config().seed]}


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
        replace_config(tmp_path, "compare models", config(seed=seed))
    assert load_config(TrainConfig, tmp_path / CONFIG_YAML).seed == 2


@pytest.mark.parametrize("text, message", [
    ("sed: 1", r":1: sed is not a flag"),
    ("seed: a", r":1: seed takes a whole number"),
    ("seed: 1\nabout: 3", r"flags\.yaml:2: about is not a flag"),  # it is ignored as a block alone
])  # fmt: skip
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


# --- what is made from the folder of a run must not depend on its config.yaml


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model").mkdir()
    for name in ("model.safetensors", "config.json", "README.md", CONFIG_YAML):
        (tmp_path / "model" / name).write_text("x")
    return tmp_path / "model"


FILES = {"input_file": "queries.txt", "output_file": "answers.jsonl"}
MAKERS = {
    "predict": lambda model, out: predict_pair(PredictConfig(model, "pairs.tsv", out / "predictions.tsv")),
    "export": lambda model, out: export_pair(ExportConfig(model, out / "out")),
    "index": lambda model, out: make_index(IndexConfig("t.txt", out / "out", embedding_model=model)),
    "index of vectors": lambda model, out: make_index(IndexConfig("t.txt", out / "out", vectors=model)),
    "search": lambda model, out: search_texts._results(
        search_texts.SearchConfig(index=out / "index", embedding_model=model, **FILES)
    ).are_done(),
    "embed": lambda model, out: embed(
        EmbedConfig(model_path=model, input_file="t.txt", output_dir=out / "out")
    ),
    "export of vectors": lambda model, out: export_embedding(ExportEmbeddingConfig(model, out / "out")),
    "mine": lambda model, out: mine_pairs(
        MineConfig("train.tsv", output_file=out / "new.tsv", embedding_model=model)
    ),
}


class Asked(Exception):
    """What a command would make its results of."""


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_files_that_only_describe_a_model_are_not_inputs(model, tmp_path, monkeypatch, make):
    def are_done(results):
        raise Asked(results.inputs)

    monkeypatch.setattr(Results, "are_done", are_done)
    with pytest.raises(Asked) as asked:
        make(model, tmp_path)
    names = {path.name for paths in asked.value.args[0].values() for path in paths}
    assert names == {"model.safetensors", "config.json"}


def test_the_model_hash_ignores_config_yaml(model):
    trained = SimpleNamespace(where=model, kernels=SimpleNamespace(name="plain"))
    before = InferenceModel.identity.fget(trained)
    (model / CONFIG_YAML).write_text("y")
    assert InferenceModel.identity.fget(trained) == before
    (model / "config.json").write_text("y")
    assert InferenceModel.identity.fget(trained) != before


# --- a run started from the config.yaml of another one


PYTHON = """
import sys
from ernie_pair import load_config
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.pretrain import pretrain

pretrain(load_config(PretrainConfig, sys.argv[1], output_dir=sys.argv[2]))
"""
FLAGS = {"max_steps": 5, "learning_rate": 3e-3, "eval_freq": 2, "checkpoint_steps": 2, "seed": 7}


@pytest.fixture(scope="module")
def trained(module_path):
    config = train_config(module_path, **FLAGS)
    train_pair(config)
    return module_path, config


def checkpoint_of(folder):
    return files_of((folder / "model_last").resolve())


def test_training_from_a_config_by_command_is_bit_identical(trained, tmp_path):
    folder, _ = trained
    again = tmp_path / "again"
    done = command("train", "--config", folder / "out" / CONFIG_YAML, "--output_dir", again)
    assert done.code == 0, done.told
    assert checkpoint_of(again) == checkpoint_of(folder / "out")
    assert files_of(again / "best") == files_of(folder / "out" / "best")


def test_training_from_a_config_in_python_is_bit_identical(trained, tmp_path):
    folder, _ = trained
    kept = load_config(TrainConfig, folder / "out" / CONFIG_YAML, output_dir=tmp_path / "again")
    config = PairConfig(**{item.name: getattr(kept, item.name) for item in fields(PairConfig)})
    trainer = PairTrainer(kept.model_name_or_path, config, kept.train_file, kept.dev_file)
    assert trainer.train().step == 5
    assert checkpoint_of(tmp_path / "again") == checkpoint_of(folder / "out")
    kept = load_config(PairConfig, tmp_path / "again" / CONFIG_YAML)  # written by Python: without file names
    assert (kept.seed, kept.learning_rate) == (7, 3e-3)


def test_pretraining_from_a_config_is_bit_identical(tmp_path):
    model = tiny_pretrain.write_model(tmp_path / "model")
    data = tiny_pretrain.write_corpus(tmp_path / "data", model)
    changes = {"max_steps": 4, "hidden_dropout_prob": 0.2, "save_steps": 2}
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    from_config = ("--config", first / CONFIG_YAML, "--output_dir", second)
    for words in (tiny_pretrain.flags(model, data, first, **changes), from_config):
        done = command("pretrain", *words)
        assert done.code == 0, done.told
    output_of("-c", PYTHON, first / CONFIG_YAML, third, WARM="1")
    weights = checkpoint_of(first)
    assert {"static_vars.safetensors", "state.json"} < weights.keys()
    assert checkpoint_of(second) == weights == checkpoint_of(third)
    assert files_of(second / "model_2") == files_of(first / "model_2")
    about = read_own_config(second / CONFIG_YAML)["about"]
    assert about["command"] == "pretrain" and about["layout"]["processes"] == 1
    assert "--output_dir" in about["command_line"]
    static = first / "model_last" / "static_vars"
    done = command("convert", "--static_model_path", static, "--output_dir", tmp_path / "dynamic")
    assert done.code == 0, done.told
    card = (first / "model_2" / "README.md").read_text(encoding="utf-8")
    assert "# A pretrained ERNIE model\n" in card.replace("Ernie", "ERNIE")
    assert "- learned: 2 of 4 steps of 4 samples\n" in card and "- initial weights: random, seed" in card
    assert "\nhidden_dropout_prob: 0.2\n" in card and "output_dir" not in card.partition("## Use")[0]
    assert f"| corpus | {data / 'text'} | 60 | " in card and "| lm_loss | " not in card
    card = (tmp_path / "dynamic" / "README.md").read_text(encoding="utf-8")
    assert "- trained: 4 steps of pretraining\n" in card and "\nmax_lr: 0.01\n" in card
    assert "| corpus | of the pretraining | not counted | " in card
    kept = load_config(ConvertConfig, tmp_path / "dynamic" / CONFIG_YAML)
    assert kept.static_model_path.endswith("static_vars")


def test_a_resumed_run_records_its_changes_in_its_config(trained):
    _, config = trained
    path = Path(config.output_dir, CONFIG_YAML)
    before = path.read_bytes()
    train_pair(config)
    assert path.read_bytes() == before
    train_pair(TrainConfig(**{**vars(config), "seed": 8, "allow_change": "seed", "keep_checkpoints": 4}))
    (change,) = read_own_config(path)["about"]["changes"]
    assert change["flags"] == {"keep_checkpoints": [config.keep_checkpoints, 4], "seed": [7, 8]}
    assert change["step"] == 5
    assert load_config(TrainConfig, path).seed == 7


def test_a_fresh_start_moves_its_config_aside_and_no_users_file(tmp_path):
    config = train_config(tmp_path, **{**FLAGS, "max_steps": 2})
    train_pair(config)
    out = tmp_path / "out"
    run_id = json.loads((out / "run.json").read_text())["run_id"]
    for name in ("config-notes.yaml", "config-7.yaml"):
        (out / name).write_text(f"the_good_one: {run_id}\n")
    before = (out / CONFIG_YAML).read_bytes()
    train_pair(TrainConfig(**{**vars(config), "fresh_start": True, "seed": 1}))
    (aside,) = out.glob("earlier-*")
    assert (aside / CONFIG_YAML).read_bytes() == before
    now = load_config(TrainConfig, out / CONFIG_YAML)
    assert (now.seed, now.fresh_start) == (1, False)
    assert {"config-notes.yaml", "config-7.yaml"} < {path.name for path in out.iterdir()}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), YAMLError("cannot represent")])
def test_a_failed_config_write_does_not_end_the_run(tmp_path, monkeypatch, capsys, error):
    def refuse(*arguments, **named):
        raise error

    monkeypatch.setattr("ernie_pair.training.trainer.keep_config", refuse)
    train_pair(train_config(tmp_path, **{**FLAGS, "max_steps": 2}))
    assert (tmp_path / "out" / "model_last" / MANIFEST).is_file()
    reason = getattr(error, "strerror", "cannot represent")
    assert f"config.yaml is not written ({reason})" in capsys.readouterr().err
