"""Sentence pairs on disk: a pair per line, its columns separated by tabs (commas in .csv), or JSON objects.

    text_a<TAB>text_b<TAB>label                                   the header may be absent
    怎么开户<TAB>如何开户<TAB>1

    {"sentence1": "怎么开户", "sentence2": "如何开户", "label": "1"}          in .json and .jsonl

See `pair_columns` for other names and orders. Labels may be absent where nobody asks for them. A line
ends at \\n or \\r\\n and nowhere else, quotes are plain text, a first byte-order mark is skipped. Every
row is kept, or the file is refused with the number of the line.
"""

from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from data_tools.array_file import sha256_of_file
from data_tools.errors import InputError
from data_tools.json_file import JsonError, kind_of, parse_json
from data_tools.line_rules import LONGEST_LINE, decoded
from data_tools.text_files import read_lines
from ernie_pair.pair.data.labels import EXAMPLE, Labels
from ernie_pair.pair.data.pair_columns import Columns, Layout, keys_of, layout_of

JSON_ENDINGS = (".json", ".jsonl")
PACKED = (".gz", ".zst")

Line = Tuple[int, str]  # its number, its text
Cells = Tuple[object, object, object]  # text, text, label: as they stand, None where there is none


class Row(NamedTuple):
    """A pair in line ``number``; ``label`` is its class, or None when nobody asked for it."""

    number: int
    left: str
    right: str
    label: Optional[int]


class Pairs(NamedTuple):
    """The rows of a file in their order. ``labels`` is None when they were not asked for."""

    left: List[str]
    right: List[str]
    labels: Optional[np.ndarray]
    sha256: str
    path: str = ""
    first_line: int = 1

    def __len__(self) -> int:
        return len(self.left)

    def where(self, row: int) -> str:
        return f"{self.path}:{self.first_line + row}"


def read_pairs(path: Union[str, Path], num_classes: Optional[int]) -> Pairs:
    """``read_file`` with the labels 0..num_classes-1; None: labels are passed over, there or not."""
    return read_file(Path(path), None if num_classes is None else Labels.numbered(num_classes))


def read_file(path: Path, labels: Optional[Labels], columns: Columns = Columns()) -> Pairs:  # noqa: B008
    """All rows. With ``labels`` each must have one of those. Raises InputError naming file:line."""
    refuse_missing(path)
    sha256, before = sha256_of_file(path), path.stat()
    numbers, left, right, classes = [], [], [], []
    for row in rows_of(path, labels, columns):
        numbers.append(row.number)
        left.append(row.left)
        right.append(row.right)
        classes.append(row.label)
    after = path.stat()
    if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        raise InputError(f"{path} changed while it was read; run again when it is complete")
    numbered = None if labels is None else np.array(classes, dtype=np.int64)
    return Pairs(left, right, numbered, sha256, str(path), numbers[0])


def refuse_missing(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path}: a folder; give a file of pairs in it")
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a .tsv, .csv, .json or .jsonl file of pairs")


def ending_of(path: Path) -> str:
    """.json, .csv and so on; the file may be compressed."""
    return (path.with_suffix("") if path.suffix in PACKED else path).suffix


def rows_of(path: Path, labels: Optional[Labels], columns: Columns) -> Iterator[Row]:
    """The rows one by one, with little memory; at least one. Raises InputError naming file:line."""
    cells_of = _cells_of_json if ending_of(path) in JSON_ENDINGS else _cells_of_table
    number = 0
    for number, (left, right, label) in cells_of(path, columns):
        where = f"{path}:{number}"
        yield row_of(where, number, (left, right, label), labels)
    if not number:
        raise InputError(f"{path}: no pairs in it; write a pair per line")


def row_of(where: str, number: int, cells: Cells, labels: Optional[Labels]) -> Row:
    """The cells as a row. Raises InputError where a text is none, or the label none of ``labels``."""
    left, right, label = cells
    if not (isinstance(left, str) and isinstance(right, str) and left.strip() and right.strip()):
        raise _bad_text(where, *(("sentence1", left) if _is_bad(left) else ("sentence2", right)))
    return Row(number, left, right, None if labels is None else _class_of(where, label, labels))


def _lines(path: Path) -> Iterator[Line]:
    for number, raw in enumerate(read_lines(path), start=1):
        if len(raw) > LONGEST_LINE:
            raise InputError(f"{path}:{number}: the line is above {LONGEST_LINE} bytes; cut it")
        text = decoded(str(path), number, raw)
        if not text.strip():
            raise InputError(f"{path}:{number}: the line is blank; remove it, so that rows and lines agree")
        yield number, text


def _cells_of_table(path: Path, columns: Columns) -> Iterator[Tuple[int, Cells]]:
    mark = "," if ending_of(path) == ".csv" else "\t"
    layout: Optional[Layout] = None
    for number, text in _lines(path):
        cells = text.split(mark)
        if layout is None:
            layout = layout_of(f"{path}:{number}", cells, columns)
            if layout.has_header:
                continue
        if len(cells) != layout.width:
            raise _bad_width(f"{path}:{number}", cells, layout, mark)
        label = None if layout.label is None else cells[layout.label]
        yield number, (cells[layout.left], cells[layout.right], label)


def _bad_width(where: str, cells: List[str], layout: Layout, mark: str) -> InputError:
    name = "tab" if mark == "\t" else "comma"
    return InputError(
        f"{where}: {len(cells)} column(s) instead of {layout.width}; write one {name} between two columns "
        "and none in a text (quotes are plain text: they do not protect it)"
    )


def _cells_of_json(path: Path, columns: Columns) -> Iterator[Tuple[int, Cells]]:
    keys = None
    for number, text in _lines(path):
        where = f"{path}:{number}"
        found = _json_object(where, text)
        keys = keys or keys_of(where, list(found), columns)
        for key in keys[:2]:
            _refuse_half_text(where, key, found)
        yield number, tuple(map(found.get, keys))


def _json_object(where: str, text: str) -> dict:
    try:
        found = parse_json(text)
    except JsonError as error:
        raise InputError(f"{where}: {error}; write an object per line") from None
    if not isinstance(found, dict):
        raise InputError(f"{where}: {kind_of(found)} instead of an object; write {{...}} on each line")
    return found


def _refuse_half_text(where: str, key: str, found: dict) -> None:
    """Raises InputError where a text is missing, no text, or cannot be written as UTF-8."""
    text = found.get(key)
    if not isinstance(text, str):
        what = (
            f"is {text!r}, not a text" if key in found else f"is missing (found: {', '.join(found) or '-'})"
        )
        raise InputError(f"{where}: {key} {what}; every row needs two texts: see --text_a and --text_b")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: {key} has half of a character (\\u{ord(text[error.start]):04x}); mend it"
        ) from None


def _is_bad(text: object) -> bool:
    return not isinstance(text, str) or not text.strip()


def _bad_text(where: str, name: str, text: object) -> InputError:
    found = "is empty" if isinstance(text, str) else f"is {text!r}, not a text"
    return InputError(f"{where}: {name} {found}; fill it in or remove the row")


def _class_of(where: str, label: object, labels: Labels) -> int:
    if label is None:
        raise InputError(
            f"{where}: no label; each row needs one of {labels.allowed} (name its column with --label)"
        )
    found = labels.classes.get(str(label))
    if found is None:
        raise InputError(
            f"{where}: label {label!r} is not one of {labels.allowed}; mend it, or name the classes with "
            f"--label_map {EXAMPLE} (a header line reads text_a<TAB>text_b<TAB>label)"
        )
    return found
