"""The pairs of a file as candidates of queries, which a ranking model learns to order."""

from typing import List, Optional

import numpy as np

from data_tools.base.errors import InputError
from ernie_pair.model_files.labels import RANKING, Labels
from ernie_pair.pair.data.pair_cells import shown
from ernie_pair.pair.data.pair_file import BadRow, Pairs
from ernie_pair.pair.data.pair_records import RowRules
from ernie_pair.pair.targets.groups import groups_of, rows_without_positive


def group_candidates(pairs: Pairs, labels: Optional[Labels], rules: RowRules) -> Pairs:
    """Return ``pairs`` with the query of each row, where ``labels`` are of candidates.

    Queries without a relevant candidate are left out where bad rows are. Raises InputError naming the first
    row of one otherwise.
    """
    if labels is None or labels.target != RANKING:
        return pairs
    queries = pairs.left if pairs.queries is None else pairs.queries
    groups, found = groups_of(queries), pairs.known_labels
    unanswered = rows_without_positive(groups, found)
    if not len(unanswered):
        return pairs.changed(groups=groups)
    row = int(unanswered[0])
    reason = (
        f"{pairs.where(row)}: no candidate of the query {shown(queries[row])} has the label 1; give it one, "
        "or leave such queries out with --on_bad_row skip"
    )
    if not rules.skips:
        raise InputError(reason)
    kept = np.setdiff1d(np.arange(len(pairs)), unanswered)
    if not len(kept):
        raise InputError(f"{pairs.path}: no query in it has a relevant candidate; {reason}")
    return _leave_out(pairs, kept, unanswered, queries).changed(groups=groups_of([queries[i] for i in kept]))


def _leave_out(pairs: Pairs, kept: np.ndarray, gone: np.ndarray, queries: List[str]) -> Pairs:
    """Return the ``kept`` rows of pairs; those ``gone`` are bad ones, for their query has none relevant."""
    places = np.setdiff1d(np.arange(len(pairs) + len(pairs.bad)), [row.place for row in pairs.bad])
    bad = [
        BadRow(pairs.number(row), f"no candidate of the query {shown(queries[row])} has the label 1", place)
        for row, place in zip(gone.tolist(), places[gone].tolist())
    ]
    left, right = ([texts[row] for row in kept] for texts in (pairs.left, pairs.right))
    numbers = None if pairs.numbers is None else pairs.numbers[kept]
    return pairs.changed(
        left=left,
        right=right,
        labels=pairs.known_labels[kept],
        first_line=pairs.number(int(kept[0])),
        numbers=numbers,
        bad=tuple(sorted([*pairs.bad, *bad], key=lambda row: row.place)),
        queries=None if pairs.queries is None else [pairs.queries[row] for row in kept],
    )
