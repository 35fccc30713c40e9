"""New and labelled pairs by their first text, as libraries for encoders read them.

    query_pos_neg              {"query": "怎么开户", "pos": ["如何开户"], "neg": ["几点下班", ...]}
    anchor_positive_negative   anchor, positive, negative_1, ..., negative_N: a row for each match

The first is FlagEmbedding's, the second that of sentence-transformers. Both divide by the negatives of a row,
or read them as columns: a text without any is left out, and each row of the second has all N.
"""

import logging
from itertools import cycle, islice
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, NamedTuple, Tuple

from data_tools.text.table_writer import ending_to_write, table_writer
from data_tools.text.tables import JSON_ENDINGS
from ernie_pair.core.errors import InputError, counted
from ernie_pair.pairs.audit.new_pairs import NewPair

PAIRS, QUERY, ANCHOR = FORMATS = ("pairs", "query_pos_neg", "anchor_positive_negative")
_HARDEST = ("near", "implied")  # origins of negatives, in their order; then those of labelled rows

logger = logging.getLogger(__name__)


class TextGroup(NamedTuple):
    """The matches of a text, and its negatives, the hardest first."""

    matches: List[str]
    negatives: List[str]


def check_format(row_format: str, option: str, path: str) -> None:
    """Raise InputError where the file ``path`` of ``option`` cannot hold rows of ``row_format``."""
    if row_format == QUERY and ending_to_write(Path(path)) not in JSON_ENDINGS:
        raise InputError(
            f"--{option} {path}: --format {QUERY} has lists of texts; name a file that ends with .jsonl"
        )


def write_groups(
    draft: Path, final: Path, row_format: str, pairs: Iterable[NewPair], same: str, count: int
) -> None:
    """Write ``pairs`` by their first text, and log what is left out; ``same``: the label of matches.

    ``count``: the negatives of each row of ANCHOR, which are repeated where a text has fewer. Raises
    InputError where no text has a match and a negative.
    """
    groups, unused = group_by_text(pairs, same)
    kept = {text: group for text, group in groups.items() if group.negatives}
    if not kept:
        raise InputError(
            f"{final}: no text has a match and a negative; mine more with --max_similarity or --per_text, or "
            f"pass --format {PAIRS}"
        )
    names = ["query", "pos", "neg"]
    if row_format == ANCHOR:
        names = ["anchor", "positive", *(f"negative_{n + 1}" for n in range(count))]
    with table_writer(draft, final, names) as write:
        for text, group in kept.items():
            for row in [(text, *group)] if row_format == QUERY else _rows_of(text, group, count):
                write(row)
    matches = sum(len(group.matches) for group in kept.values())
    over = sum(max(0, len(group.negatives) - count) for group in kept.values())
    logger.info(
        "%s, with %s; left out: %d texts with a match and no negative, %d negatives of texts without one, "
        "%d less hard negatives above --per_text %d",
        counted(len(kept), "text"), counted(matches, "match", "matches"), len(groups) - len(kept), unused,
        over if row_format == ANCHOR else 0, count,
    )  # fmt: skip


def _rows_of(text: str, group: TextGroup, count: int) -> Iterator[Tuple[str, ...]]:
    for match in group.matches:
        yield (text, match, *islice(cycle(group.negatives), count))


def group_by_text(pairs: Iterable[NewPair], same: str) -> Tuple[Dict[str, TextGroup], int]:
    """Return {text: its group} of texts with a match, and how many negatives are of none.

    A negative belongs to its first text, or where that has no match to its second one.
    """
    matches: Dict[str, Dict[str, None]] = {}
    others: List[NewPair] = []
    for pair in pairs:
        if pair.label == same:
            matches.setdefault(pair.left, {})[pair.right] = None
        else:
            others.append(pair)
    negatives: Dict[str, Dict[str, None]] = {text: {} for text in matches}
    unused = 0
    for pair in sorted(others, key=_rank_by_origin):
        anchor, other = (pair.left, pair.right) if pair.left in matches else (pair.right, pair.left)
        if anchor not in matches:
            unused += 1
        elif other != anchor and other not in matches[anchor]:
            negatives[anchor][other] = None
    return {text: TextGroup(list(found), list(negatives[text])) for text, found in matches.items()}, unused


def _rank_by_origin(pair: NewPair) -> int:
    kind = pair.origin.partition(" ")[0]
    return _HARDEST.index(kind) if kind in _HARDEST else len(_HARDEST)
