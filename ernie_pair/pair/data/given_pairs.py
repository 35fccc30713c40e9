"""Pairs that are in memory already: a Hugging Face dataset, a list of dictionaries, or of tuples.

[{"sentence1": "怎么开户", "sentence2": "如何开户", "label": 1}, ...]      keys as in `pair_columns`
[("怎么开户", "如何开户", 1), ...]                                         or without the label
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Iterable, Iterator, Optional, Tuple

import numpy as np

from data_tools.errors import InputError
from ernie_pair.pair.data.labels import Labels
from ernie_pair.pair.data.pair_columns import Columns, keys_of
from ernie_pair.pair.data.pair_file import Cells, Pairs, Row, row_of


@dataclass(frozen=True)
class GivenPairs:
    """Answers as `PairSource` does. ``flag`` is the argument that they were given as.

    Equal pairs have equal hashes, however they were given. Errors name the row, counted from 0.
    """

    flag: str
    examples: Iterable
    labels: Optional[Labels]
    columns: Columns = Columns()
    is_file = False

    @property
    def name(self) -> str:
        return self.flag

    def sha256(self) -> str:
        return self.read().sha256

    def rows(self) -> Iterator[Row]:
        for number, cells in enumerate(self._cells()):
            where = f"{self.flag}[{number}]"
            _refuse_half_characters(where, cells[:2])
            yield row_of(where, number, cells, self.labels)

    def read(self) -> Pairs:
        """Raises InputError naming the row."""
        return self._pairs

    @cached_property
    def _pairs(self) -> Pairs:
        rows, digest = list(self.rows()), hashlib.sha256()
        if not rows:
            raise InputError(f"{self.flag} has no pairs; give at least one")
        for row in rows:
            digest.update(json.dumps([row.left, row.right, row.label]).encode() + b"\n")
        labels = None if self.labels is None else np.array([row.label for row in rows], dtype=np.int64)
        texts = [row.left for row in rows], [row.right for row in rows]
        return Pairs(*texts, labels, digest.hexdigest(), self.flag, first_line=0)

    def _cells(self) -> Iterator[Cells]:
        if isinstance(self.examples, Mapping):
            raise InputError(
                f"{self.flag} is a dictionary ({', '.join(map(str, self.examples))}); give one of its parts"
            )
        keys = None
        for number, example in enumerate(self.examples):
            where = f"{self.flag}[{number}]"
            if isinstance(example, Mapping):
                keys = keys or keys_of(where, list(example), self.columns)
                yield tuple(map(example.get, keys))
            else:
                yield _cells_of_tuple(where, example)


def _cells_of_tuple(where: str, example) -> Cells:
    if not isinstance(example, (tuple, list)) or len(example) not in (2, 3):
        raise InputError(
            f"{where}: {example!r:.60} is no pair; give a dictionary, (text, text, label) or (text, text)"
        )
    return (*example, None)[:3]


def _refuse_half_characters(where: str, texts: Tuple[object, object]) -> None:
    for text in texts:
        try:
            str(text).encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"{where}: half of a character (\\u{ord(text[error.start]):04x}) in a text; mend it"
            ) from None
