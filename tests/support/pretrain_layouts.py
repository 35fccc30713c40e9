"""Pretraining in several layouts, in processes over gloo on the CPU, and what tests compare of them."""

import os
from functools import cache

import numpy as np
from launched import launch

from data_tools.build_ngrams import NgramsConfig, build_ngrams
from data_tools.text.wordpiece import WordPiece
from ernie_pair.models.source import open_model
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.data import open_pretrain_data
from ernie_pair.pretraining.graph import step
from ernie_pair.pretraining.graph.program_state import LOSS_WEIGHTS
from ernie_pair.pretraining.pretrain import build_job
from ernie_pair.runtime.cpu import LEVEL_ASKED
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import launched_world

GLOBAL_BATCH, UPDATES = 16, 5
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
ALONE = {"micro_batch_size": GLOBAL_BATCH}
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
    for number, batches in enumerate(data.updates(0), start=1):
        poisoned.extend([number] if number in infinite else [])
        metrics.append(job.step(batches, number, StopSignals()))
        sums.append(sum(float(np.abs(array).sum(dtype=np.float64)) for array in job.weights().values()))
    curves = {name: np.array([values[name] for values in metrics]) for name in metrics[0]}
    about = {"kernels": job.program.kernels.describe(), "parts": len(job.program.update.owned)}
    return {**curves, **about, "weights_after": np.array(sums), **job.weights()}


def run_layouts(flags, layouts, levels):
    """What `run_layout` returns for each; with its flags a layout may have the ``infinite`` updates."""
    world, results = launched_world(), {}
    source = open_model(flags["model_name_or_path"], model_type="ernie", from_scratch=True)
    step.start_static = cache(step.start_static)  # its gloo world is one for the life of the process
    if levels:
        os.environ[LEVEL_ASKED] = levels[world.rank]
    for name, layout in layouts.items():
        infinite, config = layout.get("infinite", ()), {**flags, **layout}
        config.pop("infinite", None)
        results[name] = run_layout(PretrainConfig(**config), world, source, infinite)
    return results


def launch_layouts(folder, processes, layouts, levels=(), **changes):
    """{name: [the final arrays of each rank]}, all layouts in one launch.

    ``folder`` has the "model" and the corpus "data"; ``levels``: of the kernels that each process may use.
    """
    flags = {
        "model_name_or_path": str(folder / "model"), "input_dir": str(folder / "data"),
        "output_dir": str(folder / "out"), "global_batch_size": GLOBAL_BATCH, "max_steps": UPDATES,
        "split": "80,10,10", "max_seq_len": 32, "num_workers": 0, "device": "cpu",
        **dict.fromkeys(DROPOUTS, 0), **changes,
    }  # fmt: skip
    ranks = launch(folder, run_layouts, flags, layouts, levels, processes=processes)
    return {name: [rank[name] for rank in ranks] for name in layouts}


def write_ngrams(folder):
    """Build the n-grams of the corpus; return their file."""
    paths = {"input_path": folder / "data", "vocab_file": folder / "model" / "vocab.txt"}
    paths = {name: str(path) for name, path in {**paths, "output_file": folder / "ngrams.txt"}.items()}
    build_ngrams(NgramsConfig(**paths, sizes="9 4", overwrite=True))
    return paths["output_file"]


def weights_of(arrays):
    return [key for key in arrays if "." in key]


def equal(one, other):
    return all(np.array_equal(one[key], other[key]) for key in one if key != "parts")


def largest_difference(results, reference, curves=()):
    """The largest difference of a weight, or of the ``curves`` that the reference has, of any layout.

    The ranks of a layout must be bit-identical, and the losses and norms of the gradients close.
    """
    differences = {}
    for name, ranks in results.items():
        assert all(equal(other, ranks[0]) for other in ranks[1:]), f"{name}: ranks differ"
        for curve in {"loss", "gradient_norm"} & reference.keys():
            np.testing.assert_allclose(ranks[0][curve], reference[curve], rtol=1e-4)
        compared = [*weights_of(reference), *(key for key in curves if key in reference)]
        differences[name] = max(np.abs(ranks[0][key] - reference[key]).max() for key in compared)
    print("".join(f"\n{name:<36}{difference:.1e}" for name, difference in differences.items()))
    return max(differences.values())


def check_skipping(results_of, folder, processes, layout, **settings):
    """An infinite gradient skips only its own update; the learning rate goes on from there.

    Scales that are powers of two leave the results bit-identical.
    """
    layout = {**layout, "max_steps": 9, "decay_steps": 9, "warmup_rate": 0.5}
    layouts = {
        "plain": {**layout, "max_steps": 8},
        "scaled": {**layout, **SCALED, "infinite": [2]},
        "skipping": {**layout, "on_nan": "skip", "infinite": [2]},
    }
    results = results_of(folder, processes, layouts, **settings)
    plain, scaled, skipping = (ranks[0] for ranks in results.values())
    for run in (scaled, skipping):
        assert run["skipped_updates"].tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1]
        assert run["weights_after"][1] == run["weights_after"][0] != run["weights_after"][2]
        assert run["learning_rate"][2] == run["learning_rate"][1] < run["learning_rate"][3]
        assert run["learning_rate"][2:].tolist() == plain["learning_rate"][1:].tolist()
    assert scaled["loss_scale"].tolist() == [8, 4, 4, 4, 8, 8, 8, 16, 16]
    assert skipping["loss_scale"].tolist() == [1] * 9
    assert all(np.array_equal(scaled[key], skipping[key]) for key in weights_of(scaled))
