"""Pairs of a file as token ids, and the batches that training takes from them.

Nothing here keeps state: which rows make a batch follows from numbers alone, so that any process, and any
restart, finds the same ones.
"""

from typing import Iterator, List, Sequence

import numpy as np

from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.inference.token_rows import Batch, EncodedPairs, encode_texts
from ernie_pair.models.labels import UNLABELLED
from ernie_pair.models.temperature import both_orders
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.runtime.processes.world import World
from ernie_pair.train.batch_order import BatchOrder


def encode_pairs(pairs: Pairs, tokenizer: AnyTokenizer, max_seq_len: int) -> EncodedPairs:
    """Encode every pair as token ids, cut to ``max_seq_len`` tokens (see ``kept_lengths``)."""
    rows = encode_texts(pairs.left, pairs.right, pairs.labels, tokenizer, max_seq_len)
    rows.bad, rows.groups = pairs.bad, pairs.groups
    return rows


def encode_both_orders(pairs: Pairs, tokenizer: AnyTokenizer, max_seq_len: int) -> EncodedPairs:
    """Encode the 2N pairs of ``both_orders``, without labels, as who asks for their mean does."""
    return encode_texts(*both_orders(pairs.left, pairs.right), None, tokenizer, max_seq_len)


def join_rows(parts: Sequence[EncodedPairs]) -> EncodedPairs:
    """Return the rows of all ``parts``, one after the other; of a part without labels UNLABELLED ones."""
    if len(parts) == 1 and parts[0].labels is not None:
        return parts[0]
    labels = [np.full(len(p), UNLABELLED, np.int64) if p.labels is None else p.labels for p in parts]
    lengths = np.concatenate([part.lengths for part in parts])
    return EncodedPairs(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        np.concatenate([part.heads for part in parts]),
        np.concatenate(labels),
        parts[0].pad_id,
        sum(part.num_cut for part in parts),
        separators=parts[0].separators,
    )


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
