"""How strongly the tokens of an n-gram are associated: the scores by which a lexicon is chosen.

With count(w) of an n-gram w = w_1 .. w_n, N_n windows of n tokens in all, p(w) = count(w) / N_n, and its
probability if its tokens were independent, q(w) = p(w_1) x .. x p(w_n):

    t    (p(w) - q(w)) / sqrt(p(w) (1 - p(w)) / N_n)  the t-statistic of ERNIE-Gram, favours frequent ones
    pmi  ln(p(w) / q(w))                              pointwise mutual information, favours rare ones

Xiao et al., "ERNIE-Gram: Pre-Training with Explicitly N-Gram Masked Language Modeling", 2021, section 3.5 and
its appendix; Church and Hanks, "Word association norms, mutual information, and lexicography", 1990.
"""

from typing import NamedTuple

import numpy as np


class Scored(NamedTuple):
    """n-grams of one length, the best first: int64, float64 and int64 [K]."""

    keys: np.ndarray
    scores: np.ndarray
    counts: np.ndarray


NOTHING = Scored(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))


class Scorer:
    """Scores n-grams of ``length`` tokens, of which the text has ``windows`` in all.

    ``token_counts``: int64 [V], how often each token is counted. ``kind``: "t" or "pmi".
    """

    def __init__(self, kind: str, token_counts: np.ndarray, length: int, windows: int):
        self.kind, self.length, self.windows = kind, length, windows
        self._shares = token_counts / max(1, token_counts.sum())

    def score(self, keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the scores of n-grams, int64 [K] and how often each occurs, int64 [K]: float64 [K]."""
        by_chance, rest = np.ones(len(keys)), keys
        for _ in range(self.length):
            rest, last = np.divmod(rest, len(self._shares))
            by_chance *= self._shares[last]
        share = counts / self.windows
        if self.kind == "pmi":
            return np.log(share / by_chance)
        deviation = np.sqrt(share * (1 - share) / self.windows)
        # If the text is one n-gram only, its deviation is 0: then no score is higher.
        return np.divide(share - by_chance, deviation, out=np.full(len(keys), np.inf), where=deviation > 0)


def better_of(one: Scored, other: Scored, most: int) -> Scored:
    """Return the ``most`` best of two, the best first; ties by their keys."""
    keys, scores, counts = (np.concatenate(parts) for parts in zip(one, other))
    if len(keys) > most:
        least = np.partition(scores, len(scores) - most)[len(scores) - most]
        near = scores >= least
        keys, scores, counts = keys[near], scores[near], counts[near]
    order = np.lexsort((keys, -scores))[:most]
    return Scored(keys[order], scores[order], counts[order])
