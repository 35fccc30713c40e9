"""What a pretraining step asks of its program, tested with a program that only records the calls."""

import shlex
from types import SimpleNamespace

import numpy as np
import paddle
import pytest

from data_tools.options.cli import parse_config
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.graph.step_monitors import PASS_SEED
from ernie_pair.pretrain.pretrain import PretrainHooks
from ernie_pair.pretrain.pretrain_job import PretrainJob
from ernie_pair.runtime.processes.world import World
from ernie_pair.train.hooks import NoStop

BATCH = {
    "input_ids": np.ones((2, 8), np.int64),
    "masked_positions": np.array([3, 0], np.int64),
    "masked_lm_labels": np.array([5, -1], np.int64),
    "next_sentence_labels": np.array([0, 1], np.int64),
}


class Listener:
    """Stands in for `PretrainProgram`: records the seeds of each pass, Paddle's own and the one fed."""

    main, skips, recorded_passes = None, False, 2

    def __init__(self):
        self.seeds, self.rates = [], []

    def rate(self, rate):
        self.rates.append(rate)

    def merge(self, passes):
        assert passes == 2

    def run(self, program, feed):
        assert program is self.main
        self.seeds.append((paddle.get_rng_state()[0].current_seed(), int(feed[PASS_SEED][0])))

    def records(self, passes):
        return np.ones((passes, 4), np.float32)

    def monitored(self):
        return {}


class Alone:
    """Stands in for `RankSums`: the other ranks contribute nothing to the sums."""

    def __call__(self, values):
        return np.asarray(values)

    def meet(self):
        pass


def seeds_of(rank, step, *words):
    needed = ["--model_name_or_path", "m", "--input_dir", "d", "--output_dir", "o", "--device", "cpu"]
    config, world, program = parse_config(PretrainConfig, [*needed, *words]), World(rank, 2), Listener()
    data = SimpleNamespace(tokenizer=SimpleNamespace(pad_id=0), ngrams=None)
    spec = SimpleNamespace(num_layers=1, hidden_size=4, intermediate_size=8, vocab_size=10)
    job = PretrainJob(config, world, world, program, data, Alone(), SimpleNamespace(spec=spec))
    job.step([BATCH, BATCH], step, NoStop())
    return program.seeds


@pytest.mark.parametrize("which", [0, 1], ids=["Paddle's generator", "the seed that is fed"])
def test_every_rank_step_and_pass_has_its_own_dropout_seed(which):
    seeds = [seed[which] for rank in (0, 1) for step in (1, 2, 3) for seed in seeds_of(rank, step)]
    assert len(set(seeds)) == 2 * 3 * 2


def test_step_seeds_depend_only_on_run_rank_step_and_pass():
    assert seeds_of(1, 7) == seeds_of(1, 7, "--max_lr", "0.5") != seeds_of(1, 7, "--seed", "5")


def test_the_command_in_the_last_line_can_be_pasted():
    said = []
    hooks = PretrainHooks(SimpleNamespace(output_dir="a run"), World(), None, None)
    hooks.lines = SimpleNamespace(tell_end=lambda state, words: said.append(words))
    hooks.on_end(TrainState(2))
    assert shlex.split(said[0].partition("with: ")[2]) == ["ernie-pair", "board", "a run"]
