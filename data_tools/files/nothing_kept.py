"""A dry run keeps nothing: what it would store, for example in a cache, is computed and discarded."""

from contextlib import contextmanager
from typing import Iterator

_state = {"keeps": True}  # of the whole process, its threads included


@contextmanager
def nothing_kept(is_dry: bool = True) -> Iterator[None]:
    """Return a context in which `keeps` returns False; with ``is_dry`` False it changes nothing."""
    with _kept(_state["keeps"] and not is_dry):
        yield


@contextmanager
def something_kept() -> Iterator[None]:
    """Return a context in which `keeps` returns True even in a dry run: for what is only used from a file."""
    with _kept(True):
        yield


def keeps() -> bool:
    """Return whether results may be stored for later."""
    return _state["keeps"]


@contextmanager
def _kept(value: bool) -> Iterator[None]:
    before = _state["keeps"]
    _state["keeps"] = value
    try:
        yield
    finally:
        _state["keeps"] = before
