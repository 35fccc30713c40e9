"""Pretraining in dynamic graph: same losses and checkpoints as the static graph, and unsupported options."""

import json
import shutil

import pytest
from package_command import command
from pretrain_runs import (
    NO_DROPOUT,
    WEIGHTS,
    assert_close,
    assert_same_files,
    assert_same_losses,
    cut_after,
    run,
)
from tiny_pretrain import CHARACTERS, events, flags, write_corpus, write_model

from data_tools.files.errors import InputError
from data_tools.options.cli import parse_config
from ernie_pair import MaskFiller
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig

MERGED = {"global_batch_size": 8, "decay_steps": 6, "graph": "dynamic"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dynamic")
    model = write_model(folder / "model")
    write_model(folder / "gram", model_type="ernie_gram")
    write_corpus(folder / "data", model)
    return folder


def pretrain(world, output, model="model", **changes):
    run(flags(world / model, world / "data", world / output, **changes), changes.get("graph", "static"))
    return world / output


CASES = {
    "ernie, merged": {"global_batch_size": 8},
    "no head of the order": {"binary_head": "false", "grad_clip": 0},
    "ernie_gram": {"model": "gram"},
    "lamb": {"optimizer": "lamb", "adam_epsilon": 1e-6},
}


@pytest.mark.parametrize("case", CASES)
def test_losses_match_the_static_graph(world, case):
    """From the same weights, over several steps and the evaluations between them."""
    settings = dict(CASES[case])
    model = settings.pop("model", "model")
    start = pretrain(world, f"start of {case}", model, max_steps=1, graph="dynamic", **NO_DROPOUT)
    (world / f"from {case}").mkdir()
    for name in ("config.json", "vocab.txt", WEIGHTS):
        shutil.copy(start / "model_last" / name, world / f"from {case}")
    settings.update(NO_DROPOUT, from_scratch="false", model=f"from {case}", max_lr=1e-3, kernels="plain")
    one, other = (
        pretrain(world, f"{case} {graph}", graph=graph, **settings) for graph in ("static", "dynamic")
    )
    assert_same_losses(one, other)
    assert_close(one, other)


@pytest.mark.parametrize("model", ["model", "gram"])
def test_both_graphs_start_from_the_same_random_weights(world, model):
    """With a padded vocabulary."""
    settings = {**NO_DROPOUT, "kernels": "plain", "max_steps": 2, "seed": 3}
    one, other = (
        pretrain(world, f"random {model} {graph}", model, graph=graph, **settings)
        for graph in ("static", "dynamic")
    )
    firsts = [events(output)[0] for output in (one, other)]
    assert firsts[0]["step"] == firsts[1]["step"] == 0
    assert firsts[1]["lm_loss"] == pytest.approx(firsts[0]["lm_loss"], rel=1e-5)
    assert_close(one, other)


def test_resuming_a_dynamic_run_is_bit_identical(world):
    """With dropout, several micro-batches per step, and a padded vocabulary."""
    whole = pretrain(world, "whole", **MERGED)
    cut_after(whole, world / "cut", 2)
    cut = pretrain(world, "cut", **MERGED)
    assert_same_files(whole, cut)
    assert events(cut) == events(whole)


@pytest.mark.parametrize("first, second", [("static", "dynamic"), ("dynamic", "static")])
def test_a_run_of_one_graph_resumes_in_the_other(world, first, second):
    settings = {**NO_DROPOUT, "decay_steps": 6, "warmup_rate": 0, "max_lr": 1e-3, "kernels": "plain"}
    whole = pretrain(world, f"all {first}", graph=first, **settings)
    pretrain(world, f"from {first}", graph=first, max_steps=4, **settings)
    crossed = pretrain(world, f"from {first}", graph=second, **settings)
    manifests = (json.loads((o / "model_last" / "MANIFEST.json").read_text()) for o in (whole, crossed))
    assert [manifest["topology"].get("graph", "static") for manifest in manifests] == [first, second]
    assert_close(whole, crossed)


def test_pair_training_and_fill_mask_load_its_output(world, tmp_path):
    """Without conversion: from the run's folder, and from the model that it exports."""
    pretrain(world, tmp_path / "out", graph="dynamic", save_steps=6)
    rows = [f"{CHARACTERS[i:i + 3]}\t{CHARACTERS[i:i + 4]}\t{i % 2}" for i in range(8)]
    (tmp_path / "pairs.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    for name in ("out", "out/model_6"):
        (slot,) = MaskFiller(str(tmp_path / name), "cpu").fill("天地[MASK]黄")
        assert len(slot.fillings) == 5
        words = {"model_name_or_path": tmp_path / name, "output_dir": tmp_path / f"pair {name[4:]}"}
        words.update(train_file=tmp_path / "pairs.tsv", dev_file=tmp_path / "pairs.tsv", device="cpu")
        words.update(max_steps=1, batch_size=4, max_seq_len=16)
        done = command("train", *(word for key, value in words.items() for word in (f"--{key}", value)))
        assert done.code == 0, done.told


@pytest.mark.parametrize(
    "changes",
    [
        {"sharding_degree": 2},
        {"dp_degree": 2},
        {"use_amp": "true"},
        {"use_recompute": "true"},
        {"on_nan": "skip"},
        {"fused_ops": "attention"},
    ],
    ids=str,
)
def test_static_graph_options_are_refused(world, changes):
    given = flags(world / "model", world / "data", world / "out", graph="dynamic", **changes)
    with pytest.raises(InputError, match="dynamic does not support") as caught:
        parse_config(PretrainConfig, given)
    assert next(iter(changes)) in str(caught.value) and "\n" not in str(caught.value)


def test_requested_fused_kernels_are_refused(world):
    given = flags(world / "model", world / "data", world / "fused", graph="dynamic", kernels="fused")
    done = command("pretrain", *given)
    assert done.code == 2 and "ops of the static graph; use --kernels auto" in done.told
