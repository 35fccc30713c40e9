"""Sentences -> segments A and B, in order or swapped, cut to length."""

from typing import NamedTuple, Optional, Tuple

import numpy as np

IN_ORDER, SWAPPED, NO_LABEL = 0, 1, -1


class Segments(NamedTuple):
    """The places of the segments in the corpus, as slices of its tokens.

    ``b`` is None when the text has one sentence only, or no sentence order is requested.
    """

    a: slice
    b: Optional[slice]
    label: int

    def of(self, values: np.ndarray) -> Tuple[np.ndarray, Optional[np.ndarray]]:
        """Return A and B of ``values`` [tokens of the corpus], as views; B may be None."""
        return values[self.a], None if self.b is None else values[self.b]


def make_segments(
    starts: np.ndarray, max_tokens: int, rng: np.random.Generator, *, binary_head: bool = True
) -> Segments:
    """Split n sentences at a random boundary and swap the parts half of the time.

    Sentence s is the tokens starts[s] to starts[s + 1]; ``starts``: int64 [n + 1]. ``label``: IN_ORDER,
    SWAPPED, or NO_LABEL where there is only one segment. Both segments together hold at most ``max_tokens``
    tokens and each keeps at least one.
    """
    sentences = len(starts) - 1
    begin, end = int(starts[0]), int(starts[-1])
    if sentences < 2 or not binary_head:
        return Segments(_cut(begin, end, max(0, end - begin - max_tokens), rng), None, NO_LABEL)
    border = int(starts[1 + int(rng.random() * (sentences - 1))])
    a, b = (begin, border), (border, end)
    swapped = rng.random() < 0.5
    if swapped:
        a, b = b, a
    cut_a, cut_b = _cuts(a[1] - a[0], b[1] - b[0], max_tokens)
    return Segments(_cut(*a, cut_a, rng), _cut(*b, cut_b, rng), SWAPPED if swapped else IN_ORDER)


def _cuts(length_a: int, length_b: int, max_tokens: int) -> tuple:
    """Return how many tokens each segment loses if each one is taken from the longer (A on a tie)."""
    excess = max(0, length_a + length_b - max_tokens)
    level = min(excess, abs(length_a - length_b))
    rest = excess - level
    from_a, from_b = rest - rest // 2, rest // 2
    return (from_a + level, from_b) if length_a > length_b else (from_a, from_b + level)


def _cut(begin: int, end: int, count: int, rng: np.random.Generator) -> slice:
    """Drop ``count`` tokens, each from the front or the back with equal chance."""
    if not count:
        return slice(begin, end)
    front = int(rng.binomial(count, 0.5))
    return slice(begin + front, end - (count - front))
