"""Pretraining in dynamic graph: same losses and checkpoints as the static graph, and unsupported options."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from children import command
from pretrain_runs import (
    NO_DROPOUT,
    WEIGHTS,
    assert_close,
    assert_same_files,
    assert_same_losses,
    cut_after,
    run,
)
from tiny_pretrain import CHARACTERS, events, flags, has_bf16, needs_kernels, write_corpus, write_model

from ernie_pair import MaskFiller
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError
from ernie_pair.models.source import open_model
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.graph.dynamic_program import DynamicProgram, draw_static_init
from ernie_pair.pretraining.graph.model import ernie_config
from ernie_pair.pretraining.graph.program_state import LOSS_WEIGHTS

# The gradient of a key's bias is 0 but for rounding, which AdamW would turn into whole steps.
WITHOUT_NOISE = {**NO_DROPOUT, "adam_epsilon": 1e-6, "kernels": "plain"}
MERGED = {"global_batch_size": 8, "decay_steps": 6, "graph": "dynamic"}


@pytest.fixture(scope="module")
def world(module_path):
    model = write_model(module_path / "model")
    write_model(module_path / "gram", model_type="ernie_gram")
    write_corpus(module_path / "data", model)
    return module_path


def pretrain(world, output, model="model", **changes):
    run(flags(world / model, world / "data", world / output, **changes), changes.get("graph", "static"))
    return world / output


CASES = {
    "ernie, merged, clipped": {"global_batch_size": 8, "grad_clip": 0.1},
    "no head of the order": {"binary_head": "false", "grad_clip": 0},
    "ernie_gram": {"model": "gram"},
    "lamb": {"optimizer": "lamb"},
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
    settings.update(WITHOUT_NOISE, from_scratch="false", model=f"from {case}", max_lr=1e-3)
    one, other = (
        pretrain(world, f"{case} {graph}", graph=graph, **settings) for graph in ("static", "dynamic")
    )
    assert_same_losses(one, other)
    assert_close(one, other)


@pytest.mark.parametrize("model", ["model", "gram"])
def test_both_graphs_start_from_the_same_random_weights(world, model):
    """With a padded vocabulary."""
    settings = {**WITHOUT_NOISE, "max_steps": 2, "seed": 3}
    one, other = (
        pretrain(world, f"random {model} {graph}", model, graph=graph, **settings)
        for graph in ("static", "dynamic")
    )
    firsts = [events(output)[0] for output in (one, other)]
    assert firsts[0]["step"] == firsts[1]["step"] == 0
    assert firsts[1]["lm_loss"] == pytest.approx(firsts[0]["lm_loss"], rel=1e-5)
    assert_close(one, other)


DRAWN = {"ernie": "331acdfe6dd05c3a", "ernie_gram": "cb7e6b3804879cf7", "bert": "2bfa14c0742c5f4e"}


@pytest.mark.parametrize("family", DRAWN)
def test_random_weights_are_the_same_in_every_paddle(tmp_path, family):
    """To the last bit, with a head for n-grams."""
    source = open_model(str(write_model(tmp_path, model_type=family)), model_type=family, from_scratch=True)
    drawn = draw_static_init(ernie_config(source.spec, **NO_DROPOUT, num_ngrams=5), seed=3)
    digest = hashlib.sha256()
    for name in sorted(drawn):
        digest.update(name.encode() + drawn[name].tobytes())
    assert digest.hexdigest()[:16] == DRAWN[family]


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


def test_half_precision_on_a_cpu_names_the_kernels_instead(world):
    words = flags(world / "model", world / "data", world / "half", graph="dynamic", use_amp="true")
    with pytest.raises(InputError, match="needs a GPU: .*half products on a CPU: precision bf16"):
        run([*words, "--amp_dtype", "bfloat16"], "dynamic")
    assert not (world / "half").exists()


@pytest.mark.parametrize("words, is_dynamic", [([], 0), (["static"], 0), (["auto"], 0), (["dynamic"], 1)])
def test_auto_is_the_static_graph(world, words, is_dynamic):
    given = [*flags(world / "model", world / "data", world / "out"), *(f"--graph={word}" for word in words)]
    assert parse_config(PretrainConfig, given).is_dynamic == is_dynamic


@needs_kernels
def test_runs_on_fused_kernels_resume_bit_identically(world):
    """Dropout, recompute and two passes a step; bf16 where the processor has it."""
    settings = {**MERGED, "kernels": "fused", "use_recompute": "true", "warmup_rate": 0}
    settings["precision"] = "bf16" if has_bf16() else "fp32"
    fused = pretrain(world, "fused", **settings)
    cut_after(fused, world / "fused cut", 2)
    assert_same_files(fused, pretrain(world, "fused cut", **settings))
    plain = pretrain(world, "plain", **{**MERGED, "kernels": "plain", "warmup_rate": 0})
    assert events(plain)[0]["lm_loss"] == pytest.approx(events(fused)[0]["lm_loss"], rel=1e-3)
    assert events(plain)[1]["lm_loss"] != pytest.approx(events(fused)[1]["lm_loss"], rel=1e-5)


def test_skipped_steps_and_the_loss_scale_survive_a_resume(world, monkeypatch):
    """Step 2 has an infinite gradient; the learning rate of the steps after it is that of the step before."""
    settings = {**MERGED, "use_amp": "true", "amp_dtype": "float32", "init_loss_scaling": 8}
    run_pass, passes = DynamicProgram.run, []

    def poisoned(program, name, feed):
        passes.append(name) if name == program.main else None
        is_due = name == program.main and len(passes) == 3
        return run_pass(
            program, name, {**feed, LOSS_WEIGHTS: feed[LOSS_WEIGHTS] * np.inf} if is_due else feed
        )

    monkeypatch.setattr(DynamicProgram, "run", poisoned)
    whole = pretrain(world, "skipped", **settings)
    cut_after(whole, world / "skipped cut", 2)
    monkeypatch.undo()
    cut = pretrain(world, "skipped cut", **settings)
    assert_same_files(whole, cut)
    assert events(cut) == events(whole)
    train = [event for event in events(cut) if event["split"] == "train"]
    assert [event["skipped_updates"] for event in train] == [0, 1, 1, 1, 1, 1]
    assert [event["loss_scale"] for event in train] == [8, 4, 4, 4, 4, 4]
    assert train[2]["learning_rate"] == train[1]["learning_rate"] > train[3]["learning_rate"]
