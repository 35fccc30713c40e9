"""Several ranks as threads of this process, with a sum that works like a collective."""

import threading

import numpy as np

from ernie_pair.runtime.processes.world import World


class Sum:
    """``all_reduce`` of one of ``size`` ranks that all call it."""

    def __init__(self, size: int):
        self._barrier = threading.Barrier(size, timeout=20)
        self._lock = threading.Lock()
        self._total = None

    def __call__(self, values):
        with self._lock:
            self._total = values if self._total is None else self._total + values
        self._barrier.wait()
        total = self._total
        if self._barrier.wait() == 0:
            self._total = None
        self._barrier.wait()
        return np.asarray(total)


def on_ranks(size, action):
    """``action(world, all_reduce)`` on every rank: what each returned, or the exception it raised."""
    all_reduce, answers = Sum(size), [None] * size

    def run(rank):
        try:
            answers[rank] = action(World(rank, size), all_reduce)
        except Exception as error:
            answers[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
