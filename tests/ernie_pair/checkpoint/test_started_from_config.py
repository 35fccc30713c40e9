"""A run started from the config.yaml of another one produces a bit-identical checkpoint."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
import tiny_pretrain
from children import output_of
from package_command import command
from run_files import files_of
from tiny_pair import train_config
from yaml import YAMLError

from data_tools.files.results import read_own_config
from ernie_pair import PairConfig, PairTrainer, TrainConfig, load_config
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.checkpoint.run_config import CONFIG_YAML
from ernie_pair.pair.train.train_pair import train_pair
from ernie_pair.pretrain.convert.convert import ConvertConfig

PYTHON = """
import sys
from ernie_pair import load_config
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.pretrain import pretrain

pretrain(load_config(PretrainConfig, sys.argv[1], output_dir=sys.argv[2]))
"""
FLAGS = {"max_steps": 5, "learning_rate": 3e-3, "eval_freq": 2, "checkpoint_steps": 2, "seed": 7}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    config = train_config(folder, **FLAGS)
    train_pair(config)
    return folder, config


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
    output_of("-c", PYTHON, first / CONFIG_YAML, third)
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

    monkeypatch.setattr("ernie_pair.train.run.keep_config", refuse)
    train_pair(train_config(tmp_path, **{**FLAGS, "max_steps": 2}))
    assert (tmp_path / "out" / "model_last" / MANIFEST).is_file()
    reason = getattr(error, "strerror", "cannot represent")
    assert f"config.yaml is not written ({reason})" in capsys.readouterr().err
