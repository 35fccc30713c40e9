"""How glibc's malloc keeps the memory of a process that trains.

A step frees its activations and asks for them again. As it comes, malloc gives large blocks back to the
system, which hands them out again page by page, zeroed: those above a size that it mapped alone, those at the
end of its heap, and those of the heaps that it has for threads other than the first, which it gives back
whatever it is told of the others. So there is to be one heap, in which nothing is mapped alone or trimmed;
threads that have taken to another before keep it.
Paddle's executor runs the layers of a static graph in a thread of its own.

CPU time of a step and peak memory on one thread, without and with these settings: the medians of three runs
in turn on a processor with AMX, the machine being busy with other work as well:

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
    """Let malloc keep what is freed for the next step; return whether it does.

    For processes that train on the fused kernels and then end: Paddle's own gain nothing, and one that reads
    data, answers requests or is a notebook would hold what it once needed most for good. Nothing is changed
    where the C library is not glibc, where another allocator is preloaded, and where the user has set
    malloc's variables (MALLOC_..., GLIBC_TUNABLES).
    """
    if platform.libc_ver()[0] != "glibc" or is_chosen_by_user():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(name, value) == 1 for name, value in SETTINGS.items())


def is_chosen_by_user() -> bool:
    """Return whether the environment chooses an allocator, or how malloc works."""
    return (
        OTHER_ALLOCATOR.search(os.environ.get("LD_PRELOAD", "")) is not None
        or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
        or any(name.startswith("MALLOC_") for name in os.environ)
    )
