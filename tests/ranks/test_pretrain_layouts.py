"""Every layout of pretraining matches one process, static graph over gloo on the CPU."""

from functools import partial
from itertools import product

import numpy as np
import pretrain_layouts
import pytest
from pretrain_layouts import ALONE, DROPOUTS, GLOBAL_BATCH, SCALED, equal, largest_difference, weights_of
from tiny_pretrain import has_bf16, level_here, needs_kernels, write_corpus, write_model

from ernie_pair.runtime.cpu import LEVEL_ASKED

pytestmark = pytest.mark.ranks

BOUND = 2e-5  # float32 rounding, magnified by AdamW's division in the first updates
results_of = partial(pretrain_layouts.launch_layouts, max_lr=0.01)


def layouts_of(processes, merges=(1, 2, 4)):
    """{name: flags}: data parallel, sharding and their meshes, with gradient merge and recompute."""
    layouts = {}
    degrees = [degree for degree in (1, 2, 4) if processes % degree == 0]
    for degree, merge, recompute in product(degrees, merges, (False, True)):
        name = f"dp{processes // degree}-sharding{degree}-merge{merge}" + "-recompute" * recompute
        layouts[name] = {
            "dp_degree": processes // degree,
            "sharding_degree": degree,
            "use_sharding": degree > 1,
            "micro_batch_size": GLOBAL_BATCH // processes // merge,
            "use_recompute": recompute,
        }
    together = {"dp_degree": processes, "micro_batch_size": GLOBAL_BATCH // processes // 2}
    layouts["read together"] = {**together, "sync_freq": 100}
    return layouts


def chosen(*names):
    return {name: layouts_of(2)[name] for name in names}


@pytest.fixture(scope="module")
def folder(module_path):
    write_corpus(module_path / "data", write_model(module_path / "model", hidden_act="gelu"))
    return module_path


# Each is compared with the plain kernels; AMP in float32 casts nothing.
FUSED = {
    "fused": {"kernels": "fused"},
    "fused, recompute": {"kernels": "fused", "use_recompute": True},
    "fused, merge": {"kernels": "fused", "micro_batch_size": GLOBAL_BATCH // 2},
    "fused, amp": {"kernels": "fused", **SCALED},
    "bf16": {"precision": "bf16"},
    "bf16, recompute, merge": {"precision": "bf16", "use_recompute": True, "micro_batch_size": 4},
}
ZERO_GRADIENT = "k_proj.bias"  # mathematically zero; AdamW turns its rounding errors into full steps


@needs_kernels
def test_the_fused_kernels_match_the_plain_kernels(folder):
    """fp32 to 1e-5 of the loss, bf16 to 2e-4, and the weights after five steps of AdamW."""
    fused = {name: flags for name, flags in FUSED.items() if has_bf16() or "bf16" not in name}
    layouts = {name: {**ALONE, **flags} for name, flags in {"plain": {"kernels": "plain"}, **fused}.items()}
    results = {name: ranks[0] for name, ranks in results_of(folder, 1, layouts).items()}
    plain = results.pop("plain")
    assert "--kernels plain" in plain["kernels"]
    compared = [key for key in weights_of(plain) if ZERO_GRADIENT not in key]
    for name, result in results.items():
        is_bf16 = "bf16" in name
        assert result["kernels"].startswith("fused kernels") and is_bf16 == ("in bf16" in result["kernels"])
        for curve, bound in (("loss", 2e-4), ("gradient_norm", 1e-3)):
            np.testing.assert_allclose(result[curve], plain[curve], rtol=bound if is_bf16 else 1e-5)
        differences = [np.abs(result[key] - plain[key]) for key in compared]
        if is_bf16:  # the sign of a gradient near 0 depends on rounding, and AdamW follows it
            assert np.concatenate(differences, axis=None).mean() < 0.02 * plain["learning_rate"].sum(), name
        else:
            assert max(map(np.max, differences)) < BOUND, name
    assert np.array_equal(results["fused"]["loss"], results["fused, amp"]["loss"])


UNLIKE = [("avx512_bf16", "none"), pytest.param(("avx512", "avx2"), marks=pytest.mark.slow)]


@needs_kernels
@pytest.mark.parametrize("levels", UNLIKE, ids="-".join)
def test_all_processes_fall_back_to_the_same_kernels(folder, levels):
    if levels[1] == "avx2" and level_here() == "avx2":
        pytest.skip("this processor has one level alone")
    ((first, second),) = results_of(folder, 2, chosen("dp2-sharding1-merge1"), levels=levels).values()
    reason = "another process of this run cannot use"
    assert reason in first["kernels"]
    assert (LEVEL_ASKED if levels[1] == "none" else reason) in second["kernels"]
    assert all(np.array_equal(first[key], second[key]) for key in weights_of(first))


@pytest.fixture(scope="module")
def reference(folder):
    return results_of(folder, 1, {"one": ALONE})["one"][0]


SLOW = [pytest.param(processes, (1, 2, 4), marks=pytest.mark.slow) for processes in (1, 2, 4)]


@pytest.mark.parametrize("processes, merges", [(2, (2,)), *SLOW])
def test_every_layout_gives_the_weights_of_one_process(folder, reference, processes, merges):
    results = results_of(folder, processes, layouts_of(processes, merges))
    assert largest_difference(results, reference) < BOUND
    assert np.abs(reference["ernie.embeddings.word_embeddings.weight"]).max() > 100 * BOUND


def one_and_scaled(folder, **settings):
    results = results_of(folder, 1, {"one": ALONE, "scaled": {**ALONE, **SCALED}}, **settings)
    one = results.pop("one")[0]
    assert largest_difference(results, one) < BOUND
    return one


@pytest.mark.slow
def test_every_layout_matches_one_process_with_lamb(folder):
    """LAMB divides by the norms of whole parameters, whichever rank holds their state."""
    settings = {"optimizer": "lamb", "adam_epsilon": 1e-6}
    layouts = layouts_of(2, merges=(1, 2))
    one = one_and_scaled(folder, **settings)
    assert largest_difference(results_of(folder, 2, layouts, **settings), one) < BOUND


@pytest.mark.slow
def test_every_layout_matches_one_process_with_ngram_masking(folder):
    """The numbers of n-grams and tokens vary from rank to rank; the loss is a mean over all of them."""
    settings = {"ngram_lexicon": pretrain_layouts.write_ngrams(folder)}
    one = one_and_scaled(folder, **settings)
    assert one["cls.ngrams.weight"].shape[0] == 13
    results = results_of(folder, 2, layouts_of(2, merges=(1, 2)), **settings)
    assert largest_difference(results, one) < BOUND
    for first, second in results.values():
        np.testing.assert_allclose(first["ngram_loss"], one["ngram_loss"], rtol=1e-4)
        np.testing.assert_allclose(second["lm_loss"], one["lm_loss"], rtol=1e-4)


@pytest.mark.slow
def test_lamb_skips_an_update_with_infinite_gradients(folder):
    layouts = chosen("dp1-sharding2-merge1", "dp2-sharding1-merge2")
    flags = {"optimizer": "lamb", "on_nan": "skip", "infinite": [2]}
    poisoned = {name: {**layout, **flags} for name, layout in layouts.items()}
    for ranks in results_of(folder, 2, poisoned).values():
        assert ranks[0]["skipped_updates"].tolist() == [0, 1, 1, 1, 1]
        after = ranks[0]["weights_after"]
        assert after[1] == after[0] != after[2] and np.isfinite(after).all()


def assert_same_results(one, other):
    for name in one:
        assert all(map(equal, one[name], other[name])), name


@pytest.mark.slow
def test_dropout_is_reproducible_for_the_same_seed_and_layout(folder):
    layouts = chosen("dp1-sharding2-merge2", "dp1-sharding2-merge2-recompute")
    assert_same_results(*(results_of(folder, 2, layouts, **dict.fromkeys(DROPOUTS, 0.1)) for _ in "ab"))


@pytest.mark.parametrize(
    "processes, name",
    [pytest.param(1, "dp1-sharding1-merge2", marks=pytest.mark.slow), (2, "dp1-sharding2-merge2")],
)
def test_an_infinite_gradient_skips_only_its_own_update(folder, processes, name):
    """Real dynamic loss scaling on the CPU."""
    pretrain_layouts.check_skipping(results_of, folder, processes, layouts_of(processes)[name])


@pytest.mark.slow
def test_phases_with_different_micro_batches_match_one_process(folder):
    """Gradient merge changes between the phases: 2 steps of short samples, then 3 of long ones."""
    one = results_of(folder, 1, {"one": {**ALONE, "phases": "16:2,32:3"}})["one"][0]
    degrees = {"dp_degree": 2}, {"dp_degree": 1, "sharding_degree": 2, "use_sharding": True}
    layouts = {
        f"{flags}, {phases}": {**flags, "micro_batch_size": 8, "phases": phases}
        for flags in degrees
        for phases in ("16:2:8,32:3:2", "16:2:4,32:3:8")
    }
    assert largest_difference(results_of(folder, 2, layouts), one) < BOUND
