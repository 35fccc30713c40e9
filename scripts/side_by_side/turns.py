"""The end of a lane's process: it makes as many steps as it is told, says what they took, and waits.

Read by the peer's Python as well, so it imports the standard library alone. Both ends speak in lines: the
number of steps of a turn comes in, a JSON object goes out.
"""

import ctypes
import json
import os
import sys
import time

# glibc: no block of its own for a large array, and nothing is given back to the system between steps.
MALLOC_SETTINGS = {-4: 0, -1: -1, -8: 1}  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_ARENA_MAX


class Turns:
    """The turns of this process. What libraries print goes to stderr, so that the answers stay alone."""

    def __init__(self):
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        sys.stdout.reconfigure(line_buffering=True)  # in the order in which it is said
        self._left, self._taken = 0, []
        self._clock = self._processor = 0.0

    def begin(self):
        """Say that everything is loaded, and wait for the first turn."""
        self._answer({"ready": True})
        self._wait()

    def end_step(self, **counts):
        """Note that a step has ended; at the end of a turn, answer and wait for the next one."""
        seconds, processor = time.perf_counter() - self._clock, time.process_time() - self._processor
        self._taken.append({"seconds": seconds, "cpu_seconds": processor, **counts})
        self._left -= 1
        if not self._left:
            self._answer({"steps": self._taken, "memory_gb": peak_memory_gb()})
            self._wait()
        self._clock, self._processor = time.perf_counter(), time.process_time()

    def _answer(self, message):
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()

    def _wait(self):
        line = sys.stdin.readline()
        if not line.strip():
            os._exit(0)  # the benchmark has what it wants: a run is not ended in order, its folder goes too
        self._left, self._taken = int(line), []
        self._clock, self._processor = time.perf_counter(), time.process_time()


def peak_memory_gb():
    """Return the most memory that this process has held; ru_maxrss counts who started it, too."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        return next(float(line.split()[1]) for line in file if line.startswith("VmHWM:")) * 1024 / 1e9


def tune_malloc():
    """Set glibc's allocator as this package sets it for itself; to be called before a framework is loaded."""
    library = ctypes.CDLL(None)
    for name, value in MALLOC_SETTINGS.items():
        if hasattr(library, "mallopt"):
            library.mallopt(name, value)
