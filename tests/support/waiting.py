"""Waiting for what another process does."""

import time


def until(happened, seconds=120):
    """Wait for ``happened()`` to be true, and return it; AssertionError after ``seconds``."""
    end = time.monotonic() + seconds
    while not (what := happened()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
    return what
