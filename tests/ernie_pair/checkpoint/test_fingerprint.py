"""Refusing checkpoints of other runs, with messages that name the flags a user passes."""

import logging
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
from tiny_pair import train_config

from ernie_pair.checkpoint.fingerprint import check_known_keys, check_same_run, flags_of, layout_of
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError
from ernie_pair.models.spec import parse_spec
from ernie_pair.pairs.config.pair_config import PairConfig, TrainConfig
from ernie_pair.pairs.train.train_pair import PairTask
from ernie_pair.pretraining import pretrain as of_pretraining
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.task import rules_of_task

OF_PAIRS = rules_of_task(TrainConfig)
NEEDED = ["--model_name_or_path", "m", "--input_dir", "d", "--output_dir", "o"]
SOURCE = SimpleNamespace(spec=parse_spec({"vocab_size": 9}))
DATA = SimpleNamespace(fingerprint="abc", tokenizer=SimpleNamespace(sha256="def"), ngrams=None)
RECIPE = ["--max_steps", "200000", "--decay_steps", "1980000", "--warmup_rate", "0.01"]


def pretraining(*words):
    config = parse_config(PretrainConfig, [*NEEDED, *words])
    return config, of_pretraining.fingerprint_of(config, SOURCE, DATA)


def compare(saved, config, given, *allowed):
    return check_same_run("out/step_5", saved, given, allowed, of_pretraining.rules_of_pretraining(config))


HASHES = {"train_file": "a", "dev_file": "b", "vocabulary": "c"}


def opened(task, spec=SOURCE.spec):
    """A task whose model and data are said to be open."""
    task.model, task.source = SimpleNamespace(pooling="cls", family="ernie_gram"), SimpleNamespace(spec=spec)
    task.data = SimpleNamespace(hashes=HASHES)
    return task


def pairs(tmp_path, steps=10, **changes):
    return opened(PairTask(train_config(tmp_path, **changes))).fingerprint(World(), steps)


def test_warmup_steps_must_match_the_saved_warmup():
    config, by_rate = pretraining("--max_steps", "1000", "--warmup_rate", "0.1")
    same, by_steps = pretraining("--max_steps", "1000", "--warmup_steps", "100")
    assert compare(by_rate, same, by_steps) == []
    other, longer = pretraining("--max_steps", "1000", "--warmup_steps", "200")
    with pytest.raises(InputError, match="was 100 and is now 200; pass warmup_steps=100"):
        compare(by_rate, other, longer)
    assert compare(by_rate, other, longer, "warmup_steps")[0]["new"] == 200


def test_a_changed_pair_training_schedule_is_another_run(tmp_path):
    before = {name: value for name, value in pairs(tmp_path).items() if name != "lr_scheduler_type"}
    assert check_same_run("out/step_5", before, pairs(tmp_path), (), OF_PAIRS) == []
    for change in ({"lr_scheduler_type": "constant"}, {"warmup_steps": 3}, {"warmup_rate": 0.2}):
        given = pairs(tmp_path, **change)
        with pytest.raises(InputError, match="is a checkpoint of another run"):
            check_same_run("out/step_5", before, given, (), OF_PAIRS)
        (allowed,) = change
        check_known_keys(given, [allowed])
        assert check_same_run("out/step_5", before, given, [allowed], OF_PAIRS)


def test_every_key_names_existing_flags(tmp_path):
    for config_class, keys in ((PretrainConfig, pretraining()[1]), (TrainConfig, pairs(tmp_path))):
        flags = {item.name for item in fields(config_class)}
        for key in keys:
            assert flags_of(key) and set(flags_of(key)) <= flags, key


def test_another_warm_up_is_refused_with_the_rate_that_keeps_it():
    _, saved = pretraining(*RECIPE[:-1], "0.099")
    config, given = pretraining(*RECIPE)
    with pytest.raises(InputError, match="warm-up steps .* was 19800 and is now 2000") as caught:
        compare(saved, config, given)
    assert "pass warmup_rate=0.099 to keep the 19800" in str(caught.value)
    assert "allow_change warmup_rate to continue" in str(caught.value)
    assert [change["new"] for change in compare(saved, config, given, "warmup_rate")] == [2000]


def test_changing_max_steps_names_the_flag_and_its_effects():
    _, saved = pretraining("--max_steps", "1000")
    config, given = pretraining("--max_steps", "2000")
    with pytest.raises(InputError, match=r"decay_steps \(0: max_steps\) was 1000 and is now 2000") as caught:
        compare(saved, config, given)
    assert "allow_change max_steps to continue" in str(caught.value)
    assert {change["key"] for change in compare(saved, config, given, "max_steps")} == {
        "decay_steps",
        "warm-up steps",
    }


def test_allow_change_accepts_flag_names_and_key_names():
    _, given = pretraining()
    check_known_keys(given, ["input_dir", "corpus", "max_steps", "max_lr"])
    with pytest.raises(InputError, match="allow_change max_step: there is no such key; use some of .*max_lr"):
        check_known_keys(given, ["max_step"])
    config, _ = pretraining()
    other = {**given, "corpus (--input_dir)": "xyz"}
    assert compare(given, config, other, "input_dir") == compare(given, config, other, "corpus")


def test_changing_the_number_of_epochs_names_the_flag(tmp_path, caplog):
    saved = pairs(tmp_path, epochs=3)
    with pytest.raises(InputError, match=r"steps in all \(epochs.* was 10 and is now 20") as caught:
        check_same_run("out", saved, pairs(tmp_path, 20, epochs=6), (), OF_PAIRS)
    assert "allow_change epochs to continue" in str(caught.value)
    with pytest.raises(InputError, match="allow_change max_steps to continue"):
        check_same_run("out", saved, pairs(tmp_path, 20, max_steps=20), (), OF_PAIRS)
    with caplog.at_level(logging.WARNING):
        assert check_same_run("out", saved, pairs(tmp_path, 20, epochs=6), ["epochs"], OF_PAIRS)
    assert "--allow_change: steps in all was 10, is now 20" in caplog.text


def test_a_finished_pair_run_can_continue_for_more_epochs(tmp_path, capsys):
    from ernie_pair.pairs.train.train_pair import train_pair

    config = train_config(tmp_path, epochs=1, checkpoint_steps=4, eval_freq=100)
    train_pair(config)
    with pytest.raises(InputError, match="allow_change epochs to continue"):
        train_pair(replace(config, epochs=2))
    train_pair(replace(config, epochs=2, allow_change="epochs"))
    told = "is 4.17e-6 at the last step, 12, is 2.5e-5 at the next step"
    assert told in capsys.readouterr().err
    assert (tmp_path / "out" / "model_last").resolve().name == "step_00000012"


def test_a_layout_names_the_processes():
    assert layout_of(PairConfig("out", device="gpu"), World(0, 2), "plain")["processes"] == 2
