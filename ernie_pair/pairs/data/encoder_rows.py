"""Rows of a text with its matches and its hard negatives, as libraries for encoders write them.

    {"query": "怎么开户", "pos": ["如何开户"], "neg": ["几点下班", "怎么退款"]}              FlagEmbedding
    {"anchor": "怎么开户", "positive": "如何开户", "negative_1": "几点下班"}          sentence-transformers

A row is read as pairs: its first text with each match, of label 1, and with each negative, of label 0. Tables
have the same columns; a cell of a table of text holds one text, and empty ones hold none.
"""

from typing import Any, Iterator, Mapping, Optional, Sequence

from ernie_pair.core.errors import InputError
from ernie_pair.models.labels import Labels


class Unlabelled:
    """Stands for the label of a row of a file without labels, whose two texts belong together."""


BELONG_TOGETHER = Unlabelled()


def no_label(name: str, label: Any) -> Unlabelled:
    """Return what stands for the label of a row without one. Raises InputError if it has one after all."""
    if label is not None:
        raise InputError(f"{name} is a label, and the first rows have none; label all or none")
    return BELONG_TOGETHER


def texts_in(name: str, cell: Any) -> list[Any]:
    """Return the texts of a cell, one or a list. Raises InputError for a list that is written as text."""
    if is_list(cell):
        return list(cell)
    if isinstance(cell, str) and cell.lstrip()[:1] == "[" and cell.rstrip()[-1:] == "]":
        raise InputError(
            f"{name} is a list written as text; write JSON lines (.jsonl), or a text per column: "
            "anchor, positive, negative_1, negative_2"
        )
    return [cell] if not isinstance(cell, str) or cell.strip() else []


def is_list(cell: Any) -> bool:
    """Return whether a cell is a list, or an array as parquet files give it."""
    return isinstance(cell, (list, tuple)) or getattr(cell, "ndim", 0) == 1


def pairs_of_row(
    right: Any, label: Any, negatives: Mapping[str, Any], labels: Optional[Labels]
) -> Iterator[tuple[Any, Any]]:
    """Yield the second text and the label of each pair of a row: its matches, then its ``negatives``.

    Raises InputError for a row without a match.
    """
    if is_list(right) and not len(right):
        raise InputError("its list of matches is empty; give one, or remove the row")
    match = _name_of(labels, 1) if isinstance(label, Unlabelled) else label
    yield from ((text, match) for text in (right if is_list(right) else [right]))
    if labels is not None and not labels.names:  # of a reader that collects the words of labels
        return
    for name, cell in negatives.items():
        yield from ((text, _name_of(labels, 0)) for text in texts_in(name, cell))


def _name_of(labels: Optional[Labels], number: int) -> Any:
    """Return how a file with ``labels`` writes class ``number``."""
    return labels.names[number] if labels is not None and labels.names else number


def refuse_lists(where: str, name: str, cells: Sequence[Any]) -> None:
    """Raise InputError where all ``cells`` are lists, for a command that reads a pair per row."""
    if cells and all(map(is_list, cells)):
        raise InputError(
            f"{where}: {name} is a list of texts, and a pair per row is needed; ernie-pair train-embedding "
            "--objective pairs reads such rows"
        )
