"""What a flag names: a file of pairs, or a set that PaddleNLP fetches, such as lcqmc or clue:cmnli."""

import hashlib
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

import numpy as np

from data_tools.array_file import sha256_of_file
from data_tools.errors import InputError
from ernie_pair.pair.data.labels import Labels
from ernie_pair.pair.data.pair_columns import Columns, keys_of
from ernie_pair.pair.data.pair_file import Pairs, Row, read_file, refuse_missing, row_of, rows_of

# Our name: (PaddleNLP's, the part of it). Any other is NAME or NAME:PART of its own.
SETS = {
    "afqmc": ("clue", "afqmc"),
    "mrpc": ("glue", "mrpc"),
    "qqp": ("glue", "qqp"),
}
SPLITS = {"train": ("train",), "dev": ("dev", "validation"), "test": ("test",)}
_SET_NAME = re.compile(r"[A-Za-z0-9_-]+(:[A-Za-z0-9_-]+)?")


@dataclass(frozen=True)
class PairSource:
    """``name`` is what ``flag`` was given; of a set the part ``split`` is taken.

    With ``labels`` each row must have one of those, otherwise they are passed over.
    """

    flag: str
    name: str
    split: str
    labels: Optional[Labels]
    columns: Columns = Columns()

    @property
    def is_file(self) -> bool:
        """Whatever could not be the name of a set is a file, there or not."""
        return Path(self.name).exists() or not _SET_NAME.fullmatch(self.name)

    def sha256(self) -> str:
        """Of the content. Raises InputError."""
        if not self.is_file:
            return _content_of_set(self.flag, self.name, self.split)[1]
        refuse_missing(Path(self.name))
        return sha256_of_file(Path(self.name))

    def read(self) -> Pairs:
        """Raises InputError naming file:line, or the row of a set."""
        if self.is_file:
            return read_file(Path(self.name), self.labels, self.columns)
        rows = list(self._rows_of_set())
        labels = None if self.labels is None else np.array([row.label for row in rows], dtype=np.int64)
        name = f"{self.name} {self.split}"
        return Pairs([row.left for row in rows], [row.right for row in rows], labels, self.sha256(), name)

    def rows(self) -> Iterator[Row]:
        """One by one; a file is not held in memory."""
        if not self.is_file:
            return self._rows_of_set()
        refuse_missing(Path(self.name))
        return rows_of(Path(self.name), self.labels, self.columns)

    def _rows_of_set(self) -> Iterator[Row]:
        keys = None
        examples, _ = _content_of_set(self.flag, self.name, self.split)
        for number, example in enumerate(examples, start=1):
            where = f"{self.name} {self.split}:{number}"
            keys = keys or keys_of(where, list(example), self.columns)
            yield row_of(where, number, tuple(map(example.get, keys)), self.labels)


@lru_cache(maxsize=4)
def _content_of_set(flag: str, name: str, split: str) -> Tuple[List[dict], str]:
    """The rows as PaddleNLP gives them, and their sha256. Raises InputError."""
    path, part = SETS.get(name, (name.partition(":")[0], name.partition(":")[2] or None))
    try:
        examples = [dict(example) for example in _load(path, part, SPLITS[split])]
    except (OSError, RuntimeError, ValueError, AttributeError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"--{flag} {name} is no file, and PaddleNLP cannot load a set of that name ({reason}); "
            "check the name and the network, or give a file"
        ) from None
    if not examples:
        raise InputError(f"--{flag} {name}: its part {split} holds no pairs; give a file")
    digest = hashlib.sha256()
    for example in examples:
        digest.update(json.dumps(example, sort_keys=True, default=str).encode() + b"\n")
    return examples, digest.hexdigest()


def _load(path: str, part: Optional[str], splits: Tuple[str, ...]):
    """The first of ``splits`` that the set has."""
    from paddlenlp import datasets

    for split in splits[:-1]:
        try:
            return datasets.load_dataset(path, name=part, splits=split)
        except ValueError:  # no such part: its other name is tried
            continue
    return datasets.load_dataset(path, name=part, splits=splits[-1])
