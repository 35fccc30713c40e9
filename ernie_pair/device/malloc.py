"""How glibc's malloc keeps the memory of a process that trains.

A step frees its activations and asks for them again. As it comes, malloc gives large blocks back to the
system, which hands them out again page by page, zeroed. Measured with 4 layers x 312, one thread of an
AVX512-BF16 processor, CPU time of a step and peak memory, medians of three runs in turn, without and with
these settings:

static graph, fused bf16, 2 x 8 x 128       504 -> 404 ms    1341 -> 1559 MB
static graph, Paddle's own kernels          1010 -> 1028     1850 -> 1960
pairs, fused bf16, 64 x 25                  170 -> 163       1227 -> 1237

256 MiB more at the top (M_TOP_PAD) gain up to 5 % of the static step and cost 100 to 350 MB. A threshold for
trimming alone is slower than nothing, 250 ms for 170: malloc then no longer raises the size from which on it
asks the system.
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
