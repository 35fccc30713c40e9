"""Waiting for what another process does."""

import time


def until(happened, seconds=60):
    """Until ``happened()`` is true; AssertionError after ``seconds``."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
