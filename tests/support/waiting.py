"""Waiting for what another process does, and ports that nothing listens at."""

import json
import os
import signal
import socket
import subprocess
import time

from launched import QUIET, one_thread


def until(happened, seconds=120):
    """Wait for ``happened()`` to be true, and return it; AssertionError after ``seconds``."""
    end = time.monotonic() + seconds
    while not (what := happened()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
    return what


def children_of(pid):
    listing = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [int(child) for child in listing.split()]


def kill_launched(line, output, checkpoint="step_00000002"):
    """Start a launcher; once ``output`` has the checkpoint kill it and its ranks, as a machine would.

    The heartbeats in ``output`` name the ranks.
    """
    process = subprocess.Popen(line, start_new_session=True, env=one_thread(), **QUIET)
    until((output / "checkpoints" / checkpoint).exists)
    ranks = [json.loads(path.read_text())["pid"] for path in (output / "ranks").glob("*.json")]
    for pid in (process.pid, *ranks):
        os.kill(pid, signal.SIGKILL)
    process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
