"""A dry run keeps nothing: what it would write for later, to a cache for example, is made and forgotten."""

from contextlib import contextmanager
from typing import Iterator

_state = {"keeps": True}  # of the whole process, its threads included


@contextmanager
def nothing_kept(is_dry: bool = True) -> Iterator[None]:
    """Return a context in which `keeps` says False; with ``is_dry`` False it changes nothing."""
    with _kept(_state["keeps"] and not is_dry):
        yield


@contextmanager
def something_kept() -> Iterator[None]:
    """Return a context in which `keeps` says True even in a dry run: for what works from its file alone."""
    with _kept(True):
        yield


def keeps() -> bool:
    """Return whether what was made may be written for later."""
    return _state["keeps"]


@contextmanager
def _kept(value: bool) -> Iterator[None]:
    before = _state["keeps"]
    _state["keeps"] = value
    try:
        yield
    finally:
        _state["keeps"] = before
