"""Every layout of pretraining in the dynamic graph matches one process, over gloo on the CPU."""

from functools import partial

import numpy as np
import pretrain_layouts
import pytest
from pretrain_layouts import ALONE, DROPOUTS, GLOBAL_BATCH, SCALED, UPDATES, check_skipping, equal
from tiny_pretrain import has_bf16, needs_kernels, write_corpus, write_model

pytestmark = pytest.mark.ranks

BOUND = 2e-6
COMPARED = ("loss", "lm_loss", "sop_loss", "ngram_loss", "decoder_loss", "gradient_norm")
SHARDED = {"dp_degree": 1, "sharding_degree": 2}
FLAGS = {"max_lr": 1e-3, "adam_epsilon": 1e-6, "graph": "dynamic", "kernels": "plain"}
results_of = partial(pretrain_layouts.launch_layouts, **FLAGS)
largest_difference = partial(pretrain_layouts.largest_difference, curves=COMPARED)


@pytest.fixture(scope="module")
def folder(module_path):
    write_corpus(module_path / "data", write_model(module_path / "model", hidden_act="gelu"))
    return module_path


def layouts_of(processes, **changes):
    """{name: flags}: data parallel, sharded and their mesh, each in one pass a step and in several."""
    layouts = {}
    for degree in (degree for degree in (1, 2, 4) if processes % degree == 0):
        for merge in (1, 2):
            layouts[f"dp{processes // degree}-sharding{degree}-merge{merge}"] = {
                "dp_degree": processes // degree,
                "sharding_degree": degree,
                "micro_batch_size": GLOBAL_BATCH // processes // merge,
                **changes,
            }
    return layouts


@pytest.fixture(scope="module")
def reference(folder):
    return results_of(folder, 1, {"one": ALONE})["one"][0]


MORE = {
    "read together": {"dp_degree": 2, "micro_batch_size": 4, "sync_freq": 100},
    "recompute": {**SHARDED, "micro_batch_size": 4, "use_recompute": True},
    "loss scale": {"dp_degree": 2, "micro_batch_size": 8, **SCALED},
    "skipping": {**SHARDED, "micro_batch_size": 8, "on_nan": "skip"},
}


@pytest.mark.parametrize("processes", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_layout_gives_the_numbers_of_one_process(folder, reference, processes):
    results = results_of(folder, processes, {**layouts_of(processes), **(MORE if processes == 2 else {})})
    assert largest_difference(results, reference) < BOUND
    moved = reference["weights_after"]
    assert len(set(moved.tolist())) == UPDATES
    if processes == 2:  # a rank of two has a part of the state, in plain data parallelism all of it
        whole, parts = reference["parts"], [rank["parts"] for rank in results["dp1-sharding2-merge1"]]
        assert sum(parts) == whole == results["dp2-sharding1-merge1"][1]["parts"] and min(parts) > whole / 4


ON_TWO = {"dp_degree": 2, "micro_batch_size": 4}
FUSED = {
    1: {"alone": ALONE, "recompute, scale": {**ALONE, "use_recompute": True, **SCALED}},
    2: {"dp2-merge2": ON_TWO, "sharding2": {**SHARDED, "micro_batch_size": 8}},
}


@needs_kernels
def test_the_fused_kernels_match_the_plain_kernels(folder, reference):
    """Embeddings, layers, and AdamW in one call; fp32 to 1e-5, bf16 to 2e-4 of the loss."""
    results = {}
    for processes, layouts in FUSED.items():
        results.update(results_of(folder, processes, layouts, kernels="fused"))
    for ranks in results.values():
        assert ranks[0]["kernels"].startswith("fused kernels") and "by Paddle" not in ranks[0]["kernels"]
    assert largest_difference(results, reference) < 1e-5
    if has_bf16():
        (half,) = results_of(folder, 1, {"bf16": ALONE}, precision="bf16", kernels="auto")["bf16"]
        assert "products in bf16" in half["kernels"] and not np.array_equal(half["loss"], reference["loss"])
        np.testing.assert_allclose(half["loss"], reference["loss"], rtol=2e-4)


OTHERS = {
    "lamb": {"optimizer": "lamb"},  # which divides by the norms of whole parameters
    "no head of the order": {"binary_head": False, "grad_clip": 0.1},
    "clips nothing": {"grad_clip": 0},
    "n-grams": {"ngram_lexicon": "ngrams.txt"},
    "RetroMAE": {"decoder_masked_prob": 0.5, "binary_head": False},
}


@pytest.fixture(scope="module")
def others(folder):
    """{name: (the arrays of one process, {layout: those of each of two})}, from one start of each."""
    # Their numbers vary from rank to rank, as those of tokens.
    flags = {**OTHERS, "n-grams": {"ngram_lexicon": pretrain_layouts.write_ngrams(folder)}}
    merged = {key: layout for key, layout in layouts_of(2).items() if "merge2" in key}
    one = results_of(folder, 1, {name: {**ALONE, **flags[name]} for name in flags})
    two = results_of(
        folder, 2, {f"{name}/{key}": {**merged[key], **flags[name]} for name in flags for key in merged}
    )
    return {name: (one[name][0], {key: two[f"{name}/{key}"] for key in merged}) for name in flags}


@pytest.mark.parametrize("name", OTHERS)
def test_layouts_match_with_other_heads_and_optimizers(others, name):
    (one, two), settings = others[name], OTHERS[name]
    assert largest_difference(two, one) < BOUND
    assert ("gradient_norm" in one) == ("grad_clip" not in settings or settings["grad_clip"] > 0)
    assert ("sop_loss" in one) == settings.get("binary_head", True)
    assert ("ngram_loss" in one) == ("ngram_lexicon" in settings)
    assert ("decoder_loss" in one) == ("decoder_masked_prob" in settings)


@pytest.mark.slow
def test_phases_with_different_micro_batches_match_one_process(folder):
    """2 steps of short samples, then 3 of long ones, in another number of passes."""
    one = results_of(folder, 1, {"one": {**ALONE, "phases": "16:2,32:3"}})["one"][0]
    phases = {"phases": "16:2:8,32:3:2", "micro_batch_size": 8}
    layouts = {"dp": {"dp_degree": 2, **phases}, "sharded": {**SHARDED, **phases}}
    assert largest_difference(results_of(folder, 2, layouts), one) < BOUND


@pytest.mark.parametrize("kernels", ["plain", pytest.param("fused", marks=needs_kernels)])
def test_an_infinite_gradient_skips_only_its_own_update(folder, kernels):
    """Of one rank, in a pass that is not the last."""
    check_skipping(results_of, folder, 2, {**SHARDED, "micro_batch_size": 4}, kernels=kernels)


def test_dropout_is_reproducible_and_recompute_repeats_it(folder):
    """With recompute, whose second pass draws what the first drew, and without it."""
    layouts = {"plain": ON_TWO, "recompute": {**ON_TWO, "use_recompute": True}}
    first, again = (results_of(folder, 2, layouts, **dict.fromkeys(DROPOUTS, 0.1)) for _ in "ab")
    for name in layouts:
        assert equal(first[name][0], first[name][1]) and equal(first[name][0], again[name][0])
    assert equal(first["plain"][0], first["recompute"][0])
