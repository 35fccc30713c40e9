"""Pairs of a file as token ids, and the batches that training takes from them.

Nothing here remembers anything: which rows make a batch follows from numbers alone, so that any
process, and any restart, finds the same ones.
"""

from functools import lru_cache
from itertools import count
from typing import Iterator, List

import numpy as np

from data_tools.wordpiece import WordPiece
from ernie_pair.pair.pair_file import Pairs
from ernie_pair.pair_rows import (  # noqa: F401 - one place to import them from
    Batch,
    Rows,
    encode_texts,
    evaluation_batches,
    kept_lengths,
    open_tokenizer,
)
from ernie_pair.world import World


def encode_pairs(pairs: Pairs, pieces: WordPiece, max_seq_len: int) -> Rows:
    """Token ids of every pair, cut to ``max_seq_len`` (see ``kept_lengths``)."""
    return encode_texts(pairs.left, pairs.right, pairs.labels, pieces, max_seq_len)


def training_updates(
    rows: Rows, seed: int, batch_size: int, world: World, consumed: int
) -> Iterator[List[Batch]]:
    """The batches of this rank, without end, from sample ``consumed`` of the stream on.

    The stream is one permutation of the rows per epoch, laid end to end. An update takes the next
    batch_size x ranks samples of it and a rank its slice of those, so an epoch loses no row and
    repeats none, and the update in which it ends goes on into the next one.
    """
    for first in count(consumed + world.rank * batch_size, batch_size * world.size):
        yield [rows.batch(rows_at(np.arange(first, first + batch_size), len(rows), seed))]


def rows_at(samples: np.ndarray, num_rows: int, seed: int) -> np.ndarray:
    """The rows that stand at these (ascending) places of the stream."""
    epochs, places = np.divmod(samples, num_rows)
    return np.concatenate(
        [_epoch_order(num_rows, seed, int(epoch))[places[epochs == epoch]] for epoch in np.unique(epochs)]
    )


@lru_cache(maxsize=2)
def _epoch_order(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(num_rows)
