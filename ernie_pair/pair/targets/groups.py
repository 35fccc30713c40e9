"""Queries and their candidates: which rows are of one query, and which of them a step takes together."""

from typing import Dict, List, Sequence

import numpy as np


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
