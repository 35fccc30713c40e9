"""Results come in the order of their items, of which a limited number is in flight at a time."""

import threading

import pytest

from ernie_pair.core.errors import InputError
from ernie_pair.core.process_pool import in_order, ordered_map

ITEMS = range(20)


def under_way(most, items=ITEMS, result_of=abs):
    """The results, and a list of how many items were in flight after each submission."""
    waiting, seen = [], []

    def submit(item):
        waiting.append(item)
        seen.append(len(waiting))
        return item

    def wait(item):
        waiting.remove(item)
        return result_of(item)

    return in_order(submit, wait, items, most), seen


def test_no_more_items_than_the_limit_are_in_flight():
    results, seen = under_way(4)
    assert list(results) == list(ITEMS)
    assert max(seen) == 4


def test_an_endless_iterator_is_read_only_a_little_ahead():
    asked = []

    def supply():
        while True:
            asked.append(len(asked))
            yield asked[-1]

    results, _ = under_way(4, supply())
    assert [next(results) for _ in range(3)] == [0, 1, 2] and len(asked) == 7


def test_the_error_raised_is_that_of_the_first_failing_item():
    results, _ = under_way(4, result_of=lambda item: 1 // (item % 7 - 3))
    with pytest.raises(ZeroDivisionError):
        for number, _ in enumerate(results):
            assert number < 3


@pytest.mark.parametrize("error", [InputError("line 3"), OSError(5, "line 3"), LookupError("line 3")])
def test_an_input_error_is_raised_after_the_earlier_results(error):
    def supply():
        yield from range(3)
        raise error

    results, _ = under_way(4, supply())
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(type(error), match="line 3"):
        next(results)


def returns_a_lock(item):
    return threading.Lock() if item else item


def raises_a_lock(item):
    if item:
        raise LookupError("item 1", threading.Lock())
    return item


@pytest.mark.parametrize(
    "function, what",
    [(returns_a_lock, "the result of a worker, lock,"), (raises_a_lock, "LookupError..item 1")],
)
def test_a_result_that_cannot_be_pickled_is_a_plain_error(function, what):
    results = ordered_map(function, range(2), workers=2)
    assert next(results) == 0
    with pytest.raises(TypeError, match=f"^{what}.* cannot be pickled: .*lock"):
        next(results)
