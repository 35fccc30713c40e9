"""Pairs of a file as token ids, and the batches that training takes from them.

Nothing here keeps state: which rows make a batch follows from numbers alone, so that any process, and any
restart, finds the same ones.
"""

from typing import Iterator, List

import numpy as np

from data_tools.text.wordpiece import WordPiece
from ernie_pair.inference.token_rows import (  # noqa: F401 - one place to import them from
    Batch,
    EncodedPairs,
    encode_texts,
    evaluation_batches,
    kept_lengths,
    open_tokenizer,
)
from ernie_pair.pair.data.batch_order import BatchOrder
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.processes.world import World


def encode_pairs(pairs: Pairs, tokenizer: WordPiece, max_seq_len: int) -> EncodedPairs:
    """Encode every pair as token ids, cut to ``max_seq_len`` tokens (see ``kept_lengths``)."""
    rows = encode_texts(pairs.left, pairs.right, pairs.labels, tokenizer, max_seq_len)
    rows.bad, rows.groups = pairs.bad, pairs.groups
    return rows


def training_steps(
    rows: EncodedPairs,
    seed: int,
    batch_size: int,
    world: World,
    consumed: int,
    bucket: bool = True,
    accumulation_steps: int = 1,
) -> Iterator[List[Batch]]:
    """Yield the micro-batches of this rank for every step, without end, from row ``consumed`` on.

    A step takes batch_size x world size x ``accumulation_steps`` rows of the stream of `BatchOrder`: the
    same rows however they are divided over ranks and micro-batches.
    """
    order = BatchOrder(rows.lengths, seed, batch_size * world.size * accumulation_steps, bucket)
    for numbers in order.batches(consumed):
        yield [rows.batch(part) for part in split_among_ranks(numbers, world, accumulation_steps)]


def candidate_steps(
    rows: EncodedPairs,
    candidates: List[np.ndarray],
    seed: int,
    batch_size: int,
    world: World,
    consumed: int,
    bucket: bool = True,
    accumulation_steps: int = 1,
) -> Iterator[List[Batch]]:
    """Yield the micro-batches of this rank for every step, without end, from query ``consumed`` on.

    ``candidates`` are the rows that stand together, see ``training_groups``: one of them counts as a row does
    in ``training_steps``, and all of it is in one micro-batch.
    """
    longest = np.array([rows.lengths[each].max() for each in candidates])
    order = BatchOrder(longest, seed, batch_size * world.size * accumulation_steps, bucket)
    for numbers in order.batches(consumed):
        parts = split_among_ranks(numbers, world, accumulation_steps)
        yield [_candidate_batch(rows, [candidates[number] for number in part]) for part in parts]


def _candidate_batch(rows: EncodedPairs, candidates: List[np.ndarray]) -> Batch:
    picked = np.concatenate(candidates)
    queries = np.repeat(np.arange(len(candidates)), [len(each) for each in candidates])
    labels = np.stack([rows.known_labels[picked], queries], axis=1)
    return rows.batch(picked)._replace(labels=labels)


def split_among_ranks(numbers: np.ndarray, world: World, accumulation_steps: int = 1) -> List[np.ndarray]:
    """Return this rank's share of the row ``numbers`` of a step, int64 [N], one array per micro-batch.

    Each array is a slice, so that rows of like length stay together. The slices of one micro-batch lie side
    by side, so that no rank has all the long rows. Rows 0 to 7, two ranks, two micro-batches: rank 0 has [0
    1] and [4 5], rank 1 has [2 3] and [6 7].
    """
    return np.split(numbers, world.size * accumulation_steps)[world.rank :: world.size]
