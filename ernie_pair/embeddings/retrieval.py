"""Retrieval metrics: queries search for their matches among many texts.

The set comes from labelled pairs: the queries are the first texts that have a match (a row of label 1), the
corpus is every second text, each once. Q queries, C texts, D numbers. For a query, a text of the corpus that
equals it is left out unless it is one of its matches, or is to be kept: nobody would have to find it.
"""

from typing import NamedTuple, Optional

import numpy as np

from ernie_pair.core.errors import InputError
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.targets.metrics import number_texts

CUTOFFS, NDCG_AT = (1, 10, 100), 10
BEST, GRADED_BEST = "recall_at_10", "spearman"  # choose the best model, if no flag names another
METRICS = (*(f"recall_at_{k}" for k in CUTOFFS), "mrr", f"ndcg_at_{NDCG_AT}", GRADED_BEST)
BLOCK = 256  # queries that are compared with the whole corpus at a time


class RetrievalSet(NamedTuple):
    """Texts, each once, and what is asked of them; all numbers are places in ``texts``.

    ``queries`` int64 [Q]; ``matches[i]`` int64 are those of query i; ``corpus`` int64 [C], ascending.
    ``left``, ``right`` and ``labels`` [pairs] are the rows that it was made from. Of graded pairs, whose
    labels are not 0 and 1 alone, there are no queries and no corpus.
    """

    texts: list[str]
    queries: np.ndarray
    matches: list[np.ndarray]
    corpus: np.ndarray
    left: np.ndarray
    right: np.ndarray
    labels: np.ndarray

    def describe(self) -> str:
        """Return in words what is measured."""
        if not len(self.queries):
            return f"{len(self.labels)} graded pairs, measured by {GRADED_BEST}"
        return f"{len(self.queries)} queries search {len(self.corpus)} texts"

    @property
    def num_left_out(self) -> int:
        """Return how many queries stand in the corpus without being a match of their own."""
        is_own_match = [query in found for query, found in zip(self.queries, self.matches)]
        return int((np.isin(self.queries, self.corpus) & ~np.array(is_own_match, dtype=bool)).sum())


def build_retrieval_set(pairs: Pairs, where: str) -> RetrievalSet:
    """Build the set of graded pairs, or of labelled ones, 1 for a match. Raises InputError without any."""
    places: dict[str, int] = {}
    left, right = (number_texts(side, places) for side in (pairs.left, pairs.right))
    labels, none = pairs.known_labels, np.zeros(0, dtype=np.int64)
    if not np.isin(labels, (0, 1)).all():
        return RetrievalSet(list(places), none, [], none, left, right, labels)
    matches: dict[int, list[int]] = {}
    for query, text in zip(left[labels == 1].tolist(), right[labels == 1].tolist()):
        matches.setdefault(query, []).append(text)
    if not matches:
        raise InputError(f"{where} has no pair of label 1, so no query has a match; take another file")
    queries = np.array(sorted(matches), dtype=np.int64)
    found = [np.unique(np.array(matches[int(query)], dtype=np.int64)) for query in queries]
    return RetrievalSet(list(places), queries, found, np.unique(right), left, right, labels)


def measure_retrieval(
    vectors: np.ndarray,
    retrieval: RetrievalSet,
    query_vectors: Optional[np.ndarray] = None,
    keeps_same_text: bool = False,
) -> dict[str, float]:
    """Return the METRICS of vectors float32 [texts, D] of length 1, of graded pairs ``spearman`` alone.

    ``query_vectors``: the vectors of the same texts as queries, where the model has a prompt for these.
    ``keeps_same_text``: a query is also compared with the text of the corpus that equals it.

    ``recall_at_k`` is the mean share of a query's matches among its k best texts; ``mrr`` the mean of
    1 / (rank of the best match); ``ndcg_at_10`` the discounted gain of matches among the 10 best, of what it
    could be. Of texts with equal scores the matches stand last. ``spearman`` is the rank correlation of the
    cosines of all pairs with their labels, 0 where either is constant.
    """
    from scipy.stats import spearmanr

    of_queries = vectors if query_vectors is None else query_vectors
    of_left, of_right = of_queries[retrieval.left], vectors[retrieval.right]
    cosines = np.einsum("nd,nd->n", of_left, of_right, dtype=np.float64)
    is_constant = len(np.unique(retrieval.labels)) < 2 or len(np.unique(cosines)) < 2
    spearman = 0.0 if is_constant else float(spearmanr(cosines, retrieval.labels).correlation)
    if not len(retrieval.queries):
        return {GRADED_BEST: spearman}
    ranks = match_ranks(vectors, retrieval, of_queries, keeps_same_text)
    counts = np.array([len(one) for one in ranks], dtype=np.float64)
    gains = 1 / np.log2(np.arange(2, NDCG_AT + 2))
    best = np.array([gains[: int(count)].sum() for count in counts])
    found = np.array([(1 / np.log2(one[one <= NDCG_AT] + 1)).sum() for one in ranks])
    values = {f"recall_at_{k}": np.mean([(one <= k).mean() for one in ranks]) for k in CUTOFFS}
    values["mrr"] = np.mean([1 / one.min() for one in ranks])
    values[f"ndcg_at_{NDCG_AT}"] = np.mean(found / best)
    values[GRADED_BEST] = spearman
    return {name: float(values[name]) for name in METRICS}


def match_ranks(
    vectors: np.ndarray, retrieval: RetrievalSet, query_vectors: np.ndarray, keeps_same_text: bool = False
) -> list[np.ndarray]:
    """Return the rank of each match among the texts of the corpus, int64 from 1 on, query by query."""
    corpus = vectors[retrieval.corpus]
    ranks: list[np.ndarray] = []
    for begin in range(0, len(retrieval.queries), BLOCK):
        queries = retrieval.queries[begin : begin + BLOCK]
        scores = query_vectors[queries] @ corpus.T
        for row, query, matches in zip(scores, queries, retrieval.matches[begin : begin + BLOCK]):
            places = np.searchsorted(retrieval.corpus, matches)
            is_other = (retrieval.corpus != query) | keeps_same_text
            is_other[places] = False
            others, own = np.sort(row[is_other]), np.sort(row[places])[::-1]
            better = len(others) - np.searchsorted(others, own, side="left")  # equal ones before a match
            ranks.append(better + np.arange(1, len(own) + 1))
    return ranks
