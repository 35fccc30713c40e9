"""The best of many candidates for a query, in memory that does not grow with their number."""

from heapq import heappush, heapreplace
from itertools import islice
from typing import Callable, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np

from data_tools.files.errors import InputError, NumbersError

CANDIDATES = 4096  # scored at a time


class Ranked(NamedTuple):
    """A candidate and how well it matches the query."""

    place: int  # among the candidates, from 0
    text: str
    score: float  # a probability with two classes, otherwise the score of the model


def rank_texts(
    score: Callable[[Sequence[str]], np.ndarray], candidates: Iterable[str], top_k: int
) -> List[Ranked]:
    """Return the ``top_k`` candidates with the best ``score``, best first; ties in their order.

    ``score``: candidates to numbers, float64 [N]. ``candidates`` may be an iterator of any length: CANDIDATES
    and top_k of them are in memory at a time. Raises InputError for a ``top_k`` below 1 and for a candidate
    that is not a text, NumbersError for a score that is NaN.
    """
    if top_k < 1:
        raise InputError(f"top_k {top_k} is below 1; ask for at least one")
    best: List[Tuple[float, int, str]] = []  # a heap, the worst first; of equals the last one is the worst
    for first, window in _windows(candidates):
        scores = np.asarray(score(window), dtype=np.float64)
        if np.isnan(scores).any():
            raise NumbersError(f"the score of candidate {first + int(np.isnan(scores).argmax())} is NaN")
        for place in _promising(scores, best, top_k):
            held = (float(scores[place]), -(first + place), window[place])
            if len(best) < top_k:
                heappush(best, held)
            elif held > best[0]:
                heapreplace(best, held)
    return [Ranked(-place, text, value) for value, place, text in sorted(best, reverse=True)]


def best_places(scores: np.ndarray, top_k: int) -> List[int]:
    """Return the positions of the ``top_k`` best of scores [N], best first; ties in their order."""
    return np.argsort(-np.asarray(scores), kind="stable")[:top_k].tolist()


def _windows(candidates: Iterable[str]) -> Iterator[Tuple[int, List[str]]]:
    if isinstance(candidates, (str, bytes)):
        raise InputError(f"the candidates are one text, {candidates[:60]!r}; give a list of texts")
    rest, first = iter(candidates), 0
    while True:
        window = list(islice(rest, CANDIDATES))
        if not window:
            return
        for place, text in enumerate(window, first):
            if not isinstance(text, str):
                raise InputError(f"candidate {place} is {str(text)[:60]}; give a text")
        yield first, window
        first += len(window)


def _promising(scores: np.ndarray, best: List, top_k: int) -> List[int]:
    """Return the positions of a window that may be among the best, ascending."""
    if len(best) == top_k:
        return np.flatnonzero(scores > best[0][0]).tolist()
    return list(range(len(scores)))
