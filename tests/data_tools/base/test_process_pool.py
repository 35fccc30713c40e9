"""Results in the order of their items, some of which are under way at a time."""

import pytest

from data_tools.base.errors import InputError
from data_tools.base.process_pool import in_order

ITEMS = range(20)


def under_way(most, items=ITEMS, result_of=abs):
    """The results, and after each event how many items had been submitted and not been waited for."""
    waiting, seen = [], []

    def submit(item):
        waiting.append(item)
        seen.append(len(waiting))
        return item

    def wait(item):
        waiting.remove(item)
        return result_of(item)

    return in_order(submit, wait, items, most), seen


def test_no_more_than_asked_is_under_way():
    results, seen = under_way(4)
    assert list(results) == list(ITEMS)
    assert max(seen) == 4


def test_an_endless_supply_is_asked_for_little():
    asked = []

    def supply():
        while True:
            asked.append(len(asked))
            yield asked[-1]

    results, _ = under_way(4, supply())
    assert [next(results) for _ in range(3)] == [0, 1, 2] and len(asked) == 7


def test_the_first_error_is_that_of_the_first_item_that_fails():
    results, _ = under_way(4, result_of=lambda item: 1 // (item % 7 - 3))
    with pytest.raises(ZeroDivisionError):
        for number, _ in enumerate(results):
            assert number < 3


def test_a_failed_read_is_told_after_the_results_before_it():
    def supply():
        yield from range(3)
        raise InputError("line 3")

    results, _ = under_way(4, supply())
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(InputError, match="line 3"):
        next(results)
