"""The code of the tutorials: loops of plain Paddle, loops over parts, trainers and commands, on one task.

The scripts lie in tutorials/. All ways of one script have the same losses, in one process and in two.
"""

import re
from functools import cache

import afqmc_freeze
import numpy as np
import pytest
import tutorial_pieces
from launched import OURS, PADDLES, launch
from run_files import events
from tutorial_pieces import (
    CLASSIFIERS,
    DEV,
    SETTINGS,
    TRAIN,
    plain_losses,
    run_all,
    run_ways,
    write_classifier,
)

from ernie_pair import PairConfig, PairTokenizer, PairTrainer
from ernie_pair.__main__ import _run as run_here

pytestmark = [pytest.mark.recipes, pytest.mark.timeout(600)]

LAUNCHERS = {"ernie_gram_lcqmc": PADDLES, "mrpc_loop": OURS, "mrpc_trainer": PADDLES, "afqmc_freeze": OURS}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    @cache
    def folder_of(name):
        folder = tmp_path_factory.mktemp(name)
        for family in CLASSIFIERS:
            write_classifier(folder / family, family)
        afqmc_freeze.write_lines(folder)
        return folder

    return folder_of


@pytest.fixture(scope="module")
def one(place):
    return cache(lambda name: run_ways(name, place(name), 8))


@pytest.fixture(scope="module")
def two(place):
    @cache
    def by(launcher):
        # Plain Paddle knows its processes by the environment in which it was imported: they start cold.
        names = [name for name, its_launcher in LAUNCHERS.items() if its_launcher == launcher]
        folders = {name: place(name) for name in names}
        return launch(folders[names[0]], run_all, folders, 4, launcher=launcher, COLD="1")[0]

    return lambda name: by(LAUNCHERS[name])[name]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_all_ways_of_a_tutorial_have_the_same_losses(one, name):
    ways = one(name)
    losses = {way: found["losses"] for way, found in ways.items() if way != "subclass"}
    assert len(losses["paddle"]) == tutorial_pieces.EPOCHS * len(TRAIN) // 8
    assert len(set(losses["paddle"])) == len(losses["paddle"])
    for way, found in losses.items():
        if name == "mrpc_loop":  # the model's own loss is a mean over other sums
            np.testing.assert_allclose(found, losses["paddle"], rtol=0, atol=1e-6)
        else:
            assert found == losses["paddle"], way


@pytest.mark.parametrize("name", LAUNCHERS)
def test_two_launched_processes_have_the_losses_of_one(one, two, name):
    for way, found in two(name).items():
        np.testing.assert_allclose(found["losses"], one(name)[way]["losses"], rtol=0, atol=1e-6, err_msg=way)
        if "accuracy" in found:
            assert found["accuracy"] == one(name)[way]["accuracy"]


def test_evaluations_within_the_loop_are_those_of_the_trainer(one):
    ways = one("ernie_gram_lcqmc")
    steps = tutorial_pieces.EPOCHS * len(TRAIN) // 8 // SETTINGS["eval_freq"]
    for found in ways.values():
        np.testing.assert_allclose(found["evaluations"], ways["paddle"]["evaluations"], atol=1e-6)
        assert np.shape(found["evaluations"]) == (steps, 2)


def test_a_saved_layer_predicts_what_the_tutorials_file_says(place, one):
    ways = one("ernie_gram_lcqmc")
    answers = np.array(ways["paddle"]["answers"])
    np.testing.assert_allclose(ways["parts"]["answers"], answers, rtol=0, atol=1e-6)
    saved = place("ernie_gram_lcqmc") / "paddle_8_0"
    lines = (saved / "lcqmc.tsv").read_text().splitlines()
    classes = [f"{number}\t{found}" for number, found in enumerate(answers.argmax(axis=1))]
    assert lines == ["index\tprediction", *classes]
    assert {"vocab.txt", "model_state.pdparams"} <= {path.name for path in saved.iterdir()}


def test_the_tokenizer_has_the_ids_of_paddlenlps(place):
    from paddlenlp.transformers import BertTokenizer

    ours = PairTokenizer(place("mrpc_loop") / "bert")
    theirs = BertTokenizer.from_pretrained(str(place("mrpc_loop") / "bert"))
    for row in TRAIN[:8]:
        expected = theirs(row["sentence1"], row["sentence2"], max_seq_len=12)
        found = ours(text=row["sentence1"], text_pair=row["sentence2"], max_seq_len=12)
        assert found == {name: expected[name] for name in ("input_ids", "token_type_ids")}
        tokens = theirs.convert_ids_to_tokens(expected["input_ids"])
        assert ours.convert_ids_to_tokens(found["input_ids"]) == tokens


def test_settings_are_printed_with_their_values():
    printed = repr(PairConfig("test-trainer", epochs=5, batch_size=64, learning_rate=5e-5))
    assert {"output_dir='test-trainer'", "epochs=5", "batch_size=64", "learning_rate=5e-05"} <= set(
        re.split(r"[(,)] ?", printed)
    )


def test_the_trainer_measures_calls_back_and_predicts(one):
    found = one("mrpc_trainer")["trainer"]
    assert found["right"] == found["accuracy"] and len(found["right"]) == 1 + tutorial_pieces.EPOCHS
    assert found["dev_loss"] == pytest.approx(one("mrpc_trainer")["parts"]["dev_loss"], abs=1e-6)
    steps = [f"step {number}" for number in range(1, 13)]
    assert found["told"] == ["evaluation", *steps[:6], "evaluation", *steps[6:], "evaluation"]
    assert found["shapes"] == [[len(DEV), 2], [len(DEV)]]
    assert {"loss", "right", "f_one", "runtime", "samples_per_second"} <= set(found["metrics"])


def test_a_frozen_encoder_stays_and_the_best_epoch_is_kept(one):
    ways = one("afqmc_freeze")
    assert ways["trainer"]["frozen"]
    for way in ("paddle", "parts"):
        assert ways[way]["accuracy"] == ways["trainer"]["accuracy"]
        assert ways[way]["best"] == max(ways[way]["accuracy"])


def test_a_subclass_has_the_losses_of_a_plain_layer(one):
    found = one("afqmc_freeze")["subclass"]
    assert found["losses"] == found["plain_losses"]


def command_losses(folder, out, model, **flags):
    flags = {**SETTINGS, "batch_size": 8, "dropout": 0.0, "output_dir": folder / out, **flags}
    flags.update(
        model_name_or_path=folder / model, train_file=folder / "train.json", dev_file=folder / "dev.json"
    )
    run_here(["train", *(str(word) for name, value in flags.items() for word in (f"--{name}", value))])
    return [event["loss"] for event in events(folder / out, "train")]


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_the_command_has_the_losses_of_a_loop_of_paddle(place, family):
    folder = place("mrpc_trainer")
    config = PairConfig(str(folder / f"{family}_order"), batch_size=8, dropout=0.0, **SETTINGS)
    batches = PairTrainer(folder / family, config, TRAIN, DEV).get_train_dataloader()
    model = CLASSIFIERS[family][1].from_pretrained(str(folder / family))
    found = command_losses(folder, f"{family}_command", family)
    np.testing.assert_allclose(found, plain_losses(model, batches), rtol=0, atol=1e-6)


def test_the_command_trains_the_subclass_as_python_does(place, one):
    flags = {"model_class": "afqmc_freeze:FirstTokenClassifier", "freeze": "encoder"}
    found = command_losses(place("afqmc_freeze"), "command", "bert", **flags)
    assert found == one("afqmc_freeze")["subclass"]["losses"]
