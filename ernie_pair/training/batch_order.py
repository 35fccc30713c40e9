"""Which rows a step uses: a pure function of the seed, the lengths, the global batch and the position.

The rows of an epoch are laid end to end behind those of the epoch before. A step takes the next global batch
of that stream, so an epoch loses no row and repeats none, and the step in which it ends goes on into the next
one. With buckets the rows of a batch are of similar length:

    shuffle the epoch                  5 9 2 7 1 8 3 6 4          (lengths)
    sort within pools of some batches  2 5 7 9 | 1 3 6 8 | 4      (2 batches of 2; what is left stays)
    shuffle the batches                6 8 | 2 5 | 1 3 | 7 9 | 4

The two batches that an epoch shares with its neighbours are drawn from all its lengths.
"""

from typing import Iterator

import numpy as np

POOL_BATCHES = 50  # sorted together: more of them pad less, and make batches that are less random


class BatchOrder:
    """The order of rows of ``lengths`` int64 [rows], ``batch_size`` of which make a step over all ranks."""

    def __init__(self, lengths: np.ndarray, seed: int, batch_size: int, bucket: bool):
        self.lengths, self.seed, self.batch_size, self.bucket = lengths, seed, batch_size, bucket
        self._epoch, self._order = -1, np.zeros(0, dtype=np.int64)

    def batches(self, consumed: int) -> Iterator[np.ndarray]:
        """Yield the rows of every step, int64 [batch_size], without end, from row ``consumed`` on."""
        while True:
            yield self.rows_at(consumed, self.batch_size)
            consumed += self.batch_size

    def rows_at(self, first: int, count: int) -> np.ndarray:
        """Return the rows at ``count`` places of the stream from place ``first`` on, int64 [count]."""
        epochs, places = np.divmod(np.arange(first, first + count), len(self.lengths))
        return np.concatenate([self._order_of(int(e))[places[epochs == e]] for e in np.unique(epochs)])

    def _order_of(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            rng = np.random.default_rng([self.seed, epoch])
            order = rng.permutation(len(self.lengths))
            self._epoch, self._order = epoch, self._in_buckets(order, epoch, rng) if self.bucket else order
        return self._order

    def _in_buckets(self, order: np.ndarray, epoch: int, rng: np.random.Generator) -> np.ndarray:
        """Sort whole batches into buckets, and shuffle them; ``head`` rows end the batch before."""
        size, rows = self.batch_size, len(order)
        head = min(-epoch * rows % size, rows)
        whole = slice(head, head + (rows - head) // size * size)
        batches = alike(order[whole], self.lengths, size)
        order[whole] = batches[rng.permutation(len(batches))].ravel()
        return order


def alike(rows: np.ndarray, lengths: np.ndarray, size: int) -> np.ndarray:
    """Return ``rows``, a multiple of ``size``, as batches [n, size] of like length, sorted within pools."""
    num_batches = len(rows) // size
    num_pools = max(1, round(num_batches / POOL_BATCHES))
    pool_of = np.arange(len(rows)) // size * num_pools // max(1, num_batches)
    return rows[np.lexsort((lengths[rows], pool_of))].reshape(num_batches, size)
