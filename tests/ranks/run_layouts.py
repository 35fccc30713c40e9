"""Launched: trains the same samples under one layout after the other, and writes what each rank got.

run_layouts.py JOBS.json OUT   JOBS: {"model", "flags": {...}, "layouts": {name: {...}}, "infinite": [update],
                               "levels": [of each rank]}
OUT.NAME.RANK.npz: the weights under their structured names, the metrics of every update, float64 [updates],
"weights_after": a sum over all weights after each update, "kernels": the path in words.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

from data_tools.text.wordpiece import WordPiece
from ernie_pair.models.source import open_model
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.data import open_pretrain_data
from ernie_pair.pretrain.graph.fusion import choose_fused, choose_path
from ernie_pair.pretrain.graph.model import ernie_config
from ernie_pair.pretrain.graph.program import LOSS_WEIGHTS, build_program
from ernie_pair.pretrain.graph.step_monitors import RankSums
from ernie_pair.pretrain.graph.strategy import start_fleet
from ernie_pair.pretrain.pretrain_job import PretrainJob
from ernie_pair.runtime.cpu import LEVEL_ASKED
from ernie_pair.runtime.processes.world import launched_world
from ernie_pair.train.hooks import NoStop


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


def run(config, world, source):
    data = open_pretrain_data(config, world, WordPiece.from_file(source.vocab_file), source.spec)
    settings = ernie_config(
        source.spec,
        hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob,
        num_ngrams=len(data.ngrams or ()),
    )
    kernels = choose_path(config, config.device, world.size)
    fused = choose_fused(config, settings.hidden_size // settings.num_attention_heads, None)
    program = build_program(config, settings, world.rank, kernels, fused)
    program.start(config.seed)
    all_reduce = RankSums(world.size, program.executor, cpu=True)
    job = PoisonedJob(config, world, world, program, data, all_reduce, source)
    metrics, sums = [], []
    for step, batches in enumerate(data.updates(0), start=1):
        metrics.append(job.step(batches, step, NoStop()))
        sums.append(sum(float(np.abs(array).sum(dtype=np.float64)) for array in job.weights().values()))
    curves = {name: np.array([values[name] for values in metrics]) for name in metrics[0]}
    curves["kernels"] = np.array(program.kernels.describe())
    return {**curves, "weights_after": np.array(sums), **job.weights()}


def main(jobs_file, out):
    jobs = json.loads(Path(jobs_file).read_text())
    world = launched_world()
    source = open_model(jobs["model"], model_type="ernie", from_scratch=True)
    start_fleet("cpu", world.size)
    PoisonedJob.infinite = jobs["infinite"]
    if jobs["levels"]:
        os.environ[LEVEL_ASKED] = jobs["levels"][world.rank]
    for name, layout in jobs["layouts"].items():
        result = run(PretrainConfig(**jobs["flags"], **layout), world, source)
        np.savez(f"{out}.{name}.{world.rank}.npz", **result)


if __name__ == "__main__":
    main(*sys.argv[1:])
