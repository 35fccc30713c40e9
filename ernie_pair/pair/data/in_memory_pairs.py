"""Pairs given from Python: lists, generators, datasets of Hugging Face and Paddle, pandas DataFrames.

A list or a generator holds dictionaries or tuples; a dataset is map-style or iterable. Rows of token ids are
for `tokenized_pairs`.

[{"sentence1": "怎么开户", "sentence2": "如何开户", "label": 1}, ...]      keys as in `pair_columns`
[("怎么开户", "如何开户", 1), ...]                                         or without the label

What can be read again is read when it is needed, a row at a time.
"""

import hashlib
import json
from collections.abc import Iterator as OneShot
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Iterable, Iterator, List, Optional, Tuple, Union

import numpy as np

from data_tools.base.errors import InputError
from ernie_pair.model_files.labels import Labels
from ernie_pair.pair.data.pair_cells import is_missing, query_in, shown
from ernie_pair.pair.data.pair_columns import Columns, keys_of
from ernie_pair.pair.data.pair_file import (
    BadRow,
    Pair,
    Pairs,
    Reject,
    good_rows,
    pairs_of,
    row_of,
)
from ernie_pair.pair.data.pair_records import RowRules
from ernie_pair.pair.data.ranking_groups import group_candidates

BEGINNING = 10_000  # rows that a stream is known by


@dataclass(frozen=True)
class GivenPairs:
    """Pairs given from Python, with the methods of `PairSource`; ``flag`` names their argument.

    Equal pairs have equal hashes, however they were given. Errors name the row, counted from 0.
    """

    flag: str
    examples: Iterable
    labels: Optional[Labels]
    columns: Columns = Columns()
    rules: RowRules = RowRules()
    is_file = False

    @property
    def name(self) -> str:
        """Return the name of the argument, as the log and errors show it."""
        return self.flag

    def sha256(self) -> str:
        """Return the SHA-256 of all pairs and their labels, in hex. Raises InputError naming a bad row."""
        return self.read().sha256

    def sha256_of_ends(self) -> str:
        """Return the SHA-256 of the first BEGINNING rows, in hex. Raises InputError naming a bad row.

        The hash identifies a stream without reading all of it.
        """
        return _hash_of(islice(self.rows(), BEGINNING))

    def rows(self, reject: Reject = lambda row: None) -> Iterator[Pair]:
        """Iterate over the good rows, read one at a time; call ``reject`` with each bad row left out.

        Raises InputError naming the row when bad rows are not left out, or when no row is good.
        """
        return good_rows(self._rows(), self.rules.skips, self.flag, reject)

    def read(self) -> Pairs:
        """Return all pairs, read once for all calls. Raises InputError naming a bad row."""
        return self._pairs

    def refuse_one_shot(self) -> None:
        """Raise InputError when the pairs can be read only once."""
        refuse_one_shot(self.flag, self.examples)

    @cached_property
    def _pairs(self) -> Pairs:
        bad: List[BadRow] = []
        rows = list(self.rows(bad.append))
        found = pairs_of(rows, bad, self.labels is not None, _hash_of(rows), self.flag)
        return group_candidates(found, self.labels, self.rules)

    def _query_of(self, example) -> object:
        return query_in(example if isinstance(example, Mapping) else {}, self.columns)

    def _rows(self) -> Iterator[Union[Pair, BadRow]]:
        keys = None
        for number, example in enumerate(examples_of(self.flag, self.examples)):
            where = f"{self.flag}[{number}]"
            if keys is None and isinstance(example, Mapping):
                keys = keys_of(where, list(map(str, example)), self.columns)
            try:
                if is_token_row(example):
                    raise InputError(
                        f"{where}: token ids, and {self.flag} is read as pairs of texts; give texts alone"
                    )
                cells = (*_cells(where, example, keys), self._query_of(example))
                _refuse_half_characters(where, cells[:2])
                row: Union[Pair, BadRow] = row_of(where, number, cells, self.labels)
            except InputError as error:
                row = BadRow(number, error.message)
            yield row


