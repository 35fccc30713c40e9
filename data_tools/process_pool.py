"""A function over items in several processes: results in order, memory bounded, a death noticed."""

import os
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import Any, Callable, Iterable, Iterator, TypeVar

from data_tools.errors import InputError, MachineError

Item, Result = TypeVar("Item"), TypeVar("Result")
_END = object()
IN_FLIGHT_PER_WORKER = 3


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """``map``, in this process for one worker, otherwise in ``workers`` others (at most the CPUs).

    The results, and the first error, are the same for any number of workers. Raises InputError when
    ``workers`` is below 1, MachineError when a worker dies.
    """
    if workers < 1:
        raise InputError(f"--workers {workers} is below 1; give at least one")
    if workers == 1:
        return map(function, items)
    return _parallel_map(function, items, most_processes(workers))


def most_processes(workers: int) -> int:
    """As many as ``workers``, but no more than this machine is good for."""
    return min(workers, max(4, os.cpu_count() or 1))


def in_order(
    submit: Callable[[Item], Any], result_of: Callable[[Any], Result], items: Iterable[Item], most: int
) -> Iterator[Result]:
    """The results in the order of ``items``, of which at most ``most`` are under way at a time.

    ``submit(item)`` starts one, ``result_of`` waits for what it returned. An unreadable item is
    reported after the results before it, as it would be in one process.
    """
    waiting: deque = deque()
    failure, items = None, iter(items)
    while True:
        item, failure = _next_item(items)
        if item is _END:
            break
        if len(waiting) >= most:
            yield result_of(waiting.popleft())
        waiting.append(submit(item))
    while waiting:
        yield result_of(waiting.popleft())
    if failure:
        raise failure


def _parallel_map(function, items, workers: int) -> Iterator:
    # Spawned, not forked: a fork would copy the locks of whatever threads run here.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_leave_with_parent)
    # Before CPython 3.11.5 (gh-94777) a pool whose worker dies while a large item is on its way waits
    # for ever for the thread that writes it; every result is in before that thread could be missed.
    pool._call_queue.cancel_join_thread()
    try:
        yield from in_order(
            partial(pool.submit, function), Future.result, items, workers * IN_FLIGHT_PER_WORKER
        )
    except BrokenProcessPool:
        raise MachineError(
            "a worker died (killed, or out of memory); run again with fewer --workers"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_with_parent() -> None:
    """A worker whose parent was killed would wait for the next item for ever."""

    def watch():
        wait([parent_process().sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _next_item(items):
    """The next item or _END, and why there are no more when one cannot be read."""
    try:
        return next(items, _END), None
    except InputError as failure:
        return _END, failure
