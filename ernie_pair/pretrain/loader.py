"""Batches made ahead of time by worker processes, in order, the same for any number of them."""

import ctypes
import multiprocessing
import os
import signal
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Callable, Iterable, Iterator, Optional, Sequence

from data_tools.base.errors import LostProcessError
from data_tools.base.process_pool import in_order

BATCHES_AHEAD = 4  # per worker

_make_batch: Callable  # what a worker process makes its batches with


class Loader:
    """The batches ``collate([dataset[i] for i in indices])`` for each of ``batches_of_indices``."""

    def __init__(
        self, dataset, batches_of_indices: Iterable[Sequence[int]], collate: Callable, num_workers: int
    ):
        self.indices = iter(batches_of_indices)
        self.make = lambda indices: collate([dataset[index] for index in indices])
        self.num_workers = num_workers
        self.pool: Optional[ProcessPoolExecutor] = None

    def __enter__(self) -> Iterator:
        if not self.num_workers:
            return map(self.make, self.indices)
        # Forked, so that the memory-mapped corpus is shared and nothing has to be pickled.
        self.pool = ProcessPoolExecutor(
            self.num_workers,
            multiprocessing.get_context("fork"),
            initializer=_start_worker,
            initargs=(self.make, os.getpid()),
        )
        return self._from_workers(self.pool)

    def __exit__(self, *reason) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)

    def _from_workers(self, pool: ProcessPoolExecutor) -> Iterator:
        most = self.num_workers * BATCHES_AHEAD + 1  # the one that is taken, and those that wait meanwhile
        try:
            yield from in_order(
                lambda indices: pool.submit(_work, indices), Future.result, self.indices, most
            )
        except BrokenProcessPool:
            raise LostProcessError(
                "a loader process died (out of memory?); lower --num_workers and start again"
            ) from None


def _start_worker(make: Callable, run: int) -> None:
    """Set up a worker process; ``run``: the process that forked this one."""
    global _make_batch
    _make_batch = make
    os.setpgid(0, 0)  # signals to the whole group, as of Ctrl-C, are for the run itself to obey
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a killed run leaves no worker behind
    if os.getppid() != run:
        os._exit(1)


def _work(indices: Sequence[int]):
    return _make_batch(indices)
