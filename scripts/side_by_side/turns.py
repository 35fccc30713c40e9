"""The lane's side of taking turns: run as many steps as requested, report what they took, and wait.

The peer's Python runs it as well, so it imports only the standard library. The protocol is lines: the number
of steps of a turn comes in, a JSON object goes out.
"""

import ctypes
import json
import os
import sys
import time

# glibc: no separate mmap for a large array, and nothing is returned to the system between steps.
MALLOC_SETTINGS = {-4: 0, -1: -1, -8: 1}  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_ARENA_MAX


class Turns:
    """The turns of this process. What libraries print goes to stderr, so that stdout has only the answers."""

    def __init__(self):
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
        os.dup2(2, 1)
        sys.stdout.reconfigure(line_buffering=True)  # keeps the output in order

    def begin(self):
        """Report that everything is loaded, and wait for the first turn."""
        self._answer({"ready": True})

    def end_step(self, **counts):
        """Note that a step has ended; at the end of a turn, answer and wait for the next one."""
        seconds, processor = time.perf_counter() - self._clock, time.process_time() - self._processor
        self._taken.append({"seconds": seconds, "cpu_seconds": processor, **counts})
        if len(self._taken) == self._steps:
            # ru_maxrss would include the peak of its parent.
            with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
                peak = next(float(line.split()[1]) for line in file if line.startswith("VmHWM:"))
            self._answer({"steps": self._taken, "memory_gb": peak * 1024 / 1e9})
        self._clock, self._processor = time.perf_counter(), time.process_time()

    def repeat(self, step):
        """Take all turns with ``step``; a dictionary that it returns has further counts."""
        self.begin()
        while True:
            counts = step()
            self.end_step(**(counts if isinstance(counts, dict) else {}))

    def _answer(self, message):
        self._answers.write(json.dumps(message) + "\n")
        line = sys.stdin.readline()
        if not line.strip():
            os._exit(0)  # the benchmark has its figures: no orderly end, the folder is deleted too
        self._steps, self._taken = int(line), []
        self._clock, self._processor = time.perf_counter(), time.process_time()


def tune_malloc():
    """Tune glibc's allocator as this package does for itself; call it before a framework is loaded."""
    library = ctypes.CDLL(None)
    for name, value in MALLOC_SETTINGS.items() if hasattr(library, "mallopt") else ():
        library.mallopt(name, value)
