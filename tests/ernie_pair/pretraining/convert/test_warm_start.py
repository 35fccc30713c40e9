"""What a pretraining takes over of given weights: heads of every kind, the rows of the program, the order."""

import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_pretrain import VOCAB, write_model

from ernie_pair.core.errors import CheckpointError
from ernie_pair.models.spec import read_spec
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.convert import warm_start
from ernie_pair.pretraining.convert.warm_start import (
    idle_parts,
    read_start,
    starts_with_order,
    warn_of_random_weights,
    with_order_head,
)
from ernie_pair.pretraining.graph.model import CLASSES, ernie_config

TOKENS, ORDER, POOLER, NGRAMS = "cls.predictions.", "cls.seq_relationship.", "ernie.pooler.", "cls.ngrams."
SIZE, PADDED = len(VOCAB), 56


class Source(SimpleNamespace):
    """A `ModelSource` whose ``arrays`` are in no file."""

    def read_weights(self):
        return self.arrays


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The spec, the parameters of a program, whose vocabulary is padded, and the arrays of a file."""
    folder = write_model(tmp_path_factory.mktemp("start") / "model")
    spec, rng = read_spec(folder / "config.json", folder / "vocab.txt"), np.random.default_rng(0)
    made = CLASSES["ernie"][1](ernie_config(spec)).state_dict()
    parameters = {
        name: SimpleNamespace(name=each.name, shape=[PADDED if n == SIZE else n for n in each.shape])
        for name, each in made.items()
    }
    first = {}
    for name, each in made.items():
        first.setdefault(each.name, (name, rng.normal(size=each.shape).astype(np.float32)))
    return spec, parameters, dict(first.values())


def source_of(spec, arrays, named=None, **changes):
    spec = replace(spec, config={**spec.config, "architectures": named and [named]})
    return Source(name="start", spec=spec, weights="w", is_hugging_face=False, arrays=arrays, **changes)


@pytest.mark.parametrize("named", [None, "ErnieForPretraining", "ErnieForMaskedLM"])
@pytest.mark.parametrize("parts", product((True, False), repeat=3), ids=str)
def test_what_is_there_is_taken_and_the_rest_is_said(model, named, parts, caplog):
    spec, parameters, arrays = model
    caplog.set_level("INFO")
    gone = [part for part, there in zip((TOKENS, ORDER, POOLER), parts) if not there]
    kept = {name: array for name, array in arrays.items() if not name.startswith(tuple(gone) or "-")}
    more = {"classifier.weight": np.ones(3, np.float32), f"{NGRAMS}x": np.ones(2, np.float32)}
    start = read_start(parameters, source_of(spec, {**kept, **more}, named))
    assert start.arrays.keys() == {parameters[name].name for name in kept}
    for name, array in kept.items():
        found = start.arrays[parameters[name].name]
        assert np.array_equal(found[: len(array)], array) and list(found.shape) == parameters[name].shape
        assert (found[len(array) :] == (-1e4 if name.endswith("bias") else 0)).all()
    learned = ORDER not in gone and named != "ErnieForMaskedLM"
    assert starts_with_order(source_of(spec, kept, named).spec, kept) is learned
    lacks = [ORDER] * (not learned) + [POOLER] * (POOLER in gone)
    assert list(start.lacks) == lacks
    assert start.has_lm_head is (TOKENS not in gone)
    new = sorted(name for name in parameters if parameters[name].name not in start.arrays)
    said = f"{len(new)} weights are not in the file and start random: {', '.join(new)}"
    assert (said in caplog.messages) == bool(new) and f"{NGRAMS}* of w belong to another" in caplog.text
    assert "1 weights are not used here and ignored: classifier.weight" in caplog.messages
    assert ("w has no head for masked tokens: a new one starts random" in caplog.messages) == (TOKENS in gone)


def test_a_part_of_the_encoder_may_not_be_missing(model):
    spec, parameters, arrays = model
    for name in arrays:
        rest = {other: array for other, array in arrays.items() if other != name}
        if name.startswith("cls."):
            assert parameters[name].name not in read_start(parameters, source_of(spec, rest)).arrays
        else:
            with pytest.raises(CheckpointError, match=f"1 missing: {name};"):
                read_start(parameters, source_of(spec, rest))


def test_rows_beyond_the_vocabulary_are_cut_off(model, caplog):
    spec, parameters, arrays = model
    caplog.set_level("INFO")
    padded = {
        name: np.concatenate([array, array[: PADDED - SIZE]]) if len(array) == SIZE else array
        for name, array in arrays.items()
    }
    start, wanted = (read_start(parameters, source_of(spec, each)) for each in (padded, arrays))
    assert all(np.array_equal(start.arrays[name], array) for name, array in wanted.arrays.items())
    assert caplog.text.count(f"w has more than {SIZE} vocabulary rows: the others are cut off") == 1


def test_a_head_for_the_order_is_known_by_every_name(model):
    spec, _, _ = model
    two, other = np.ones((spec.hidden_size, 2)), np.ones((spec.hidden_size, 3))
    for found, there in (
        ({"linear_15.w_0": two}, True),
        ({"linear_15.w_0": other}, False),
        ({"classifier.weight": two}, False),
        ({"next_sent_fc.w_0": other}, True),
        ({f"{ORDER}weight": other}, True),
        ({f"{TOKENS}weight": two, "linear_0.w_0": other}, False),
    ):
        assert starts_with_order(source_of(spec, found).spec, found) is there
        assert not starts_with_order(source_of(spec, found, "BertForMaskedLM").spec, found)


def test_tables_that_transformers_never_uses_are_idle(model):
    spec, _, _ = model
    tasks = "ernie.embeddings.task_type_embeddings."
    for is_theirs, uses_tasks in product((True, False), repeat=2):
        named = SimpleNamespace(is_hugging_face=is_theirs)
        named.spec = replace(spec, config={"use_task_id": uses_tasks})
        assert idle_parts(named) == ((tasks,) if is_theirs and not uses_tasks else ())


def config_of(folder, **changes):
    places = dict.fromkeys(("model_name_or_path", "input_dir"), str(folder))
    return PretrainConfig(**places, output_dir=str(folder), device="cpu", **changes)


def test_a_resumed_run_learns_the_order_as_it_did(model, tmp_path, monkeypatch, caplog):
    """The newest checkpoint that can be read says it, unless a flag does or the run starts afresh."""
    spec, _, arrays = model
    caplog.set_level("INFO")
    said = {}

    class Fake:
        def __init__(self, folder):
            if folder.name not in said:
                raise CheckpointError(f"{folder} is damaged")
            self.manifest = {"fingerprint": {"binary_head": said[folder.name]}}

    monkeypatch.setattr(warm_start, "Checkpoint", Fake)
    for number in (2, 10, 12):
        Path(tmp_path, "checkpoints", f"step_{number:08}").mkdir(parents=True)
    source, no_order = source_of(spec, arrays), source_of(spec, {"linear_0.w_0": np.ones(1)})
    scratch = Source(spec=spec, weights=None)
    said.update(step_00000010=False, step_00000002=True)
    for asked, given, learned, reason in (
        ({}, source, False, "as in the run so far"),
        ({"fresh_start": True}, source, True, "start: the start has a head for it; see --binary_head"),
        ({"fresh_start": True}, no_order, False, "start: the start has no head for it; see --binary_head"),
        ({"fresh_start": True}, scratch, True, "the start is random"),
        ({"binary_head": True}, source, True, "--binary_head"),
        ({"binary_head": False, "fresh_start": True}, source, False, "--binary_head"),
    ):
        assert with_order_head(config_of(tmp_path, **asked), given).binary_head is learned
        told = f"sentence order: {'learned' if learned else 'not learned'} ({reason})"
        assert caplog.messages[-1] == told
    said.update(step_00000010=None)
    assert with_order_head(config_of(tmp_path), scratch).binary_head is True
    assert with_order_head(config_of(tmp_path, decoder_masked_prob=0.5), scratch).binary_head is False


def test_a_first_loss_near_that_of_a_uniform_prediction_warns(model, caplog):
    chance = math.log(SIZE)
    for share, warns in ((0.89, False), (0.91, True), (1.5, True)):
        caplog.clear()
        warn_of_random_weights(share * chance, source_of(model[0], {}))
        assert (f"that of random weights (ln {SIZE} = {chance:.2f}): check" in caplog.text) is warns
