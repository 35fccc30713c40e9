"""Batches prefetched by worker processes, in order, the same for any number of them."""

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Callable, Iterable, Iterator, Sequence

from data_tools.base.errors import LostProcessError
from data_tools.base.process_pool import in_order
from ernie_pair.device.cpu_env import cpu_share

BATCHES_AHEAD = 4  # per worker
START_SECONDS = 60.0

logger = logging.getLogger(__name__)

# In a worker process: what makes its batches, and the barrier where all workers meet when they start.
_make_batch: Callable
_all_started: threading.Barrier


class Loader:
    """Makes the batches ``collate([dataset[i] for i in indices])``; within its context, in worker processes.

    All of them are forked when the context is entered, so that the memory-mapped corpus is shared and nothing
    has to be pickled: enter it before the first kernel runs on a GPU, whose state must not be forked.
    """

    def __init__(self, dataset, collate: Callable, num_workers: int):
        self.make = lambda indices: collate([dataset[index] for index in indices])
        self.num_workers = num_workers
        self._inside = contextlib.ExitStack()

    def __enter__(self) -> "Loader":
        if self.num_workers:
            self._pool = self._new_pool()
            with contextlib.ExitStack() as starting:
                starting.callback(self._pool.shutdown, wait=False, cancel_futures=True)
                self._fork()
                self._inside = starting.pop_all()
        return self

    def __exit__(self, *reason) -> None:
        self._inside.close()

    def batches(self, batches_of_indices: Iterable[Sequence[int]]) -> Iterator:
        """Yield a batch for each of ``batches_of_indices``, in their order, prefetched."""
        if not self.num_workers:
            yield from map(self.make, batches_of_indices)
            return
        most = self.num_workers * BATCHES_AHEAD + 1  # the one in use, and those that wait
        with _death_told():
            yield from in_order(
                lambda indices: self._pool.submit(_work, indices), Future.result, batches_of_indices, most
            )

    def _new_pool(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("fork")
        meeting = context.Barrier(self.num_workers)
        return ProcessPoolExecutor(
            self.num_workers, context, initializer=_start_worker, initargs=(self.make, os.getpid(), meeting)
        )

    def _fork(self) -> None:
        """Fork all workers. Raises LostProcessError if one dies, or starts too late to meet the others."""
        # A pool forks a worker only when none is idle: tasks that wait for each other make it fork all.
        with _death_told():
            try:
                for future in [self._pool.submit(_meet) for _ in range(self.num_workers)]:
                    future.result()
            except threading.BrokenBarrierError:
                raise LostProcessError(
                    f"not all {self.num_workers} loader processes have started within {START_SECONDS:.0f} s; "
                    "lower --num_workers and start again"
                ) from None


@contextlib.contextmanager
def _death_told() -> Iterator[None]:
    """Raise LostProcessError for a worker that has died."""
    try:
        yield
    except BrokenProcessPool:
        raise LostProcessError(
            "a loader process died (out of memory?); lower --num_workers and start again"
        ) from None


def count_workers(asked: int) -> int:
    """Return ``asked``, or the number of cores of this process if it is lower, which is logged."""
    cores = cpu_share().threads
    if asked > cores:
        logger.info("--num_workers %d: %d, as many as this process has cores", asked, cores)
    return min(asked, cores)


def _start_worker(make: Callable, run: int, meeting: threading.Barrier) -> None:
    """Set up a worker process; ``run``: the process id of its parent."""
    global _make_batch, _all_started
    _make_batch, _all_started = make, meeting
    os.setpgid(0, 0)  # the run itself handles signals to the whole group, such as Ctrl-C
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a killed run leaves no worker behind
    if os.getppid() != run:
        os._exit(1)


def _work(indices: Sequence[int]):
    return _make_batch(indices)


def _meet() -> None:
    _all_started.wait(START_SECONDS)
