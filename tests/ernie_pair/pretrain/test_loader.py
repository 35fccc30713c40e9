"""Batches made ahead of time: the same for any number of workers, and a killed worker is noticed."""

import multiprocessing
import os
import signal

import pytest
from waiting import until

from data_tools.files.errors import LostProcessError
from ernie_pair.pretrain import data as loader
from ernie_pair.pretrain.data import Loader, count_workers
from ernie_pair.runtime.cpu import Share

BATCHES = [range(first, first + 3) for first in range(0, 60, 3)]


class Squares:
    """Unless ``has_all``, item 31 raises IndexError and item 32 kills the process that asks for it."""

    def __init__(self, has_all=True):
        self.has_all = has_all

    def __getitem__(self, index):
        if index == 31 and not self.has_all:
            raise IndexError("item 31")
        if index == 32 and not self.has_all:
            os.kill(os.getpid(), signal.SIGKILL)
        return index * index


@pytest.mark.parametrize("asked, cores, started", [(0, 1, 0), (2, 1, 1), (2, 8, 2), (9, 4, 4)])
def test_workers_are_limited_to_the_cores_of_the_process(asked, cores, started, monkeypatch, caplog):
    monkeypatch.setattr(loader, "cpu_share", lambda: Share(list(range(cores)), cores, is_own=True))
    with caplog.at_level("INFO"):
        assert count_workers(asked) == started
    assert ("as many as this process has cores" in caplog.text) is (started < asked)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_batches_come_in_order_from_any_number_of_workers(num_workers):
    with Loader(Squares(), list, num_workers) as loader:
        for _ in range(2):  # the workers are reused
            assert list(loader.batches(BATCHES)) == [[index * index for index in each] for each in BATCHES]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_is_raised_in_place_of_its_batch(num_workers):
    with Loader(Squares(has_all=False), list, num_workers) as loader:
        batches = loader.batches(BATCHES)
        assert [next(batches) for _ in range(10)][-1] == [27 * 27, 28 * 28, 29 * 29]
        with pytest.raises(IndexError, match="item 31"):
            next(batches)


def test_a_killed_worker_is_reported():
    dying = [[0], [1], [32], [2]]
    with Loader(Squares(has_all=False), list, 1) as loader, pytest.raises(LostProcessError):
        list(loader.batches(dying))


def test_workers_that_start_too_late_are_reported_and_ended(monkeypatch):
    monkeypatch.setattr(loader, "START_SECONDS", 0.0)  # nobody waits for the others
    late = Loader(Squares(), list, 2)
    with pytest.raises(LostProcessError, match="not all 2 loader processes have started within 0 s; lower"):
        late.__enter__()
    until(lambda: not multiprocessing.active_children(), seconds=20)


class Processes:
    """A dataset whose items say which process made them, and whether it has seen a later change."""

    said = "before"

    def __getitem__(self, index):
        return os.getpid(), self.said


def test_all_processes_are_forked_before_the_first_batch():
    """Nothing this process does after entering the context, such as opening a GPU, affects the workers."""
    dataset = Processes()
    with Loader(dataset, list, 3) as loader:
        children = set(multiprocessing.active_children())
        Processes.said = dataset.said = "after"
        made = [one for batch in loader.batches(BATCHES) for one in batch]
        assert len(children) == 3 and set(multiprocessing.active_children()) == children
    pids, said = map(set, zip(*made))
    assert said == {"before"} and pids <= {child.pid for child in children}
