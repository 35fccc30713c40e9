"""The pairs of the files that measure, which no new training pair may repeat."""

from pathlib import Path
from types import MappingProxyType
from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from data_tools.text.table_writer import table_writer
from ernie_pair.core.files.results import Results, files_of, settings_of
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.audit.findings import compared_texts
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.pairs.data.rejected import log_rejected, rejected_beside


class KnownPairs:
    """The pairs of ``files``, {dev or test: its pairs}; texts are compared normalised, as by the audit.

    Counts what it was asked about: ``dropped`` {file: pairs of it}, ``half_known`` of what may be written.
    """

    def __init__(self, files: dict[str, Pairs]):
        self._pairs = {name: {*_keys(file.left, file.right)} for name, file in files.items()}
        self._texts: set[str] = {text for pairs in self._pairs.values() for pair in pairs for text in pair}
        self.dropped = dict.fromkeys(files, 0)
        self.half_known = 0

    def unknown(self, left: Sequence[str], right: Sequence[str]) -> np.ndarray:
        """Return which pairs stand in none of the files, in either order, bool [N], and count them."""
        mask = np.ones(len(left), dtype=bool)
        for row, pair in enumerate(_keys(left, right)):
            found = next((name for name, pairs in self._pairs.items() if pair in pairs), None)
            if found is not None:
                mask[row] = False
                self.dropped[found] += 1
            elif not self._texts.isdisjoint(pair):
                self.half_known += 1
        return mask

    def lines(self, what: str = "new pairs") -> list[str]:
        """Return how many of ``what`` were found: a line per file, one on single texts, if files are."""
        if not self._pairs:
            return []
        lines = [
            f"{count} {what} are in the {name} file and were left out" for name, count in self.dropped.items()
        ]
        of = " or ".join(self._pairs)
        return [*lines, f"{self.half_known} other {what} share one text with the {of} file and are kept"]


def first_places(left: Sequence[str], right: Sequence[str]) -> list[int]:
    """Return the places, rising, of the pairs that repeat no earlier one, in either order."""
    found: dict[tuple[str, str], int] = {}
    for place, pair in enumerate(_keys(left, right)):
        found.setdefault(pair, place)
    return list(found.values())


def _keys(left: Sequence[str], right: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Yield the two texts of each pair as they are compared, the smaller one first."""
    for pair in zip(compared_texts(list(left)), compared_texts(list(right))):
        yield (min(pair), max(pair))


COLUMNS = ("text_a", "text_b", "label", "origin")


class NewPair(NamedTuple):
    """A pair to be written; ``label`` is the name of its class, '' where it is not known."""

    left: str
    right: str
    label: str
    origin: str


def write_new_pairs(draft: Path, final: Path, pairs: Iterable[NewPair]) -> int:
    """Write ``pairs`` to ``draft`` in the format that the name ``final`` says, and return their number.

    A row is written as it comes. Raises InputError for a text that the format cannot hold.
    """
    count = 0
    with table_writer(draft, final, COLUMNS, keeps_none=False) as write:
        for pair in pairs:
            write((pair.left, pair.right, pair.label or None, pair.origin))
            count += 1
    return count


SPLITS = ("train", "dev", "test")
FLAGS = tuple(f"{split}_file" for split in SPLITS)


def read_splits(config: Any, labels: Optional[Labels] = None) -> dict[str, Pairs]:
    """Return {split: its pairs} of the files that ``config`` names, and log which rows are left out.

    ``labels``: of the training pairs; those of the others are not read. Raises InputError.
    """
    found = {}
    for split, flag in zip(SPLITS, FLAGS):
        name = getattr(config, flag)
        if name:
            known = labels if split == "train" else None
            found[split] = PairSource.of(config, flag, known).read()
            path = rejected_beside(config.output_file, f".{split}")
            log_rejected(name, found[split].bad, len(found[split]), path)
    return found


def results_of_pairs(
    command: str,
    config: Any,
    outputs: Sequence[Path],
    output_flag: str,
    more: Mapping[str, Sequence[Path]] = MappingProxyType({}),
    settings: Mapping[str, object] = MappingProxyType({}),
) -> Results:
    """Return the ``outputs`` of a command over the files of pairs of ``config``; a set is a setting of it.

    ``more``: {flag: its files} that it reads besides; ``settings``: further ones.
    """
    inputs: dict[str, Sequence[Path]] = {flag: files_of(getattr(config, flag)) for flag in FLAGS}
    sets = {flag: getattr(config, flag) for flag in FLAGS if not inputs[flag]}
    made_with = {**settings_of(config, *FLAGS, *more, output_flag), **sets, **settings}
    inputs.update(more)
    return Results(command, outputs, inputs, made_with, config.overwrite)
