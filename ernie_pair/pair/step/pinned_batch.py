"""A micro-batch in pinned memory, from which a GPU reads while the host continues."""

from typing import Dict

import numpy as np
import paddle

from ernie_pair.pair.data.encoded_pairs import Batch


class PinnedBatch(Batch):
    """A micro-batch whose arrays lie in pinned memory too.

    ``pinned``: {id of an array of the batch: its copy}, which lives as long as the batch does.
    """

    pinned: Dict[int, paddle.Tensor]

    @classmethod
    def of(cls, batch: Batch) -> "PinnedBatch":
        """Return ``batch`` with copies of its arrays in pinned memory."""
        made = cls(*batch)
        place = paddle.CUDAPinnedPlace()
        made.pinned = {
            id(array): paddle.to_tensor(array, place=place) for array in batch if array is not None
        }
        return made

    def to_device(self, array: np.ndarray) -> paddle.Tensor:
        """Return an array of this batch as a tensor on the GPU, without waiting for its copy."""
        return self.pinned[id(array)].cuda(blocking=False)
