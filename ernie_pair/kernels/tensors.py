"""Tensors as the kernels take them: float32 in the memory of a CPU, and a batch without its padding."""

from operator import is_
from typing import Any, List, Sequence

import numpy as np
import paddle

FLOAT_BYTES = 4


class CheckedTensors:
    """Tensors that were checked to be contiguous float32 arrays of the right shapes on the CPU.

    Checking them all takes some 50 us. So it is repeated only if one of them is another tensor than the last
    time, or at another address: whatever casts, moves or reshapes a parameter gives it other memory.
    """

    def __init__(self) -> None:
        self._seen: List[Any] = []
        self._addresses: List[int] = []

    def __deepcopy__(self, memo) -> "CheckedTensors":
        return CheckedTensors()  # the copy has other tensors

    def are_fit(self, tensors: Sequence, shapes_of) -> bool:
        """Return whether ``tensors`` are such arrays; ``shapes_of(tensors)`` returns the right shapes."""
        if any(tensor is None for tensor in tensors):
            return False
        addresses = [tensor.data_ptr() for tensor in tensors]
        if (
            addresses == self._addresses
            and all(map(is_, tensors, self._seen))
            and all(tensor.element_size() == FLOAT_BYTES for tensor in tensors)
        ):
            return True
        self._seen, self._addresses = [], []
        if not all(map(is_plain_array, tensors)) or [t.shape for t in tensors] != shapes_of(tensors):
            return False
        self._seen, self._addresses = list(tensors), addresses
        return True

    def check_unchanged(self, tensors: Sequence, shapes_of) -> None:
        """Raise RuntimeError when ``tensors``, which a forward pass has used, are no longer such arrays."""
        if not self.are_fit(tensors, shapes_of):
            raise RuntimeError("weights were cast or moved before their backward pass; use --kernels plain")


def is_plain_array(tensor) -> bool:
    """Return whether ``tensor`` is a contiguous float32 array in CPU memory."""
    return is_float32_on_cpu(tensor) and tensor.is_contiguous()


def is_float32_on_cpu(tensor) -> bool:
    """Return whether ``tensor`` is a float32 array, contiguous or not, in CPU memory."""
    return tensor.dtype == paddle.float32 and tensor.is_dense() and tensor.place.is_cpu_place()


class UnpaddedRows:
    """The T tokens of a batch without its padding; ``is_token`` bool [B, S], where each sequence has one.

    ``starts`` int32 [B + 1]: where each sequence begins among them, and the last ends; ``length``: of the
    longest; ``places`` int32 [T]: where they stand among the B x S.
    """

    def __init__(self, is_token: np.ndarray):
        lengths = is_token.sum(axis=1)
        self.batch, self._padded = is_token.shape
        self.starts, self.length = np.cumsum([0, *lengths], dtype=np.int32), int(lengths.max())
        self.places = paddle.to_tensor(np.flatnonzero(is_token).astype(np.int32))

    def take(self, padded_BS) -> paddle.Tensor:
        """Return those of the tokens, [1, T] of ids or [1, T, D] of states; those alone may be given too."""
        if padded_BS.shape[:2] != [self.batch, self._padded]:
            return padded_BS
        cells = padded_BS.reshape([self.batch * self._padded, *padded_BS.shape[2:]])
        return paddle.gather(cells, self.places).unsqueeze(0)

    def spread(self, states_1TD) -> paddle.Tensor:
        """Return the states [B, S, D], which are 0 for padding."""
        zeros = paddle.zeros([self.batch * self._padded, states_1TD.shape[-1]])
        spread = paddle.scatter_(zeros, self.places, states_1TD.squeeze(0))  # into the zeros: without a copy
        return spread.reshape([self.batch, self._padded, -1])


def dense(tensor) -> paddle.Tensor:
    """Return ``tensor``, contiguous in memory."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()
