"""Batches made ahead of time by worker processes, in order, the same for any number of them."""

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

# Of a worker process: what it makes its batches with, and where all of them meet at their start.
_make_batch: Callable
_all_started: threading.Barrier


class Loader:
    """Makes the batches ``collate([dataset[i] for i in indices])``, within its context in worker processes.

    All of them are forked when the context is entered, so that the memory-mapped corpus is shared and nothing
    has to be pickled: enter it before the first kernel runs on a GPU, whose state no fork is to copy.
    """

    def __init__(self, dataset, collate: Callable, num_workers: int):
        self.make = lambda indices: collate([dataset[index] for index in indices])
        self.num_workers = num_workers
        self._inside = contextlib.ExitStack()

    def __enter__(self) -> "Loader":
        if self.num_workers:
            self._pool = self._fork()
            self._inside.callback(self._pool.shutdown, wait=False, cancel_futures=True)
        return self

    def __exit__(self, *reason) -> None:
        self._inside.close()

    def batches(self, batches_of_indices: Iterable[Sequence[int]]) -> Iterator:
        """Yield a batch for each of ``batches_of_indices``, in their order, made ahead of time."""
        if not self.num_workers:
            yield from map(self.make, batches_of_indices)
            return
        most = self.num_workers * BATCHES_AHEAD + 1  # the one that is taken, and those that wait meanwhile
        with _death_told():
            yield from in_order(
                lambda indices: self._pool.submit(_work, indices), Future.result, batches_of_indices, most
            )

    def _fork(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("fork")
        meeting = context.Barrier(self.num_workers)
        pool = ProcessPoolExecutor(
            self.num_workers, context, initializer=_start_worker, initargs=(self.make, os.getpid(), meeting)
        )
        # A pool forks a worker for a task that finds none idle: tasks that wait for each other need them all.
        with _death_told():
            for future in [pool.submit(_meet) for _ in range(self.num_workers)]:
                future.result()
        return pool


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
    """Return ``asked``, or the cores of this process where they are fewer, which is logged."""
    cores = cpu_share().threads
    if asked > cores:
        logger.info("--num_workers %d: %d, as many as this process has cores", asked, cores)
    return min(asked, cores)


def _start_worker(make: Callable, run: int, meeting: threading.Barrier) -> None:
    """Set up a worker process; ``run``: the process that forked this one."""
    global _make_batch, _all_started
    _make_batch, _all_started = make, meeting
    os.setpgid(0, 0)  # signals to the whole group, as of Ctrl-C, are for the run itself to obey
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a killed run leaves no worker behind
    if os.getppid() != run:
        os._exit(1)


def _work(indices: Sequence[int]):
    return _make_batch(indices)


def _meet() -> None:
    _all_started.wait(START_SECONDS)