def is_one_shot(examples: object) -> bool:
    """Return whether ``examples`` can be read only once: an iterator, or PaddleNLP's IterDataset of one."""
    return isinstance(examples, OneShot) or isinstance(getattr(examples, "data", None), OneShot)


def refuse_one_shot(flag: str, examples: object) -> None:
    """Raise InputError when ``examples`` can be read only once, and streaming is to read it in each epoch."""
    if is_one_shot(examples):
        raise InputError(
            f"streaming reads {flag} once per epoch, and an iterator or generator can be read once; give a "
            "list, a Dataset or an IterableDataset, or leave streaming out"
        )


def is_token_row(example: Any) -> bool:
    """Return whether ``example`` is a row of token ids: a mapping with input_ids, or a tuple of arrays."""
    if isinstance(example, Mapping):
        return "input_ids" in example
    is_tuple = isinstance(example, (tuple, list)) and len(example) in (2, 3)
    if not is_tuple or isinstance(example[0], str) or not hasattr(example[0], "__len__"):
        return False
    try:
        ids = np.asarray(example[0])
    except (TypeError, ValueError):  # lists of several lengths
        return False
    return ids.size > 0 and ids.dtype.kind in "iu"


def held(examples):
    """Return something that can be read again: ``examples`` itself, or a list of what an iterator gives."""
    return list(iter(examples)) if is_one_shot(examples) else examples


def examples_of(flag: str, examples: Any) -> Iterator:
    """Iterate over the dictionaries or tuples of ``examples``; over a dataset without __iter__ by index.

    Raises InputError when it is a dictionary or not iterable, or a DataFrame with two columns of one name.
    """
    if isinstance(examples, Mapping):
        parts = ", ".join(map(str, examples))
        raise InputError(f"{flag} is a dictionary ({parts}); give one of its parts")
    if hasattr(examples, "itertuples"):
        return _rows_of_frame(flag, examples)
    kind = type(examples)
    is_map_style = hasattr(kind, "__getitem__") and hasattr(kind, "__len__")
    try:
        if hasattr(kind, "__iter__") or not is_map_style:
            return iter(examples)
    except (TypeError, NotImplementedError):
        if not is_map_style:
            raise InputError(
                f"{flag} is a {kind.__name__}; give a file, a list, a dataset or a DataFrame"
            ) from None
    # By its length: the index of a dataset of Paddle need not end with an IndexError.
    return map(examples.__getitem__, range(len(examples)))


def _rows_of_frame(flag: str, frame) -> Iterator:
    """Iterate over a pandas DataFrame: dictionaries by column name, tuples where columns are numbers.

    Raises InputError when two columns have one name.
    """
    names, rows = list(frame.columns), frame.itertuples(index=False, name=None)
    if len(set(names)) < len(names):
        raise InputError(f"{flag} has two columns of one name in {', '.join(map(str, names))}; rename one")
    if not any(isinstance(name, str) for name in names):
        return rows
    return (dict(zip(names, row)) for row in rows)


def _hash_of(rows: Iterable[Pair]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        named = [row.query] if row.query else []
        digest.update(json.dumps([row.left, row.right, row.label, *named]).encode() + b"\n")
    return digest.hexdigest()


def _cells(where: str, example, keys: Optional[Tuple[str, str, str]]) -> Tuple[object, object, object]:
    if isinstance(example, Mapping) and keys is not None:
        left, right, label = map(example.get, keys)
    elif isinstance(example, (tuple, list)) and len(example) in (2, 3):
        left, right, label = (*example, None)[:3]
    else:
        raise InputError(
            f"{where}: {shown(example)} is not a pair; give a dictionary, (text, text, label) or (text, text)"
        )
    return left, right, None if is_missing(label) else label


def _refuse_half_characters(where: str, texts: Tuple[object, object]) -> None:
    for text in texts:
        try:
            (text if isinstance(text, str) else "").encode("utf-8")
        except UnicodeEncodeError as error:
            half = ord(error.object[error.start])
            raise InputError(f"{where}: half of a character (\\u{half:04x}) in a text; correct it") from None
