"""splitmix64: the random numbers that C++, numpy and plain Python agree on bit for bit.

Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
"""

import numpy as np

MASK = 0xFFFFFFFFFFFFFFFF
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(value: int) -> int:
    """One 64-bit integer to another; neighbours become unrelated."""
    value = (value + GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * FIRST) & MASK
    value = ((value ^ (value >> 27)) * SECOND) & MASK
    return value ^ (value >> 31)


def mix_all(*parts: int) -> int:
    """Fold several integers into one 64-bit integer; the order of the parts matters."""
    state = 0
    for part in parts:
        state = mix((state + part) & MASK)
    return state


def mix_range(start: int, count: int) -> np.ndarray:
    """``mix`` of start, start + 1, ...: uint64, shape [count]."""
    with np.errstate(over="ignore"):
        values = np.uint64(start) + np.arange(count, dtype=np.uint64) + np.uint64(GOLDEN)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(FIRST)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(SECOND)
        return values ^ (values >> np.uint64(31))
