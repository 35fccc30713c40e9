"""Pretraining that continues from a published BERT: its heads, its epsilon, and what is written."""

import json

import numpy as np
import paddle
import pytest
from children import command
from paddlenlp.transformers import BertForMaskedLM
from pretrain_runs import NO_DROPOUT, arrays, assert_same_files, assert_same_losses, cut_after, run
from tiny_models import EPSILON, HEADS, ORDER, POOLER, write_bert
from tiny_pretrain import events, flags, write_corpus, write_model

from ernie_pair.models.source import open_model
from ernie_pair.pretraining.mlm.fill_mask import load_pretrained

# What is given, and what the names of its weights begin with that are left out.
STARTS = {"masked": (True, (ORDER, POOLER)), "both": (True, ()), "encoder": (False, (HEADS,))}


@pytest.fixture(scope="module")
def world(module_path):
    """The starts: {name: folder}, the corpus, and a folder for the runs."""
    starts = {name: write_bert(module_path / name, out, theirs) for name, (theirs, out) in STARTS.items()}
    write_corpus(module_path / "data", starts["masked"])
    return module_path, starts


@pytest.fixture(scope="module")
def masked(world):
    """A finished run from a BERT for masked tokens, in the static graph, with dropout."""
    return pretrain(world, "masked", "whole", max_steps=6, save_steps=6)


def words_of(world, start, output, **changes):
    folder, starts = world
    given = {"from_scratch": "false", "max_lr": 1e-3, **changes}
    return flags(starts.get(start, start), folder / "data", folder / output, **given)


def pretrain(world, start, output, **changes):
    run(words_of(world, start, output, **changes), changes.get("graph", "static"))
    return world[0] / output


def begin_with(names, *parts):
    return [name for name in names if name.startswith(parts)]


@pytest.mark.parametrize("start", STARTS)
def test_both_graphs_compute_the_same_losses(world, start):
    """The static one by the fused kernels where they are built, so they use the epsilon of config.json."""
    outputs = [
        pretrain(world, start, f"{start} {graph}", graph=graph, **NO_DROPOUT)
        for graph in ("static", "dynamic")
    ]
    assert_same_losses(*outputs, rel=1e-4)
    assert all(("sop_loss" in event) == (start == "both") for event in events(outputs[0]))


def test_the_result_has_the_heads_and_the_epsilon_of_its_start(masked):
    """No head of the order that neither was there nor was trained, in a checkpoint and in a model of it."""
    assert not begin_with(arrays(masked), ORDER, POOLER)
    for folder in (masked / "model_6", masked / "model_last"):
        settings = json.loads((folder / "config.json").read_text())
        assert settings["architectures"] == ["BertForMaskedLM"] and settings["model_type"] == "bert"
        assert settings["layer_norm_eps"] == EPSILON
    ids = np.random.default_rng(0).integers(4, 50, (3, 12))
    peer = BertForMaskedLM.from_pretrained(str(masked / "model_6"))
    peer.eval()
    logits = peer(paddle.to_tensor(ids)).numpy()
    for folder in (masked / "model_6", masked):
        ours = load_pretrained(open_model(str(folder), model_type=""))
        assert np.abs(ours(paddle.to_tensor(ids))[0].numpy() - logits).max() < 1e-5


def test_a_static_checkpoint_without_pooler_is_converted(world, masked):
    output = world[0] / "converted"
    done = command(
        "convert", "--static_model_path", masked / "model_last" / "static_vars", "--output_dir", output
    )
    assert done.code == 0, done.told
    differences = json.loads((output / "conversion.json").read_text())["largest_difference"]
    assert set(differences) == {"sequence_output", "lm_logits"}


def test_a_classifier_and_another_run_start_from_the_result(world, masked, tmp_path):
    said = command("pretrain", *words_of(world, masked / "model_6", "again", max_steps=1, eval_freq=1)).told
    assert "from the weights" in said and "sentence order: not learned" in said
    (tmp_path / "pairs.tsv").write_text("天地\t玄黄\t1\n天地\t洪荒\t0\n" * 2)
    pairs = {"train_file": tmp_path / "pairs.tsv", "dev_file": tmp_path / "pairs.tsv"}
    more = {"output_dir": tmp_path / "out", "max_seq_len": 16, "epochs": 1, "batch_size": 2, "device": "cpu"}
    given = {"model_name_or_path": masked / "model_6", **pairs, **more}
    done = command("train", *(word for name, value in given.items() for word in (f"--{name}", value)))
    assert done.code == 0 and "the pooler is new and random" in done.told, done.told


def test_a_resumed_run_is_bit_identical(world, masked):
    cut_after(masked, world[0] / "cut", 4)
    assert_same_files(pretrain(world, "masked", "cut", max_steps=6, save_steps=6), masked)


def test_an_explicit_flag_overrides_what_the_start_has(world):
    """And the run that began with it goes on with it, where the flag is left out later."""
    flags_of_both = {"graph": "dynamic", "decay_steps": 4}
    asked = pretrain(world, "masked", "asked", binary_head="true", max_steps=2, **flags_of_both)
    pretrain(world, "masked", "asked", max_steps=4, **flags_of_both)
    assert len(begin_with(arrays(asked), ORDER, POOLER)) == 4
    settings = json.loads((asked / "model_last" / "config.json").read_text())
    assert settings["architectures"] == ["BertForPretraining"]
    assert len(events(asked, "train")) == 4 and all(event["sop_loss"] > 0 for event in events(asked))
    refused = pretrain(world, "both", "refused", graph="dynamic", binary_head="false", max_steps=2)
    before, after = open_model(str(world[1]["both"]), model_type="").read_weights(), arrays(refused)
    kept = begin_with(after, ORDER, POOLER)
    assert len(kept) == 4 and all(np.array_equal(before[name], after[name]) for name in kept)


def test_a_bert_starts_from_random_weights_of_its_own_range(world, tmp_path):
    """The static program draws with initializer_range, and the dynamic graph starts with the same weights."""
    write_model(tmp_path / "new", model_type="bert", hidden_act="gelu", initializer_range=0.01)
    still = {"from_scratch": "true", "max_steps": 1, "max_lr": 1e-12, "min_lr": 0, "eval_freq": 1}
    static, dynamic = (
        arrays(pretrain(world, tmp_path / "new", f"random {graph}", graph=graph, **still))
        for graph in ("static", "dynamic")
    )
    assert static.keys() == dynamic.keys() and len(begin_with(static, ORDER)) == 2
    assert all(np.allclose(static[name], dynamic[name], atol=1e-9) for name in static)
    words = static["bert.embeddings.word_embeddings.weight"]
    assert 0.005 < words.std() < 0.011 and abs(words).max() <= 0.02 + 1e-6
