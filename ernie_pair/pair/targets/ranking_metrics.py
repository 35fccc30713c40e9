"""Metrics of an order: where the relevant candidates of a query stand among all of its candidates."""

from typing import Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from data_tools.files.errors import InputError


def groups_of(queries: Sequence[str]) -> np.ndarray:
    """Return the number of the query of each row, int64 [N], counted by first appearance."""
    numbers: Dict[str, int] = {}
    return np.array([numbers.setdefault(query, len(numbers)) for query in queries], dtype=np.int64)


def rows_without_positive(groups: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the rows of the queries none of whose candidates has the label 1, int64; rows rising."""
    positives = np.bincount(groups, weights=labels == 1, minlength=int(groups.max()) + 1)
    return np.flatnonzero(positives[groups] == 0)


def rows_by_group(groups: np.ndarray) -> List[np.ndarray]:
    """Return the rows of each query, int64, rising; ``groups`` int64 [N] as of ``groups_of``."""
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)


def training_groups(groups: np.ndarray, labels: np.ndarray, most: int) -> List[np.ndarray]:
    """Return the rows that a step takes together, int64 [at most ``most``] each, positives first.

    Each holds candidates of one query, with a positive and a negative among them: a query without either
    teaches no order. One with more than ``most`` candidates stands in several, in each with its positives, or
    with a part of them where they fill more than half, and another part of its negatives.
    """
    found = []
    for rows in rows_by_group(groups):
        positives, negatives = rows[labels[rows] == 1], rows[labels[rows] == 0]
        if not len(positives) or not len(negatives):
            continue
        at_once = len(positives) if len(positives) <= most // 2 else most // 2
        at_once = len(positives) if len(rows) <= most else at_once
        for first in range(0, len(positives), at_once):
            chosen = positives[first : first + at_once]
            room = most - len(chosen)
            for begin in range(0, len(negatives), room):
                found.append(np.concatenate([chosen, negatives[begin : begin + room]]))
    return found


# What `measure_ranking` returns; every one is a number that may choose the best model of a run.
RANKING_METRICS = ("loss", "mrr", "map", "ndcg", "hit_at_1")


class RankedQuery(NamedTuple):
    """One query: its ``rows`` by falling score, and the ranks of its relevant ones, from 1, rising."""

    rows: np.ndarray
    ranks: np.ndarray


def ranked_queries(scores: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> List[RankedQuery]:
    """Return the queries that have a relevant candidate, of label 1, and another one, of label 0.

    ``scores`` float [N], ``labels`` int64 [N], ``groups`` int64 [N] the query of each row. Of equal scores
    the irrelevant one stands first: a model that tells nothing apart ranks nothing well.
    """
    found = []
    for rows in rows_by_group(groups):
        relevant = labels[rows]
        if 0 < relevant.sum() < len(rows):
            order = np.lexsort((relevant, -scores[rows]))
            found.append(RankedQuery(rows[order], np.flatnonzero(relevant[order] == 1) + 1))
    return found


def measure_ranking(
    outputs: np.ndarray, labels: np.ndarray, groups: Optional[np.ndarray] = None
) -> Dict[str, float]:
    """Return the RANKING_METRICS, means over the queries, of outputs [N, 1] on labels int64 [N].

    ``groups`` int64 [N] is the query of each row. loss is the listwise one: the cross-entropy of softmax over
    the candidates of a query against its relevant ones. mrr is 1 / the rank of the first relevant candidate,
    map the mean precision at the ranks of all of them, ndcg their gains with logarithmic discount (Jaervelin
    and Kekaelaeinen 2002), hit_at_1 whether the first candidate is relevant. Nan where no query has both.
    """
    assert groups is not None  # whoever measures an order knows the queries
    counted = CountedQueries(outputs, labels, groups)
    return counted.measure(np.ones(counted.num_queries, dtype=np.int64))


class CountedQueries:
    """The RANKING_METRICS of a file in which query i occurs counts[i] times; see ``measure_ranking``."""

    def __init__(self, outputs: np.ndarray, labels: np.ndarray, groups: np.ndarray):
        scores = outputs[:, 0].astype(np.float64)
        self.queries = ranked_queries(scores, labels, groups)
        self.num_queries = len(self.queries)
        rows = [_measure_query(query, scores[query.rows]) for query in self.queries]
        self.values = np.array(rows, dtype=np.float64).reshape(-1, len(RANKING_METRICS))

    def measure(self, counts: np.ndarray) -> Dict[str, float]:
        """Return the metrics of the file in which query i occurs counts[i] times; ``counts`` int64 [Q]."""
        if not self.num_queries:
            return dict.fromkeys(RANKING_METRICS, np.nan)
        return dict(zip(RANKING_METRICS, (counts @ self.values / counts.sum()).tolist()))


def _measure_query(query: RankedQuery, scores: np.ndarray) -> List[float]:
    """Return the RANKING_METRICS of a query whose candidates have these falling ``scores``."""
    ranks = query.ranks
    ideal = np.arange(1, len(ranks) + 1)
    log_sum = scores[0] + np.log(np.exp(scores - scores[0]).sum())
    return [
        float(log_sum - scores[ranks - 1].mean()),
        1 / ranks[0],
        float((ideal / ranks).mean()),
        float((1 / np.log2(ranks + 1)).sum() / (1 / np.log2(ideal + 1)).sum()),
        float(ranks[0] == 1),
    ]


def refuse_nothing_to_rank(labels: np.ndarray, groups: Optional[np.ndarray], where: str) -> None:
    """Raise InputError when no query of a file has both a relevant candidate and another one."""
    assert groups is not None  # a file that is ranked is read with its queries
    positives = np.bincount(groups, weights=labels == 1)
    if not np.any((positives > 0) & (positives < np.bincount(groups))):
        raise InputError(
            f"{where} has no query with both a candidate of label 1 and one of label 0, so there is no order "
            "to learn or to measure; rows of one query have the same first text, or the same --query"
        )
