"""Every layout of pretraining matches one process, static graph over gloo on the CPU."""

import os
from itertools import product

import numpy as np
import pytest
from launched import launch
from tiny_pretrain import has_bf16, level_here, needs_kernels, write_corpus, write_model

from data_tools.build_ngrams import NgramsConfig, build_ngrams
from data_tools.text.wordpiece import WordPiece
from ernie_pair.models.source import open_model
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.data import open_pretrain_data
from ernie_pair.pretraining.graph.model import ernie_config
from ernie_pair.pretraining.graph.program import build_program, choose_path
from ernie_pair.pretraining.graph.program_state import LOSS_WEIGHTS, RankSums
from ernie_pair.pretraining.graph.step import start_static
from ernie_pair.pretraining.pretrain_job import PretrainJob
from ernie_pair.runtime.cpu import LEVEL_ASKED
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import launched_world

pytestmark = pytest.mark.ranks

GLOBAL_BATCH, UPDATES = 16, 5
BOUND = 2e-5  # float32 rounding, magnified by AdamW's division in the first updates
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
ALONE = {"micro_batch_size": GLOBAL_BATCH}


class PoisonedJob(PretrainJob):
    """In the ``infinite`` updates the first pass of the first rank has an infinite gradient."""

    infinite = ()

    def step(self, batches, number, stop):
        run = self.program.run
        is_due = number in self.infinite and self.world.is_first

        def run_once(program, feed):
            self.program.run = run
            return run(program, {**feed, LOSS_WEIGHTS: feed[LOSS_WEIGHTS] * (np.inf if is_due else 1)})

        self.program.run = run_once
        return super().step(batches, number, stop)


def run_layout(config, world, source, infinite):
    """The weights and the metrics of every update, float64 [updates].

    With them "weights_after", a sum over all weights after each update, and "kernels", the path in words.
    """
    data = open_pretrain_data(config, world, WordPiece.from_file(source.vocab_file), source.spec)
    dropout = {name: getattr(config, name) for name in DROPOUTS}
    settings = ernie_config(source.spec, **dropout, num_ngrams=len(data.ngrams or ()))
    kernels = choose_path(config, config.device, world.size)
    program = build_program(config, settings, world.rank, kernels)
    program.start(config.seed)
    all_reduce = RankSums(world.size, program.executor)
    job = PoisonedJob(config, world, world, program, data, all_reduce, source)
    job.infinite = infinite
    metrics, sums = [], []
    for step, batches in enumerate(data.updates(0), start=1):
        metrics.append(job.step(batches, step, StopSignals()))
        sums.append(sum(float(np.abs(array).sum(dtype=np.float64)) for array in job.weights().values()))
    curves = {name: np.array([values[name] for values in metrics]) for name in metrics[0]}
    kernels = program.kernels.describe()
    return {**curves, "kernels": kernels, "weights_after": np.array(sums), **job.weights()}


def run_layouts(flags, layouts, levels):
    """What `run_layout` returns for each; with its flags a layout may have the ``infinite`` updates."""
    world, results = launched_world(), {}
    source = open_model(flags["model_name_or_path"], model_type="ernie", from_scratch=True)
    start_static("cpu", world.size)
    if levels:
        os.environ[LEVEL_ASKED] = levels[world.rank]
    for name, layout in layouts.items():
        infinite, config = layout.get("infinite", ()), {**flags, **layout}
        config.pop("infinite", None)
        results[name] = run_layout(PretrainConfig(**config), world, source, infinite)
    return results


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


def results_of(folder, processes, layouts, levels=(), **changes):
    """{name: [the final arrays of each rank]}, all layouts in one launch."""
    flags = {
        "model_name_or_path": str(folder / "model"), "input_dir": str(folder / "data"),
        "output_dir": str(folder / "out"), "global_batch_size": GLOBAL_BATCH, "max_steps": UPDATES,
        "split": "80,10,10", "max_seq_len": 32, "max_lr": 0.01, "num_workers": 0, "device": "cpu",
        **dict.fromkeys(DROPOUTS, 0), **changes,
    }  # fmt: skip
    ranks = launch(folder, run_layouts, flags, layouts, levels, processes=processes)
    return {name: [rank[name] for rank in ranks] for name in layouts}


def weights_of(arrays):
    return [key for key in arrays if "." in key]


def equal(one, other):
    return all(np.array_equal(one[key], other[key]) for key in one)


def largest_difference(results, reference):
    """The largest difference of a weight of any layout; the ranks of a layout must be bit-identical."""
    differences = {}
    for name, ranks in results.items():
        assert all(equal(other, ranks[0]) for other in ranks[1:]), f"{name}: ranks differ"
        for curve in ("loss", "gradient_norm"):
            np.testing.assert_allclose(ranks[0][curve], reference[curve], rtol=1e-4)
        differences[name] = max(np.abs(ranks[0][key] - reference[key]).max() for key in weights_of(reference))
    print("".join(f"\n{name:<36}{difference:.1e}" for name, difference in differences.items()))
    return max(differences.values())


SCALED = {"use_amp": True, "amp_dtype": "float32", "init_loss_scaling": 8.0, "incr_every_n_steps": 3}
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
    settings = {"ngram_lexicon": str(folder / "ngrams.txt")}
    paths = {"input_path": folder / "data", "vocab_file": folder / "model" / "vocab.txt"}
    paths = {name: str(path) for name, path in paths.items()}
    build_ngrams(NgramsConfig(**paths, output_file=settings["ngram_lexicon"], sizes="9 4", overwrite=True))
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
    """Real dynamic loss scaling on the CPU; scales that are powers of two leave the results bit-identical."""
    layout = {**layouts_of(processes)[name], "max_steps": 9, "decay_steps": 9, "warmup_rate": 0.5}
    layouts = {
        "plain": {**layout, "max_steps": 8},
        "scaled": {**layout, **SCALED, "infinite": [2]},
        "skipping": {**layout, "on_nan": "skip", "infinite": [2]},
    }
    plain, scaled, skipping = (ranks[0] for ranks in results_of(folder, processes, layouts).values())
    for run in (scaled, skipping):
        assert run["skipped_updates"].tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1]
        assert run["weights_after"][1] == run["weights_after"][0] != run["weights_after"][2]
        assert run["learning_rate"][2] == run["learning_rate"][1] < run["learning_rate"][3]
        assert run["learning_rate"][2:].tolist() == plain["learning_rate"][1:].tolist()
    assert scaled["loss_scale"].tolist() == [8, 4, 4, 4, 8, 8, 8, 16, 16]
    assert skipping["loss_scale"].tolist() == [1] * 9
    assert all(np.array_equal(scaled[key], skipping[key]) for key in weights_of(scaled))


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
