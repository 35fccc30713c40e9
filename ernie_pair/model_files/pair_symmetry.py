"""Score pairs in both orders, so that the order of the texts does not matter.

With ``average`` the logits of a pair are the mean of those of (a, b) and of (b, a). The two are asked in
an order that follows from the texts alone, so (b, a) asks the same two questions as (a, b), in the same
places of the same batches, and has the same logits to the last bit. It takes twice the time.
"""

from typing import Callable, List, Sequence, Tuple

import numpy as np

SYMMETRIES = ("none", "average")

Score = Callable[[Sequence[str], Sequence[str]], np.ndarray]


def score_pairs(score: Score, left: Sequence[str], right: Sequence[str], symmetric: str) -> np.ndarray:
    """Return the logits float32 [N, C] that ``score`` gives the pairs, as ``symmetric`` says."""
    if symmetric == "none":
        return score(left, right)
    return mean_of_orders(score(*both_orders(left, right)))


def both_orders(left: Sequence[str], right: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Return left and right texts of 2N pairs: each pair with its smaller text first, then all exchanged."""
    smaller = [min(pair) for pair in zip(left, right)]
    larger = [max(pair) for pair in zip(left, right)]
    return smaller + larger, larger + smaller


def mean_of_orders(logits: np.ndarray) -> np.ndarray:
    """Return the mean of the two orders: logits float32 [2N, C] of ``both_orders`` to float32 [N, C]."""
    smaller_first, larger_first = np.split(logits, 2)
    return (smaller_first + larger_first) / 2
