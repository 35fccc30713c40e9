"""Settings of glibc's malloc for a training process.

A step frees its activations and allocates them again. By default, malloc returns large blocks to the
system, which hands them out again page by page, zeroed: those above a size that it mapped separately, those
at the end of its heap, and those of the heaps that it has for threads other than the first, which it returns
whatever its settings for the others. So there must be one heap, in which nothing is mapped separately or
trimmed; threads that already use another heap keep it. Paddle's executor runs the layers of a static graph in
a thread of its own.

CPU time of a step and peak memory on one thread, without and with these settings: the medians of three runs
in alternation on a processor with AMX, the machine being busy with other work as well:

static graph, 12 x 768, fused bf16, 8 x 128     2290 -> 2016 ms    4.2 -> 5.3 GB
pairs, 4 x 312, fused bf16, 64 x 40              222 -> 213        1.2 -> 1.2
"""

import ctypes
import os
import platform
import re

TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8  # as <malloc.h> numbers them
SETTINGS = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, ARENA_MAX: 1}
OTHER_ALLOCATOR = re.compile("malloc|hoard|scudo")  # jemalloc, tcmalloc, mimalloc


def keep_freed_memory() -> bool:
    """Let malloc keep freed memory for the next step; return whether it does.

    For processes that train on the fused kernels and then end: Paddle's own kernels gain nothing, and a
    process that reads data, answers requests or is a notebook would hold its peak memory for good. Nothing is
    changed if the C library is not glibc, if another allocator is preloaded, or if the user has set malloc's
    variables (MALLOC_..., GLIBC_TUNABLES).
    """
    if platform.libc_ver()[0] != "glibc" or is_chosen_by_user():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(name, value) == 1 for name, value in SETTINGS.items())


def is_chosen_by_user() -> bool:
    """Return whether the environment selects an allocator, or configures malloc."""
    return (
        OTHER_ALLOCATOR.search(os.environ.get("LD_PRELOAD", "")) is not None
        or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
        or any(name.startswith("MALLOC_") for name in os.environ)
    )
