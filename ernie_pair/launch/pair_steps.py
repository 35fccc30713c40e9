"""Timed steps of the stand-in for training on pairs, on rows of the run's own file."""

import time
from dataclasses import replace
from itertools import islice
from typing import Callable, Tuple

import numpy as np

from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.inference.token_rows import EncodedPairs, encode_texts, open_tokenizer
from ernie_pair.launch.time_steps import LAYERS, open_stand_in, rows_in_pass
from ernie_pair.models.networks.classifier import build_classifier
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.pair.data.pair_records import Columns, RowRules
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.train.pair_job import PairJob
from ernie_pair.runtime.cpu import keep_freed_memory
from ernie_pair.runtime.processes.world import World
from ernie_pair.train.hooks import NoStop
from ernie_pair.train.process_group import join_process_group
from ernie_pair.train.recompute import freeze, recompute_layers

READ_ROWS = 512  # of the training pairs, to know their lengths


def open_steps(config: TrainConfig, world: World) -> Tuple[int, Callable[[], Tuple[float, float]]]:
    """Return the samples in a micro-batch of the stand-in, and a function that takes steps of it.

    The function returns the seconds of a step of one micro-batch, and those that a second one adds. Raises
    InputError for pairs or a model that the run cannot use either.
    """
    source = open_stand_in(config)
    rows = _first_rows(config, open_tokenizer(source.vocab_file, source.spec, config.max_seq_len))
    batch_rows = rows_in_pass(config.batch_size, int(rows.lengths.mean()), source.spec)
    frozen = min(config.freeze_layers, LAYERS - 1)
    small = replace(config, batch_size=batch_rows, freeze_layers=frozen, class_weights="")
    model = build_classifier(source, config.seed, config.dropout, config.pooling)
    freeze(model, small)
    if choose_path(model, config, config.device).is_fused:
        keep_freed_memory()  # as in the run
    recompute_layers(model, config.use_recompute)
    job = PairJob(small, model, rows, 10**6, join_process_group(world))
    middle = (len(rows) - batch_rows) // 2 + np.arange(batch_rows)  # of rows sorted by length, like batches
    batch = rows.batch(np.argsort(rows.lengths, kind="stable")[middle % len(rows)])

    def time_step() -> Tuple[float, float]:
        begin = time.perf_counter()
        job.step([batch], 1, NoStop())
        one = time.perf_counter()
        job.step([batch, batch], 1, NoStop())
        return one - begin, (time.perf_counter() - one) - (one - begin)

    return batch_rows, time_step


def _first_rows(config: TrainConfig, tokenizer: AnyTokenizer) -> EncodedPairs:
    """Return the first rows of the training pairs, encoded; their labels are made up."""
    columns = Columns(config.text_a, config.text_b, config.label)
    source = PairSource("train_file", config.train_file, "train", None, columns, RowRules.of(config))
    pairs = list(islice(source.rows(), READ_ROWS))
    left, right = [pair.left for pair in pairs], [pair.right for pair in pairs]
    labels = np.arange(len(pairs), dtype=np.int64) % 2
    return encode_texts(left, right, labels, tokenizer, config.max_seq_len)
