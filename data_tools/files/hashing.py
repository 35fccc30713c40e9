"""splitmix64: the random numbers that C++, numpy and plain Python agree on bit for bit.

Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
"""

import numpy as np
from numpy.random.bit_generator import ISeedSequence

MASK = 0xFFFFFFFFFFFFFFFF
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(value: int) -> int:
    """Map one 64-bit integer to another; neighbours become unrelated."""
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
    """Return `mix` of start, start + 1, ...: uint64 [count]."""
    with np.errstate(over="ignore"):
        values = np.uint64(start) + np.arange(count, dtype=np.uint64) + np.uint64(GOLDEN)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(FIRST)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(SECOND)
        return values ^ (values >> np.uint64(31))


def keyed_rng(*key: int) -> np.random.Generator:
    """Return a generator that depends on ``key`` only; cheaper than numpy's default_rng([...])."""
    state = mix_all(*key)
    words = _Words([mix(state ^ number) for number in range(1, 5)])
    return np.random.Generator(np.random.PCG64(words))  # type: ignore[arg-type]  # an ISeedSequence


class _Words(ISeedSequence):
    """The four 64-bit words that start a PCG64, as they are: splitmix64 has mixed them."""

    def __init__(self, words):
        self.words = np.array(words, np.uint64)

    def generate_state(self, n_words, dtype=np.uint32):
        assert n_words == len(self.words) and dtype == np.uint64
        return self.words
