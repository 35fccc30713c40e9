"""A thread that makes the next step's batches: order, errors and shutdown."""

import threading

import pytest
from waiting import until

from ernie_pair.runtime.processes.read_ahead import ReadAhead


class Source:
    """Yields [0], [1], ...; records which thread asked for what, and whether it was closed."""

    def __init__(self, count, error_at=None):
        self.count, self.error_at, self.asked, self.is_closed = count, error_at, [], False

    def __iter__(self):
        try:
            for number in range(self.count):
                self.asked.append((number, threading.current_thread().name))
                if number == self.error_at:
                    raise OSError(f"item {number}")
                yield [number]
        finally:
            self.is_closed = True

    def numbers(self):
        return [number for number, _ in self.asked]


def doubled(item):
    return [2 * number for number in item]


def is_reading():
    return any(thread.name == "read ahead" for thread in threading.enumerate())


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_every_item_arrives_once_in_order_and_placed(count):
    with ReadAhead(Source(count), doubled) as items:
        assert list(items) == [[2 * number] for number in range(count)]
    assert not is_reading()


def test_the_first_item_is_made_here_and_the_next_in_a_thread():
    source = Source(9)
    with ReadAhead(source, doubled) as items:
        assert next(items) == [0] and source.asked[0] == (0, threading.current_thread().name)
        until(lambda: len(source.asked) == 3)  # one that is waiting, and the one after it
        assert {name for _, name in source.asked[1:]} == {"read ahead"}
        assert next(items) == [2]
        until(lambda: source.numbers() == [0, 1, 2, 3])


def test_leaving_early_stops_the_thread_and_closes_the_source():
    source = Source(100)
    with ReadAhead(source, doubled) as items:
        next(items)
        until(lambda: len(source.asked) == 3)
    assert not is_reading() and source.is_closed and len(source.asked) == 3


@pytest.mark.parametrize("error_at", [0, 1, 4])
def test_an_error_is_raised_in_place_of_its_item(error_at):
    seen = []
    with pytest.raises(OSError, match=f"item {error_at}"), ReadAhead(Source(9, error_at), doubled) as items:
        for item in items:
            seen.append(item)
    assert seen == [[2 * number] for number in range(error_at)] and not is_reading()


def test_an_error_while_placing_is_raised_for_that_item():
    with pytest.raises(ZeroDivisionError), ReadAhead(Source(5), lambda item: [1 // (item[0] - 2)]) as items:
        assert list(zip(range(2), items))
        next(items)
