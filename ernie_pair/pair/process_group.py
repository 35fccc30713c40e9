"""The processes of a run as one: they wait for each other, add up, and share gradients."""

import time
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import ContextManager, Iterator

import numpy as np

from data_tools.base.errors import CollectiveError
from ernie_pair.device.paddle_patches.process_groups import average_gradients, open_store, share_weights
from ernie_pair.processes.watchdog import all_start
from ernie_pair.processes.world import World

POLL_SECONDS = 0.02


class Alone:
    """One process: nothing to wait for."""

    rank, size = 0, 1

    def barrier(self) -> None:
        pass

    def add(self, array: np.ndarray) -> np.ndarray:
        return array

    def total(self, array: np.ndarray) -> np.ndarray:
        return array

    def average(self, tensor) -> None:
        pass

    def share_gradients(self, model):
        return model

    def passing(self, forward, is_last: bool) -> ContextManager:
        return nullcontext()

    def average_gradients(self, model) -> None:
        pass


class Peers:
    """Several processes. Every method is called by all of them, in the same order."""

    def __init__(self, world: World):
        import paddle.distributed as dist

        self.rank, self.size = world.rank, world.size
        with all_start(world):
            dist.init_parallel_env()
            self._store = open_store()
        self._averages_in_backward = dist.get_backend() == "NCCL"
        self._meetings = 0

    def barrier(self) -> None:
        """Wait until all have come, however long one of them takes."""
        self.add(np.zeros(1))

    def add(self, array: np.ndarray) -> np.ndarray:
        """``total``, for processes that may come at very different times.

        gloo gives up on a peer that is 30 seconds late, and the first rank may well be: it writes
        the checkpoints. So the waiting is done at the store, and gloo meets those who are there.
        """
        self._meetings += 1
        key = f"ernie_pair/pair/{self._meetings}"
        with self._meeting():
            arrived = self._store.add(key, 1)
            while arrived < self.size:
                time.sleep(POLL_SECONDS)
                arrived = self._store.add(key, 0)
        return self.total(array)

    def total(self, array: np.ndarray) -> np.ndarray:
        """The sum over all processes. Adding zeros changes no bit."""
        import paddle
        import paddle.distributed as dist

        tensor = paddle.to_tensor(array)
        with self._meeting():
            dist.all_reduce(tensor)
            return tensor.numpy()

    def average(self, tensor) -> None:
        """Make ``tensor``, of Paddle, the mean over all processes, the same bits on each."""
        import paddle.distributed as dist

        with self._meeting():
            dist.all_reduce(tensor)
        tensor.scale_(1.0 / self.size)

    def share_gradients(self, model):
        """Return the forward pass of ``model``, its weights made equal to the first rank's.

        With NCCL it averages the gradients during the backward pass; elsewhere `average_gradients` does so
        after it. gloo would gain nothing, and its errors would end the process there without a word: they
        are C++ exceptions that Paddle's ``backward`` lets through.
        """
        import paddle

        with self._meeting():
            if self._averages_in_backward:
                return paddle.DataParallel(model)
            share_weights(model)
        return model

    def passing(self, forward, is_last: bool) -> ContextManager:
        """Around a forward and backward pass, of which only the last of a step meets the others."""
        return forward.no_sync() if self._averages_in_backward and not is_last else nullcontext()

    def average_gradients(self, model) -> None:
        """Make the gradients of ``model`` the means over all processes, unless ``backward`` has done so."""
        if not self._averages_in_backward:
            with self._meeting():
                average_gradients(model)

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        """Around a collective. Raises CollectiveError for whatever Paddle raises there."""
        try:
            yield
        except (RuntimeError, ValueError, OSError) as error:
            reason = " ".join(str(error).split())
            raise CollectiveError(
                f"rank {self.rank}: the connection to the other processes broke ({reason[:300]}); see what "
                "they printed, then start the same command again"
            ) from error


@lru_cache(maxsize=1)
def join_peers(world: World):
    """The peers of this process, met once however often they are asked for."""
    return Peers(world) if world.size > 1 else Alone()
