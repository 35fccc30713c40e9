"""Memory that the kernels work in: aligned buffers, taken for a call or from forward to backward, and reused.

Sizes are rounded up, by a quarter at most, so that batches of many lengths share buffers. All buffers
together never exceed one and a quarter times the peak of use: of the free ones, the one unused for
longest is returned to the system.
"""

from collections import deque
from threading import Lock
from typing import Deque, List, Optional

import numpy as np

ALIGNMENT = 64
SMALLEST = 1 << 12
FREE_AT_LEAST = 1 << 24


class Workspace:
    """A buffer of ``size`` bytes at ``address``; returned by `release`, or when it is garbage collected.

    That may happen anywhere: in another thread, or in the middle of any line, also of the pool itself. So it
    then only joins a queue, which is atomic and takes no lock.
    """

    def __init__(self, pool: "WorkspacePool", buffer: np.ndarray):
        self._pool = pool
        self._buffer: Optional[np.ndarray] = buffer
        self.address = int(buffer.ctypes.data)
        self.size = int(buffer.size)

    def release(self) -> None:
        """Return the buffer to the pool; once is enough."""
        if self._buffer is not None:
            buffer, self._buffer = self._buffer, None
            self._pool.take_back(buffer)

    def __del__(self) -> None:
        if self._buffer is not None:
            self._pool.forgotten.append(self._buffer)


class WorkspacePool:
    """Buffers that are free, and counts of bytes, for any number of threads."""

    def __init__(self) -> None:
        self.most_in_use, self.free_bytes = 0, 0
        self.forgotten: Deque[np.ndarray] = deque()  # to be added to the free ones by the next caller
        self._in_use = 0
        self._free: List[np.ndarray] = []  # in the order of their return, the oldest first
        self._lock = Lock()

    @property
    def in_use(self) -> int:
        """Return the bytes of the workspaces in use."""
        with self._lock:
            self._collect()
            return self._in_use

    def take(self, size: int) -> Workspace:
        """Return a workspace of at least ``size`` bytes, uninitialised."""
        rounded = rounded_size(size)
        with self._lock:
            self._collect()
            index = next((i for i in reversed(range(len(self._free))) if self._free[i].size == rounded), None)
            if index is None:
                buffer = _aligned(rounded)
            else:
                buffer = self._free.pop(index)
                self.free_bytes -= rounded
            assert buffer.size == rounded
            self._in_use += rounded
            self.most_in_use = max(self.most_in_use, self._in_use)
            self._shrink()
        return Workspace(self, buffer)

    def take_back(self, buffer: np.ndarray) -> None:
        """Keep a buffer for reuse."""
        with self._lock:
            self._collect()
            self._keep(buffer)

    def _collect(self) -> None:
        while self.forgotten:
            self._keep(self.forgotten.popleft())

    def _keep(self, buffer: np.ndarray) -> None:
        self._in_use -= buffer.size
        self.free_bytes += buffer.size
        self._free.append(buffer)
        self._shrink()

    def _shrink(self) -> None:
        """Free the oldest free buffers while all together exceed the peak of use by over a quarter."""
        most = max(self.most_in_use, FREE_AT_LEAST)
        while self._free and self._in_use + self.free_bytes > most + most // 4:
            self.free_bytes -= self._free.pop(0).size


def rounded_size(size: int) -> int:
    """Return ``size`` rounded up to 4, 5, 6 or 7 times a power of two."""
    quarter = max(SMALLEST, 1 << max(size - 1, 1).bit_length() - 1) // 4
    return max(SMALLEST, -(-size // quarter) * quarter)


def _aligned(size: int) -> np.ndarray:
    whole = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + size]


POOL = WorkspacePool()


class DropoutSeed:
    """The number of the current forward pass; the same for all layers of a model.

    The training loop sets it before a pass, from run, rank, step and micro-batch. Passes for which nobody
    sets it still differ from each other.
    """

    def __init__(self) -> None:
        self._set, self._passes, self.value = 0, 0, 0

    def set(self, seed: int) -> None:
        """Set the seed of the next forward pass, 32 bits."""
        self._set, self._passes = seed, 0

    def begin_pass(self) -> None:
        """Begin a forward pass: the first uses the seed that was set, later ones other seeds."""
        entropy = np.random.SeedSequence([self._set, self._passes])
        self.value = int(entropy.generate_state(1)[0]) if self._passes else self._set
        self._passes += 1
