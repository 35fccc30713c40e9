"""A file of new pairs, which every command that takes pairs reads; the column `origin` says where from.

text_a<TAB>text_b<TAB>label<TAB>origin                       in .tsv; .csv has the same columns
怎么开户<TAB>如何开户<TAB>1<TAB>transitive lines 3 17

{"text_a": "怎么开户", "text_b": "如何开户", "label": "1", "origin": "..."}     in .json and .jsonl
"""

import csv
import json
import re
from pathlib import Path
from typing import IO, Callable, Iterable, List, NamedTuple

from data_tools.base.errors import InputError
from data_tools.files.results import followed, is_stream
from ernie_pair.pair.data.pair_cells import JSON_ENDINGS, PACKED

COLUMNS = ("text_a", "text_b", "label", "origin")
ENDINGS = (".tsv", ".csv", *JSON_ENDINGS)
_NOT_IN_A_CELL = re.compile(r"[\t\r\n]")


class NewPair(NamedTuple):
    """A pair to be written; ``label`` is the name of its class, '' where it is not known."""

    left: str
    right: str
    label: str
    origin: str


def refuse_ending(option: str, path: str) -> None:
    """Raise InputError when ``path``, given with ``option``, is no name for a file of pairs."""
    if is_stream(followed(Path(path))):
        return  # a table, as .tsv
    if Path(path).suffix in PACKED or Path(path).suffix.lower() not in ENDINGS:
        raise InputError(f"--{option} {path}: name a file that ends with {', '.join(ENDINGS)}")


def write_new_pairs(draft: Path, final: Path, pairs: Iterable[NewPair]) -> int:
    """Write ``pairs`` to ``draft`` in the format that the name ``final`` says, and return their number.

    A row is written as it comes. Raises InputError for a text that a .tsv cannot hold.
    """
    count = 0
    with open(draft, "w", encoding="utf-8", newline="") as file:
        write = _row_writer(file, final)
        for pair in pairs:
            write(pair)
            count += 1
    return count


def _row_writer(file: IO[str], final: Path) -> Callable[[NewPair], object]:
    ending = final.suffix.lower()
    if ending in JSON_ENDINGS:
        return lambda pair: file.write(json.dumps(_object_of(pair), ensure_ascii=False) + "\n")
    if ending == ".csv":
        rows = csv.writer(file, lineterminator="\n")
        # Python 3.11 puts a CR in quotes only where rows end with one.
        quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        rows.writerow(COLUMNS)
        return lambda pair: (quoted if "\r" in "".join(pair) else rows).writerow(pair)
    file.write("\t".join(COLUMNS) + "\n")
    return lambda pair: file.write("\t".join(_cells(pair, final)) + "\n")


def _object_of(pair: NewPair) -> dict:
    return {name: value for name, value in zip(COLUMNS, pair) if value or name != "label"}


def _cells(pair: NewPair, final: Path) -> List[str]:
    for text in pair[:2]:
        if _NOT_IN_A_CELL.search(text):
            raise InputError(
                f"{final}: {text[:40]!r} ({pair.origin}) has a tab or a line end, which no .tsv can hold; "
                "name the file .jsonl"
            )
    return list(pair)
