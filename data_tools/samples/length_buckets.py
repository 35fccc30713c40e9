"""Put samples of similar length next to each other, so that batches need little padding.

The samples are divided into windows of 64 buckets. Within one they are sorted by length, cut into buckets of
``bucket_size``, and the buckets shuffled; which sample is number i depends on (corpus, seed, i) alone. So
neither the number of processes nor the micro-batch nor a restart changes the order, and a longer run begins
with the samples of the shorter one.
"""

from functools import lru_cache

import numpy as np

from data_tools.ernie_dataset import Sample
from data_tools.files.hashing import keyed_rng

BUCKETS = 64  # in a window: with more of them, lengths within one differ less, and more is read ahead
ORDER = 0x6C656E  # makes the seed different from that of the samples' draws


def whole_windows(num_samples: int, bucket_size: int) -> int:
    """Return ``num_samples`` rounded up to whole windows; unchanged without buckets."""
    window = BUCKETS * bucket_size
    return -(-num_samples // window) * window if bucket_size else num_samples


class BucketedDataset:
    """The samples of ``dataset``, whose length is a whole number of windows, in another order.

    ``dataset``: `ErnieDataset` or `BlendedDataset`.
    """

    def __init__(self, dataset, bucket_size: int, seed: int):
        self.dataset, self.bucket_size, self.seed = dataset, bucket_size, seed
        self._order_of = lru_cache(maxsize=4)(self._order)  # a step may span two windows

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        window, place = divmod(index, BUCKETS * self.bucket_size)
        return self.dataset[int(self._order_of(window)[place])]

    def _order(self, window: int) -> np.ndarray:
        """Return the numbers in ``dataset`` of the samples of ``window``: int64 [64 x bucket_size]."""
        size = BUCKETS * self.bucket_size
        numbers = np.arange(window * size, (window + 1) * size)
        buckets = numbers[np.argsort(self.dataset.lengths(numbers), kind="stable")].reshape(BUCKETS, -1)
        return buckets[keyed_rng(self.seed, ORDER, window).permutation(BUCKETS)].ravel()
