"""Every layout of pretraining in the dynamic graph matches one process, over gloo on the CPU."""

import numpy as np
import pytest
from launched import launch
from tiny_pretrain import has_bf16, needs_kernels, write_corpus, write_model

from data_tools.build_ngrams import NgramsConfig, build_ngrams
from data_tools.text.wordpiece import WordPiece
from ernie_pair.models.source import open_model
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.data import open_pretrain_data
from ernie_pair.pretraining.graph.program_state import LOSS_WEIGHTS
from ernie_pair.pretraining.pretrain import build_job
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import launched_world

pytestmark = pytest.mark.ranks

GLOBAL_BATCH, UPDATES = 16, 5
BOUND = 2e-6
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
COMPARED = ("loss", "lm_loss", "sop_loss", "ngram_loss", "decoder_loss", "gradient_norm")
ALONE = {"micro_batch_size": GLOBAL_BATCH}
SHARDED = {"dp_degree": 1, "sharding_degree": 2}
SCALED = {"use_amp": True, "amp_dtype": "float32", "init_loss_scaling": 8.0, "incr_every_n_steps": 3}


def run_layout(config, world, source, infinite):
    """The weights and the metrics of every update, float64 [updates]; ``kernels``: the path in words.

    "weights_after" is a sum over all weights after each update, "parts" how many variables of the optimizer
    this rank has. In the ``infinite`` updates the first pass of the first rank has an infinite gradient.
    """
    data = open_pretrain_data(config, world, WordPiece.from_file(source.vocab_file), source.spec)
    job, _ = build_job(config, world, world, source, data)
    run, poisoned = job.program.run, []

    def run_once(program, feed):
        if poisoned and world.is_first:
            poisoned.clear()
            feed = {**feed, LOSS_WEIGHTS: feed[LOSS_WEIGHTS] * np.inf}
        run(program, feed)

    job.program.run = run_once
    metrics, sums = [], []
    for step, batches in enumerate(data.updates(0), start=1):
        poisoned.extend([step] if step in infinite else [])
        metrics.append(dict(job.step(batches, step, StopSignals())))
        sums.append(sum(float(np.abs(array).sum(dtype=np.float64)) for array in job.weights().values()))
    curves = {name: np.array([values[name] for values in metrics]) for name in metrics[0]}
    about = {"kernels": job.program.kernels.describe(), "parts": len(job.program.update.owned)}
    return {**curves, **about, "weights_after": np.array(sums), **job.weights()}


def run_layouts(flags, layouts):
    """What `run_layout` returns for each; with its flags a layout may have the ``infinite`` updates."""
    world, results = launched_world(), {}
    source = open_model(flags["model_name_or_path"], model_type="ernie", from_scratch=True)
    for name, layout in layouts.items():
        infinite, config = layout.get("infinite", ()), {**flags, **layout}
        config.pop("infinite", None)
        results[name] = run_layout(PretrainConfig(**config), world, source, infinite)
    return results


@pytest.fixture(scope="module")
def folder(module_path):
    write_corpus(module_path / "data", write_model(module_path / "model", hidden_act="gelu"))
    return module_path


def results_of(folder, processes, layouts, **changes):
    """{name: [the final arrays of each rank]}, all layouts in one launch."""
    flags = {
        **{"model_name_or_path": str(folder / "model"), "input_dir": str(folder / "data")},
        **{"output_dir": str(folder / "out"), "global_batch_size": GLOBAL_BATCH, "max_steps": UPDATES},
        **{"split": "80,10,10", "max_seq_len": 32, "max_lr": 1e-3, "adam_epsilon": 1e-6, "num_workers": 0},
        **{**dict.fromkeys(DROPOUTS, 0), "device": "cpu", "graph": "dynamic", "kernels": "plain", **changes},
    }
    ranks = launch(folder, run_layouts, flags, layouts, processes=processes)
    return {name: [rank[name] for rank in ranks] for name in layouts}


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


def weights_of(arrays):
    return [key for key in arrays if "." in key]


def equal(one, other):
    return all(np.array_equal(one[key], other[key]) for key in one if key != "parts")


def largest_difference(results, reference):
    """The largest difference of a weight or loss; the ranks of a layout must be bit-identical."""
    differences = {}
    for name, ranks in results.items():
        assert all(equal(other, ranks[0]) for other in ranks[1:]), f"{name}: ranks differ"
        compared = [*weights_of(reference), *(key for key in COMPARED if key in reference)]
        differences[name] = max(np.abs(ranks[0][key] - reference[key]).max() for key in compared)
    print("".join(f"\n{name:<36}{difference:.1e}" for name, difference in differences.items()))
    return max(differences.values())


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
    paths = {"input_path": folder / "data", "vocab_file": folder / "model" / "vocab.txt"}
    paths["output_file"] = folder / "ngrams.txt"
    build_ngrams(NgramsConfig(**{key: str(path) for key, path in paths.items()}, sizes="9 4"))
    flags = {**OTHERS, "n-grams": {"ngram_lexicon": str(paths["output_file"])}}
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
    """Of one rank, in a pass that is not the last; the learning rate goes on from there."""
    rates = {"max_steps": 9, "decay_steps": 9, "warmup_rate": 0.5, "kernels": kernels}
    layout = {**SHARDED, "micro_batch_size": 4, **rates}
    layouts = {
        "plain": {**layout, "max_steps": 8},
        "scaled": {**layout, **SCALED, "infinite": [2]},
        "skipping": {**layout, "on_nan": "skip", "infinite": [2]},
    }
    plain, scaled, skipping = (ranks[0] for ranks in results_of(folder, 2, layouts).values())
    for run in (scaled, skipping):
        assert run["skipped_updates"].tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1]
        assert run["weights_after"][1] == run["weights_after"][0] != run["weights_after"][2]
        assert run["learning_rate"][2:].tolist() == plain["learning_rate"][1:].tolist()
    assert scaled["loss_scale"].tolist() == [8, 4, 4, 4, 8, 8, 8, 16, 16]
    assert skipping["loss_scale"].tolist() == [1] * 9
    assert all(np.array_equal(scaled[key], skipping[key]) for key in weights_of(scaled))


def test_dropout_is_reproducible_and_recompute_repeats_it(folder):
    """With recompute, whose second pass draws what the first drew, and without it."""
    layouts = {"plain": ON_TWO, "recompute": {**ON_TWO, "use_recompute": True}}
    first, again = (results_of(folder, 2, layouts, **dict.fromkeys(DROPOUTS, 0.1)) for _ in "ab")
    for name in layouts:
        assert equal(first[name][0], first[name][1]) and equal(first[name][0], again[name][0])
    assert equal(first["plain"][0], first["recompute"][0])
