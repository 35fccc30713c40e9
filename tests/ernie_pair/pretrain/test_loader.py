"""Batches made ahead of time: the same for any number of workers, and a death that is noticed."""

import os
import signal

import pytest

from data_tools.base.errors import LostProcessError
from ernie_pair.pretrain.loader import Loader

BATCHES = [range(first, first + 3) for first in range(0, 60, 3)]


class Squares:
    """A dataset without the item 31, and whose item 32 is the end of the process that asks for it."""

    def __init__(self, has_all=True):
        self.has_all = has_all

    def __getitem__(self, index):
        if index == 31 and not self.has_all:
            raise IndexError("item 31")
        if index == 32 and not self.has_all:
            os.kill(os.getpid(), signal.SIGKILL)
        return index * index


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_batches_come_in_order_from_any_number_of_workers(num_workers):
    with Loader(Squares(), BATCHES, list, num_workers) as batches:
        assert list(batches) == [[index * index for index in indices] for indices in BATCHES]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_takes_the_place_of_its_batch(num_workers):
    with Loader(Squares(has_all=False), BATCHES, list, num_workers) as batches:
        assert [next(batches) for _ in range(10)][-1] == [27 * 27, 28 * 28, 29 * 29]
        with pytest.raises(IndexError, match="item 31"):
            next(batches)


def test_a_worker_that_is_killed_is_told():
    dying = [[0], [1], [32], [2]]
    with Loader(Squares(has_all=False), dying, list, 1) as batches, pytest.raises(LostProcessError):
        list(batches)
