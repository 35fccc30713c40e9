"""Training pairs that are never all in memory: read in order, shuffled within a buffer.

A row waits in a buffer of --shuffle_buffer rows until a draw takes it; its place goes to the next row of
the file. Pools of batches are then tokenised and sorted by length, as `batch_order` does. The rows of an
epoch are laid end to end behind those of the epoch before, without a seam: a pool may hold rows of both.

Everything follows from the file and the seed: to go on from row n, the first n are read and left out.
"""

from itertools import count, islice
from typing import Iterator, List, NamedTuple, Optional, Sequence

import numpy as np

from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.inference.token_rows import Batch, EncodedPairs, encode_texts
from ernie_pair.pair.data.encoded_pairs import split_among_ranks
from ernie_pair.pair.data.in_memory_pairs import TokenizedPairs
from ernie_pair.pair.data.pair_file import Pair, labels_array
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.data.rejected import StreamedRejects
from ernie_pair.pair.data.user_collator import UserCollator
from ernie_pair.runtime.processes.world import World
from ernie_pair.train.batch_order import POOL_BATCHES, alike

_POOLS = 1  # sets the draws of the pools apart from those of the buffer


class StreamRules(NamedTuple):
    """How a stream is shuffled and batched.

    ``batch_size`` rows make a step, over all ranks and micro-batches; ``accumulation_steps`` is the number of
    micro-batches of a rank. ``buffer`` rows wait to be drawn. ``collator`` makes the batches.
    """

    seed: int
    batch_size: int
    buffer: int
    bucket: bool
    max_seq_len: int
    accumulation_steps: int = 1
    collator: Optional[UserCollator] = None

    @property
    def pool_size(self) -> int:
        """Return how many rows are tokenised, and with ``bucket`` sorted by length, together."""
        return self.batch_size * (POOL_BATCHES if self.bucket else 1)


def streamed_steps(
    source: PairSource,
    tokenizer: AnyTokenizer,
    rules: StreamRules,
    world: World,
    consumed: int,
    rejects: Optional[StreamedRejects] = None,
) -> Iterator[List[Batch]]:
    """Yield the micro-batches of this rank for every step, without end, from row ``consumed`` on.

    The rows of a step are the same however they are divided over ranks and micro-batches. Raises InputError
    naming file:line when a row is bad.
    """
    first_pool, done = divmod(consumed, rules.pool_size)
    stream = islice(shuffled(source, rules, rejects), first_pool * rules.pool_size, None)
    for pool in count(first_pool):
        rows = list(islice(stream, rules.pool_size))
        encoded = _encode(source, rows, tokenizer, rules)
        encoded.collator = rules.collator
        for picked in _batches(encoded.lengths, rules, pool)[done // rules.batch_size :]:
            yield [encoded.batch(part) for part in split_among_ranks(picked, world, rules.accumulation_steps)]
        done = 0


def _encode(source: PairSource, rows: Sequence, tokenizer: AnyTokenizer, rules: StreamRules) -> EncodedPairs:
    if isinstance(source, TokenizedPairs):
        return source.form.encoded(rows)
    labels = labels_array([row.label for row in rows])
    texts = [row.left for row in rows], [row.right for row in rows]
    return encode_texts(*texts, labels, tokenizer, rules.max_seq_len)


def shuffled(
    source: PairSource, rules: StreamRules, rejects: Optional[StreamedRejects] = None
) -> Iterator[Pair]:
    """Yield the rows of all epochs without end, shuffled within a buffer; an epoch holds every row once.

    ``rejects`` is called with the rows that the first epoch leaves out.
    """
    for epoch in count():
        rng = np.random.default_rng([rules.seed, epoch])
        waiting: List[Pair] = []
        for row in source.rows() if epoch or rejects is None else source.rows(rejects):
            if len(waiting) < rules.buffer:
                waiting.append(row)
                continue
            place = int(rng.integers(len(waiting)))
            yield waiting[place]
            waiting[place] = row
        if not epoch and rejects is not None:
            rejects.tell()
        yield from (waiting[place] for place in rng.permutation(len(waiting)))


def _batches(lengths: np.ndarray, rules: StreamRules, pool: int) -> np.ndarray:
    """Return the places in a pool that make its batches, int64 [batches, batch_size]."""
    places = np.arange(rules.pool_size)
    if not rules.bucket:
        return places.reshape(-1, rules.batch_size)
    batches = alike(places, lengths, rules.batch_size)
    return batches[np.random.default_rng([rules.seed, pool, _POOLS]).permutation(len(batches))]
