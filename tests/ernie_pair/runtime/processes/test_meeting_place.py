"""Processes wait for each other through a store, at every meeting, however late one of them is."""

import threading
import time
from collections import Counter

import pytest

from ernie_pair.runtime.processes import sockets as meeting_place
from ernie_pair.runtime.processes.sockets import MeetingPlace


class Store:
    """Like Paddle's store: ``add`` returns the sum so far."""

    def __init__(self):
        self.sums, self.lock = Counter(), threading.Lock()

    def add(self, key, number):
        with self.lock:
            self.sums[key] += number
            return self.sums[key]


def test_no_process_continues_before_the_last_one_arrives():
    store, went_on = Store(), []

    def meet(rank):
        place = MeetingPlace(store, 3, "test")
        for meeting in range(4):
            time.sleep(0.03 * (rank == meeting % 3))
            store.add(f"came to {meeting}", 1)
            place.wait_for_all()
            went_on.append(store.add(f"came to {meeting}", 0))

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert went_on == [3] * 12


def test_meetings_with_different_names_do_not_mix(monkeypatch):
    store = Store()
    MeetingPlace(store, 1, "pair").wait_for_all()

    def give_up(seconds):
        raise TimeoutError

    monkeypatch.setattr(meeting_place.time, "sleep", give_up)
    with pytest.raises(TimeoutError):
        MeetingPlace(store, 2, "pretrain").wait_for_all()
