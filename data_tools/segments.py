"""Sentences -> segments A and B, in order or swapped, cut to length."""

from typing import NamedTuple, Optional

import numpy as np

IN_ORDER, SWAPPED, NO_LABEL = 0, 1, -1


class Segments(NamedTuple):
    """``b`` is None when the text has one sentence only, or no sentence order is asked for."""

    a: np.ndarray
    b: Optional[np.ndarray]
    label: int


def make_segments(
    ids: np.ndarray,
    starts: np.ndarray,
    max_tokens: int,
    rng: np.random.Generator,
    *,
    binary_head: bool = True,
) -> Segments:
    """Split n sentences at a random border and swap the halves half of the time.

    Sentence s is ids[starts[s]:starts[s + 1]]; ``starts`` [n + 1]. ``label``: IN_ORDER, SWAPPED, or
    NO_LABEL where there is only one segment. Both segments together hold at most ``max_tokens``
    tokens and each keeps at least one. The segments are views of ``ids``.
    """
    sentences = len(starts) - 1
    begin, end = int(starts[0]), int(starts[-1])
    if sentences < 2 or not binary_head:
        return Segments(_cut(ids[begin:end], max(0, end - begin - max_tokens), rng), None, NO_LABEL)
    border = int(starts[1 + int(rng.random() * (sentences - 1))])
    a, b = ids[begin:border], ids[border:end]
    swapped = rng.random() < 0.5
    if swapped:
        a, b = b, a
    cut_a, cut_b = _cuts(len(a), len(b), max_tokens)
    return Segments(_cut(a, cut_a, rng), _cut(b, cut_b, rng), SWAPPED if swapped else IN_ORDER)


def _cuts(length_a: int, length_b: int, max_tokens: int) -> tuple:
    """How many tokens each segment loses when the longer one always gives the next (A on a tie)."""
    excess = max(0, length_a + length_b - max_tokens)
    level = min(excess, abs(length_a - length_b))
    rest = excess - level
    from_a, from_b = rest - rest // 2, rest // 2
    return (from_a + level, from_b) if length_a > length_b else (from_a, from_b + level)


def _cut(tokens: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Drop ``count`` tokens, each from the front or the back with equal chance."""
    if not count:
        return tokens
    front = int(rng.binomial(count, 0.5))
    return tokens[front : len(tokens) - (count - front)]
