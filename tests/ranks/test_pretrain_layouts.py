"""Every layout of pretraining matches one process, static graph over gloo on the CPU."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tiny_pretrain import has_bf16, level_here, needs_kernels, write_corpus, write_model

from data_tools.build_ngrams import NgramsConfig, build_ngrams
from ernie_pair.runtime.cpu import LEVEL_ASKED

pytestmark = pytest.mark.ranks

SCRIPT = Path(__file__).with_name("run_layouts.py")
GLOBAL_BATCH, UPDATES = 16, 5
BOUND = 2e-5  # float32 rounding, magnified by AdamW's division in the first updates
PLAIN = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layouts")
    write_corpus(folder / "data", write_model(folder / "model", hidden_act="gelu"))
    return folder


def results_of(folder, processes, layouts, out, infinite=(), levels=(), **changes):
    """{name: [the final arrays of each rank]}, all layouts in one launch."""
    flags = {
        "model_name_or_path": str(folder / "model"),
        "input_dir": str(folder / "data"),
        "output_dir": str(folder / "out"),
        "global_batch_size": GLOBAL_BATCH,
        "max_steps": UPDATES,
        "split": "80,10,10",
        "max_seq_len": 32,
        "max_lr": 0.01,
        "num_workers": 0,
        "device": "cpu",
        **PLAIN,
        **changes,
    }
    jobs = folder / f"{out}.json"
    model = flags["model_name_or_path"]
    about = {"model": model, "flags": flags, "layouts": layouts, "infinite": list(infinite)}
    about["levels"] = list(levels)
    jobs.write_text(json.dumps(about))
    launch = [] if processes == 1 else ["-m", "paddle.distributed.launch", "--nproc_per_node", str(processes)]
    log = [] if processes == 1 else ["--log_dir", str(folder / f"{out}_log")]
    done = subprocess.run(
        [sys.executable, *launch, *log, str(SCRIPT), str(jobs), str(folder / out)],
        capture_output=True,
        text=True,
        timeout=550,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    told = [path.read_text()[-1500:] for path in sorted((folder / f"{out}_log").glob("workerlog.*"))]
    assert done.returncode == 0, "\n".join(told) or done.stderr
    return {
        name: [dict(np.load(f"{folder / out}.{name}.{rank}.npz")) for rank in range(processes)]
        for name in layouts
    }


def differences(results, reference):
    """{layout: the largest difference of a weight}; the ranks of a layout must be bit-identical."""
    found = {}
    for name, ranks in results.items():
        for other in ranks[1:]:
            assert all(np.array_equal(ranks[0][key], other[key]) for key in other), f"{name}: ranks differ"
        for curve in ("loss", "gradient_norm"):
            np.testing.assert_allclose(ranks[0][curve], reference[curve], rtol=1e-4)
        names = [key for key in reference if "." in key]
        found[name] = max(np.abs(ranks[0][key] - reference[key]).max() for key in names)
    return found


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
    named = {
        "plain": {"kernels": "plain"},
        **(FUSED if has_bf16() else {name: flags for name, flags in FUSED.items() if "bf16" not in name}),
    }
    layouts = {name: {"micro_batch_size": GLOBAL_BATCH, **flags} for name, flags in named.items()}
    results = {name: ranks[0] for name, ranks in results_of(folder, 1, layouts, "paths").items()}
    plain = results.pop("plain")
    assert "--kernels plain" in str(plain["kernels"])
    compared = [key for key in plain if "." in key and ZERO_GRADIENT not in key]
    for name, result in results.items():
        is_bf16 = "bf16" in name
        assert str(result["kernels"]).startswith("fused kernels") and is_bf16 == (
            "in bf16" in str(result["kernels"])
        )
        np.testing.assert_allclose(result["loss"], plain["loss"], rtol=2e-4 if is_bf16 else 1e-5)
        np.testing.assert_allclose(
            result["gradient_norm"], plain["gradient_norm"], rtol=1e-3 if is_bf16 else 1e-5
        )
        differences = [np.abs(result[key] - plain[key]) for key in compared]
        if is_bf16:  # the sign of a gradient near 0 depends on rounding, and AdamW follows it
            assert np.concatenate(differences, axis=None).mean() < 0.02 * plain["learning_rate"].sum(), name
        else:
            assert max(map(np.max, differences)) < BOUND, name
    assert np.array_equal(results["fused"]["loss"], results["fused, amp"]["loss"])


@needs_kernels
@pytest.mark.parametrize(
    "levels",
    [
        pytest.param(("avx512_bf16", "none"), id="none"),
        pytest.param(("avx512", "avx2"), id="avx2", marks=pytest.mark.slow),
    ],
)
def test_all_processes_fall_back_to_the_same_kernels(folder, levels):
    if levels[1] == "avx2" and level_here() == "avx2":
        pytest.skip("this processor has one level alone")
    layouts = {"dp2": layouts_of(2)["dp2-sharding1-merge1"]}
    ranks = results_of(folder, 2, layouts, f"unlike-{levels[1]}", levels=levels)["dp2"]
    told = [str(rank["kernels"]) for rank in ranks]
    assert "another process of this run cannot use" in told[0]
    assert (LEVEL_ASKED if levels[1] == "none" else "another process of this run cannot use") in told[1]
    assert all(np.array_equal(ranks[0][key], ranks[1][key]) for key in ranks[0] if "." in key)


@pytest.fixture(scope="module")
def reference(folder):
    layouts = {"one": {"micro_batch_size": GLOBAL_BATCH}}
    return results_of(folder, 1, layouts, "reference")["one"][0]


@pytest.mark.parametrize(
    "processes, merges",
    [
        (2, (2,)),
        *(pytest.param(processes, (1, 2, 4), marks=pytest.mark.slow) for processes in (1, 2, 4)),
    ],
)
def test_every_layout_gives_the_weights_of_one_process(folder, reference, processes, merges):
    layouts = layouts_of(processes, merges)
    found = differences(results_of(folder, processes, layouts, f"p{processes}"), reference)
    print("".join(f"\n{name:<36}{difference:.1e}" for name, difference in found.items()))
    assert max(found.values()) < BOUND
    start = reference["ernie.embeddings.word_embeddings.weight"]
    assert np.abs(start).max() > 100 * BOUND


@pytest.mark.slow
def test_every_layout_matches_one_process_with_lamb(folder):
    """LAMB divides by the norms of whole parameters, whichever rank holds their state."""
    settings = {"optimizer": "lamb", "adam_epsilon": 1e-6}
    alone = {"one": {"micro_batch_size": GLOBAL_BATCH}}
    alone["scaled"] = {**alone["one"], **SCALED}
    ranks = results_of(folder, 1, alone, "lamb1", **settings)
    one = ranks.pop("one")[0]
    assert max(differences(ranks, one).values()) < BOUND
    layouts = layouts_of(2, merges=(1, 2))
    layouts["collectives"] = {**layouts["dp1-sharding2-merge2"], "fused_ops": "collectives"}
    found = differences(results_of(folder, 2, layouts, "lamb2", **settings), one)
    assert max(found.values()) < BOUND


@pytest.mark.slow
def test_every_layout_matches_one_process_with_ngram_masking(folder):
    """The numbers of n-grams and tokens vary from rank to rank; the loss is a mean over all of them."""
    build_ngrams(
        NgramsConfig(
            input_path=str(folder / "data"),
            vocab_file=str(folder / "model" / "vocab.txt"),
            output_path=str(folder / "ngrams.txt"),
            sizes="9 4",
            overwrite=True,
        )
    )
    settings = {"ngram_lexicon": str(folder / "ngrams.txt")}
    alone = {
        "one": {"micro_batch_size": GLOBAL_BATCH},
        "scaled": {"micro_batch_size": GLOBAL_BATCH, **SCALED},
    }
    ranks = results_of(folder, 1, alone, "ngrams1", **settings)
    one = ranks.pop("one")[0]
    assert one["cls.ngrams.weight"].shape[0] == 13 and max(differences(ranks, one).values()) < BOUND
    layouts = layouts_of(2, merges=(1, 2))
    results = results_of(folder, 2, layouts, "ngrams2", **settings)
    assert max(differences(results, one).values()) < BOUND
    for ranks in results.values():
        np.testing.assert_allclose(ranks[0]["ngram_loss"], one["ngram_loss"], rtol=1e-4)
        np.testing.assert_allclose(ranks[1]["lm_loss"], one["lm_loss"], rtol=1e-4)


@pytest.mark.slow
def test_lamb_skips_an_update_with_infinite_gradients(folder):
    layout = {name: layouts_of(2)[name] for name in ("dp1-sharding2-merge1", "dp2-sharding1-merge2")}
    settings = {"optimizer": "lamb", "on_nan": "skip"}
    for ranks in results_of(folder, 2, layout, "lamb_skip", [2], **settings).values():
        assert ranks[0]["skipped_updates"].tolist() == [0, 1, 1, 1, 1]
        after = ranks[0]["weights_after"]
        assert after[1] == after[0] != after[2] and np.isfinite(after).all()


def test_fused_collectives_are_bit_identical(folder):
    """Gradient merge's sums and the sharded optimizer's broadcasts, with one skipped step."""
    plain = {name: layouts_of(2)[name] for name in ("dp2-sharding1-merge2", "dp1-sharding2-merge2")}
    fused = {name: {**flags, "fused_ops": "collectives"} for name, flags in plain.items()}
    one, other = (
        results_of(folder, 2, layouts, out, infinite=[2], on_nan="skip")
        for layouts, out in ((plain, "each"), (fused, "fused"))
    )
    for name in plain:
        for alone, together in zip(one[name], other[name]):
            assert all(np.array_equal(alone[key], together[key]) for key in alone)


@pytest.mark.slow
def test_dropout_is_reproducible_for_the_same_seed_and_layout(folder):
    layouts = {name: flags for name, flags in layouts_of(2, merges=(2,)).items() if "sharding2" in name}
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    once, again = (results_of(folder, 2, layouts, out, **dropout) for out in ("once", "again"))
    for name in layouts:
        for one, other in zip(once[name], again[name]):
            assert all(np.array_equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    "processes, name",
    [
        pytest.param(1, "dp1-sharding1-merge2", marks=pytest.mark.slow),
        (2, "dp1-sharding2-merge2"),
    ],
)
def test_an_infinite_gradient_skips_only_its_own_update(folder, processes, name):
    """Real dynamic loss scaling on the CPU; scales that are powers of two leave the results bit-identical."""
    layout = {name: layouts_of(processes)[name]}
    rates = {"max_steps": 9, "decay_steps": 9, "warmup_rate": 0.5}
    (plain,), (scaled,), (skipping,) = (
        results_of(folder, processes, layout, f"{out}{processes}", infinite, **{**rates, **flags})[name][:1]
        for out, infinite, flags in (
            ("plain", [], {"max_steps": 8}),
            ("scaled", [2], SCALED),
            ("skipping", [2], {"on_nan": "skip"}),
        )
    )
    for run in (scaled, skipping):
        assert run["skipped_updates"].tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1]
        assert run["weights_after"][1] == run["weights_after"][0] != run["weights_after"][2]
        assert run["learning_rate"][2] == run["learning_rate"][1] < run["learning_rate"][3]
        assert run["learning_rate"][2:].tolist() == plain["learning_rate"][1:].tolist()
    assert scaled["loss_scale"].tolist() == [8, 4, 4, 4, 8, 8, 8, 16, 16]
    assert skipping["loss_scale"].tolist() == [1] * 9
    weights = [key for key in scaled if "." in key]
    assert all(np.array_equal(scaled[key], skipping[key]) for key in weights)


@pytest.mark.slow
def test_phases_with_different_micro_batches_match_one_process(folder):
    """Gradient merge changes between the phases: 2 steps of short samples, then 3 of long ones."""
    whole = {"one": {"micro_batch_size": GLOBAL_BATCH, "phases": "16:2,32:3"}}
    one = results_of(folder, 1, whole, "phases1")["one"][0]
    layouts = {
        f"{name}, {phases}": {**degrees, "micro_batch_size": 8, "phases": phases}
        for name, degrees in {
            "dp2": {"dp_degree": 2},
            "sharding2": {"dp_degree": 1, "sharding_degree": 2, "use_sharding": True},
        }.items()
        for phases in ("16:2:8,32:3:2", "16:2:4,32:3:8")
    }
    assert max(differences(results_of(folder, 2, layouts, "phases2"), one).values()) < BOUND
