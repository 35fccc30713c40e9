"""Timed steps of the stand-in for pretraining, on generated samples of full length."""

import time
from dataclasses import replace
from fractions import Fraction
from typing import Any, Callable, List, Tuple

import numpy as np

from data_tools.corpus.mixture import Blend
from data_tools.ernie_dataset import Sample
from data_tools.samples.collate import collate
from ernie_pair.launch.time_steps import open_stand_in, rows_in_pass
from ernie_pair.models.source import read_tokenizer
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.data import PretrainData
from ernie_pair.pretrain.pretrain import build_job
from ernie_pair.runtime.cpu import keep_freed_memory
from ernie_pair.runtime.processes.world import World
from ernie_pair.train.hooks import NoStop

PASSES = 2  # micro-batches per step, so that gradients are merged as in the run


def open_steps(config: PretrainConfig, world: World) -> Tuple[int, Callable[[], Tuple[float, float]]]:
    """Return the samples in a micro-batch of the stand-in, and a function that takes a step of it.

    The function returns the seconds of a step of one micro-batch, and of a further one: the first of two only
    accumulates its gradient, and is that. Raises InputError for a model that the run cannot use either.
    """
    source = open_stand_in(config)
    tokenizer = read_tokenizer(source.vocab_file, source.spec).without_control_tokens()
    rows = rows_in_pass(config.full_length_micro_batch, config.max_seq_len, source.spec)
    small = replace(config, phases="", micro_batch_size=rows, global_batch_size=PASSES * rows * world.size)
    nothing: Any = {}  # no datasets: the samples are generated here
    job, _ = build_job(
        small, world, world, source, PretrainData(small, world, [], Blend([Fraction(1)]), tokenizer, nothing)
    )
    if job.program.kernels.is_fused:
        keep_freed_memory()  # as in the run
    sample = _sample(config, source.spec.vocab_size)
    batch = collate([sample] * rows, pad_id=tokenizer.pad_id, max_seq_len=config.max_seq_len)
    ends: List[float] = []
    run = job.program.run

    def run_and_note(*arguments):
        result = run(*arguments)
        ends.append(time.perf_counter())
        return result

    job.program.run = run_and_note

    def time_step() -> Tuple[float, float]:
        ends.clear()
        begin = time.perf_counter()
        job.step([batch] * PASSES, 1, NoStop())
        further = ends[0] - begin
        return time.perf_counter() - begin - further, further

    return rows, time_step


def _sample(config: PretrainConfig, vocab_size: int) -> Sample:
    """Return a sample as long as samples may be, with as many masked tokens as the run masks."""
    length = config.max_seq_len
    ids = np.arange(length) % vocab_size
    masked = np.arange(0, length, max(1, round(1 / config.masked_lm_prob)))
    types = (np.arange(length) >= length // 2).astype(np.int64)
    return Sample(ids, types, masked, ids[masked], 0)
