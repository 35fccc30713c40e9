"""The process group of a run: ranks wait for each other, all-reduce arrays, and average gradients."""

import time
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import ContextManager, Iterator

import numpy as np

from ernie_pair.core.errors import CollectiveError
from ernie_pair.runtime.paddle_patches.process_groups import (
    average_gradients,
    join_processes,
    open_store,
    share_weights,
)
from ernie_pair.runtime.processes.stop_signals import skip_destructors
from ernie_pair.runtime.processes.watchdog import all_start
from ernie_pair.runtime.processes.world import World


class ProcessGroup:
    """The processes of a run. Every method is called by all ranks, in the same order.

    A single process has nobody to wait for: what it gives is the sum and the mean. A method raises
    CollectiveError when the connection to the others breaks.
    """

    def __init__(self, world: World = World()):  # noqa: B008
        self.rank, self.size = world.rank, world.size
        self._is_nccl = self._fp32_sums = self._averages_afterwards = False
        if self.size == 1:
            return
        import paddle.distributed

        self._dist = paddle.distributed
        with all_start(world):
            join_processes()
            self._barrier = StoreBarrier(open_store(), world.size, "pair")
        self._is_nccl = self._dist.get_backend() == "NCCL"
        if not self._is_nccl:
            skip_destructors()

    @property
    def _averages_in_backward(self) -> bool:
        return self._is_nccl and not (self._fp32_sums or self._averages_afterwards)

    def barrier(self) -> None:
        """Wait until all ranks have come, however long one of them takes."""
        self.all_reduce(np.zeros(1))

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of ``array`` over all ranks, which may come at very different times."""
        self.meet()
        return self.all_reduce_now(array)

    def meet(self) -> None:
        """Wait for the other ranks where the collectives that follow would soon time out."""
        if self.size > 1:
            with self._collective():
                self._barrier.wait_for_all()

    def all_reduce_now(self, array: np.ndarray) -> np.ndarray:
        """All-reduce ``array`` and return its sum over all ranks. Adding zeros changes no bit."""
        if self.size == 1:
            return array
        import paddle

        tensor = paddle.to_tensor(array)
        with self._collective():
            self._dist.all_reduce(tensor)
            return tensor.numpy()

    def add_up(self, tensor) -> None:
        """Make ``tensor``, of Paddle, the sum over all ranks."""
        if self.size > 1:
            with self._collective():
                self._dist.all_reduce(tensor)

    def average(self, tensor) -> None:
        """Make ``tensor``, of Paddle, the mean over all ranks, the same bits on each."""
        self.add_up(tensor)
        if self.size > 1:
            tensor.scale_(1.0 / self.size)

    def share_gradients(self, model, fp32_sums: bool = False, afterwards: bool = False):
        """Return the forward pass of ``model``, its weights made equal to those of rank 0.

        With NCCL it averages the gradients during the backward pass; elsewhere `average_gradients` does so
        after it. gloo would gain nothing, and its errors would end the process there without a word: they are
        C++ exceptions that Paddle's ``backward`` lets through. ``fp32_sums``: half gradients become float32
        and are averaged so, for which there is no way during the backward pass. ``afterwards``: not during
        it with NCCL either, which would wait for the gradient of a parameter that gets none.
        """
        if self.size == 1:
            return model
        import paddle

        self._fp32_sums, self._averages_afterwards = fp32_sums, afterwards
        with self._collective():
            if self._averages_in_backward:
                return paddle.DataParallel(model)
            share_weights(model)
        return model

    def passing(self, forward, is_last: bool) -> ContextManager:
        """Return the context of a forward and backward pass; the last one of a step averages gradients.

        With a backend other than NCCL the context does nothing, see `average_gradients`.
        """
        return forward.no_sync() if self._averages_in_backward and not is_last else nullcontext()

    def average_gradients(self, model, of_forward: bool = True) -> None:
        """Make the gradients of ``model`` the means over all ranks, unless the backward pass has done so.

        It has not where the passes are not ``of_forward``, what `share_gradients` returns.
        """
        if self.size > 1 and not (of_forward and self._averages_in_backward):
            with self._collective():
                average_gradients(model, self._fp32_sums)

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Guard a collective: whatever Paddle raises in it becomes a CollectiveError."""
        try:
            yield
        except (RuntimeError, ValueError, OSError) as error:
            reason = " ".join(str(error).split())
            raise CollectiveError(
                f"rank {self.rank}: the connection to the other processes broke ({reason[:300]}); see what "
                "they printed, then start the same command again"
            ) from error


@lru_cache(maxsize=1)
def join_process_group(world: World) -> ProcessGroup:
    """Return the process group of this process, joined once however often it is asked for."""
    return ProcessGroup(world)


POLL_SECONDS = 0.02


class StoreBarrier:
    """A key of ``store`` for every meeting of ``size`` processes; ``name`` tells its keys from others'.

    ``store.add(key, number)`` returns the sum so far of what all processes have added to ``key``.
    """

    def __init__(self, store, size: int, name: str):
        self._store, self._size, self._name = store, size, name
        self._meetings = 0

    def wait_for_all(self) -> None:
        """Wait until every process has come as often as this one."""
        self._meetings += 1
        key = f"ernie_pair/{self._name}/{self._meetings}"
        arrived = self._store.add(key, 1)
        while arrived < self._size:
            time.sleep(POLL_SECONDS)
            arrived = self._store.add(key, 0)
