"""Sentence pairs on disk: tables whose columns are separated by tabs (by commas in .csv), or JSON objects.

    text_a<TAB>text_b<TAB>label                                   the header may be absent
    怎么开户<TAB>如何开户<TAB>1

    {"sentence1": "怎么开户", "sentence2": "如何开户", "label": "1"}          in .json and .jsonl

See `pair_records` for other names and orders, and for what a line is. Labels may be absent
where nobody asks for them. Every row is kept, or the file is refused with the number of the line; or, where
the rules say so, bad rows are left out and told.
"""

from itertools import islice
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, TypeVar, Union

import numpy as np

from data_tools.files.arrays import sha256_of_file
from data_tools.files.errors import InputError, counted
from data_tools.text.text_files import PACKED
from ernie_pair.models.labels import EXAMPLE, REGRESSION, UNLABELLED, Labels
from ernie_pair.pair.data.pair_records import (
    LEFT,
    RIGHT,
    Columns,
    Layout,
    RowRules,
    blank_line,
    csv_records,
    json_records,
    keys_of,
    layout_of,
    tab_records,
)

JSON_ENDINGS = (".json", ".jsonl")

# Text, text, label, query: as they stand, None where there is none; the query is there with --query alone.
Cells = tuple[object, object, object, object]
CellsRecord = tuple[int, Union[Cells, InputError]]  # the number of its line before them, or what is wrong


def ending_of(path: Path) -> str:
    """Return the ending of a file in lower case, .json for example, without that of its compression."""
    return (path.with_suffix("") if path.suffix in PACKED else path).suffix.lower()


def read_cells(
    path: Path, columns: Columns, rules: RowRules, needs_label: bool = True
) -> Iterator[CellsRecord]:
    """Yield every row of a file: the number of its line, and its cells or what is wrong with them.

    Without ``needs_label`` a table may lack the column that --label names. Raises InputError when the
    first line does not tell how the others are to be read.
    """
    ending = ending_of(path)
    if ending in JSON_ENDINGS:
        return _cells_of_json(path, columns, rules)
    return _cells_of_table(path, columns, rules, "," if ending == ".csv" else "\t", needs_label)


def _cells_of_table(
    path: Path, columns: Columns, rules: RowRules, mark: str, needs_label: bool
) -> Iterator[CellsRecord]:
    layout: Optional[Layout] = None
    for number, cells in (csv_records if mark == "," else tab_records)(path, rules):
        where = f"{path}:{number}"
        if layout is None:
            if isinstance(cells, InputError):
                raise cells
            layout = layout_of(where, cells, columns, needs_label)
            if layout.has_header:
                continue
        if isinstance(cells, InputError):
            yield number, cells
        elif len(cells) != layout.width:
            yield number, _bad_width(where, cells, layout, mark)
        else:
            label = None if layout.label is None else cells[layout.label]
            query = None if layout.query is None else cells[layout.query]
            yield number, (cells[layout.left], cells[layout.right], label, query)


def _bad_width(where: str, cells: Sequence[str], layout: Layout, mark: str) -> InputError:
    if not "".join(cells).strip():
        return blank_line(where)
    cure = "tab between two columns and none in a text (quotes are plain text: they do not protect it)"
    if mark == ",":
        cure = "comma between two columns, and a text with commas in quotes"
    return InputError(f"{where}: {counted(len(cells), 'column')} instead of {layout.width}; write one {cure}")


def _cells_of_json(path: Path, columns: Columns, rules: RowRules) -> Iterator[CellsRecord]:
    keys = None
    for number, found in json_records(path, rules):
        where = f"{path}:{number}"
        if isinstance(found, InputError):
            if keys is None:
                raise found
            yield number, found
            continue
        left, right, label = keys = keys or keys_of(where, list(found), columns)
        try:
            for key in (left, right):
                _refuse_half_text(where, key, found)
        except InputError as error:
            yield number, error
        else:
            yield number, (found[left], found[right], found.get(label), query_in(found, columns))


def _refuse_half_text(where: str, key: str, found: dict) -> None:
    text = found.get(key)
    if not isinstance(text, str):
        keys = ", ".join(found) or "-"
        what = f"is {shown(text)}, not a text" if key in found else f"is missing (found: {keys})"
        raise InputError(f"{where}: {key} {what}; every row needs two texts: see --text_a and --text_b")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise InputError(f"{where}: {key} has half of a character ({half}); correct it") from None


def query_in(found: Mapping, columns: Columns) -> object:
    """Return the query of a row of keys and values, '' where it has none; None: nobody asked for it."""
    if not columns.query:
        return None
    query = found.get(columns.query)
    return "" if is_missing(query) else query


def is_missing(value: object) -> bool:
    """Return whether ``value`` is None, or what stands in an empty cell of pandas: NaN, NaT or NA."""
    try:
        return value is None or bool(value != value)
    except TypeError:  # NA is neither equal to itself nor not
        return True


def shown(value: object) -> str:
    """Return at most 60 characters of ``repr(value)``; a number too long to be written is named as such."""
    try:
        return repr(value)[:60]
    except ValueError:
        return "a number of thousands of digits"


class Pair(NamedTuple):
    """A pair in line ``number``; ``label``: its class, an int, or its score, a float; None: not asked for."""

    number: int
    left: str
    right: str
    label: Union[int, float, None]
    query: str = ""  # of what it is a candidate; empty: of its first text


class BadRow(NamedTuple):
    """A row that is no pair: line ``number``, and what an error says of it.

    ``place`` counts the rows of the file from 0, good and bad ones. ``is_known``: it is left out whatever
    the rules say.
    """

    number: int
    reason: str
    place: int = 0
    is_known: bool = False


Reject = Callable[[BadRow], None]
Row = TypeVar("Row")  # a `Pair`, or a pair in another form


class Pairs(NamedTuple):
    """The pairs of a file in their order.

    ``labels`` [rows] are classes, int64, or scores, float64; None when they were not asked for.
    ``numbers`` int64 [rows] are the lines that they begin in; without it they lie in consecutive lines from
    ``first_line`` on. ``bad``: the rows that were left out. ``queries`` are there where --query names their
    column, ``groups`` int64 [rows], the number of the query of each row, where candidates are ranked.
    """

    left: list[str]
    right: list[str]
    labels: Optional[np.ndarray]
    sha256: str
    path: str = ""
    first_line: int = 1
    numbers: Optional[np.ndarray] = None
    bad: tuple[BadRow, ...] = ()
    queries: Optional[list[str]] = None
    groups: Optional[np.ndarray] = None

    def __len__(self) -> int:
        return len(self.left)

    def changed(self, **fields: Any) -> "Pairs":
        """Return these pairs with other ``fields``: `_replace` takes the rows for the fields."""
        return Pairs(**{**dict(zip(self._fields, self)), **fields})

    @property
    def known_labels(self) -> np.ndarray:
        """Return the labels of pairs that were read with them."""
        assert self.labels is not None
        return self.labels

    def rows(self, kept: np.ndarray) -> "Pairs":
        """Return the rows ``kept``, int64 [n], with the lines that they begin in."""
        left, right = ([texts[row] for row in kept] for texts in (self.left, self.right))
        return self.changed(
            left=left,
            right=right,
            labels=self.known_labels[kept],
            numbers=np.array([self.number(int(row)) for row in kept], dtype=np.int64),
            queries=None if self.queries is None else [self.queries[row] for row in kept],
            groups=None if self.groups is None else self.groups[kept],
        )

    def labelled(self) -> "Pairs":
        """Return the rows that have a label, where it is optional; there may be none."""
        kept = np.flatnonzero(self.known_labels != UNLABELLED)
        return self if len(kept) == len(self) else self.rows(kept)

    def number(self, row: int) -> int:
        """Return the number of the line at which row ``row`` begins; of pairs in memory, that of the row."""
        return self.first_line + row if self.numbers is None else int(self.numbers[row])

    def where(self, row: int) -> str:
        """Return PATH:LINE of row ``row``, as errors name it."""
        return f"{self.path}:{self.number(row)}"


def read_pairs(path: Union[str, Path], num_classes: Optional[int]) -> Pairs:
    """Read a file of pairs whose labels are 0 to num_classes - 1; None: labels are not read.

    Raises InputError naming file:line.
    """
    return read_file(Path(path), None if num_classes is None else Labels.numbered(num_classes))


def read_file(
    path: Path,
    labels: Optional[Labels],
    columns: Columns = Columns(),  # noqa: B008
    rules: RowRules = RowRules(),  # noqa: B008
) -> Pairs:
    """Read all pairs of a file. With ``labels`` each row must have one of those.

    Raises InputError naming file:line for a bad row, and when the file changes while it is read.
    """
    refuse_missing(path)
    sha256, stamp = sha256_of_file(path), stamp_of(path)
    bad: list[BadRow] = []
    found = good_rows(rows_of(path, labels, columns, rules), rules.skips, str(path), bad.append)
    pairs = pairs_of(found, bad, labels is not None, sha256, str(path))
    refuse_changed(path, stamp)
    return pairs


def stamp_of(path: Path) -> tuple[int, int]:
    """Return what changes when the file at ``path`` is written to."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def refuse_changed(path: Path, stamp: tuple[int, int]) -> None:
    """Raise InputError when the file at ``path`` has another stamp by now."""
    if stamp_of(path) != stamp:
        raise InputError(f"{path} changed while it was read; run again when it is complete")


def pairs_of(found: Iterable[Pair], bad: list[BadRow], labelled: bool, sha256: str, path: str) -> Pairs:
    """Collect rows into `Pairs`, with labels and line numbers as arrays [rows].

    ``bad`` is read after all rows of ``found`` have come, for their iterator may fill it.
    """
    numbers, left, right, classes, queries = [], [], [], [], []
    for row in found:
        numbers.append(row.number)
        left.append(row.left)
        right.append(row.right)
        classes.append(row.label)
        queries.append(row.query)
    labels = labels_array(classes) if labelled else None
    lines = np.array(numbers, dtype=np.int64)
    named = queries if queries[0] else None  # where they are asked for, no pair is without one
    return Pairs(left, right, labels, sha256, path, numbers[0], lines, tuple(bad), named)


def labels_array(labels: Sequence[Union[int, float, None]]) -> np.ndarray:
    """Return the labels of rows that have them: classes int64 [rows], scores float64 [rows]."""
    return np.array(labels, dtype=np.float64 if isinstance(labels[0], float) else np.int64)


def chunks_of(rows: Iterator[Pair], size: int, path: str) -> Iterator[Pairs]:
    """Yield ``rows`` in chunks of ``size``, the last one shorter, read when asked for.

    A chunk is labelled as its first row is.
    """
    while True:
        part = list(islice(rows, size))
        if not part:
            return
        yield pairs_of(part, [], part[0].label is not None, "", path)


def good_rows(
    found: Iterator[Union[Row, BadRow]], skips: bool, path: str, reject: Reject = lambda row: None
) -> Iterator[Row]:
    """Yield the rows that are pairs, at least one; call ``reject`` with each bad row that is left out.

    Bad rows are left out when ``skips`` says so, and known ones always. Raises InputError with the reason of
    the first other one, and when no row is a pair.
    """
    num_good, first_bad = 0, None
    for place, row in enumerate(found):
        if not isinstance(row, BadRow):
            num_good += 1
            yield row
            continue
        if not (skips or row.is_known):
            raise InputError(row.reason)
        first_bad = first_bad or row
        reject(row._replace(place=place))
    if first_bad and not num_good:
        raise InputError(f"{path}: none of its rows is a pair; the first: {first_bad.reason}")
    if not num_good:
        raise InputError(f"{path}: it holds no pairs; give at least one")


def refuse_missing(path: Path) -> None:
    """Raise InputError when ``path`` is a folder or no file."""
    if path.is_dir():
        raise InputError(f"{path}: a folder; give a file of pairs in it")
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a .tsv, .csv, .json or .jsonl file of pairs")


def rows_of(
    path: Path,
    labels: Optional[Labels],
    columns: Columns,
    rules: RowRules = RowRules(),  # noqa: B008
) -> Iterator[Union[Pair, BadRow]]:
    """Yield every row of a file as a `Pair`, or as a `BadRow` that says what is wrong.

    A line at a time. Raises InputError when the first line does not tell how the others are to be read.
    """
    for number, cells in read_cells(path, columns, rules, needs_label=labels is not None):
        row: Union[Pair, BadRow]
        try:
            if isinstance(cells, InputError):
                raise cells
            row = row_of(f"{path}:{number}", number, cells, labels)
        except InputError as error:
            row = BadRow(number, error.message)
        yield row


def has_labels(path: Path, columns: Columns, rules: RowRules) -> bool:
    """Return whether the first good row of a file has a label.

    Raises InputError when the file is missing or its first line does not tell how to read the others.
    """
    refuse_missing(path)
    read = read_cells(path, columns, rules, needs_label=False)
    first = next((cells for _, cells in read if not isinstance(cells, InputError)), None)
    return first is not None and first[2] is not None


def row_of(where: str, number: int, cells: Cells, labels: Optional[Labels]) -> Pair:
    """Return the cells as a `Pair`.

    Raises InputError when a text is missing or blank, or the label is none of ``labels``.
    """
    left, right, label, query = cells
    if query is not None and not str(query).strip():
        raise InputError(f"{where}: no query; fill in the column that --query names, or remove the row")
    for name, text in ((LEFT, left), (RIGHT, right)):
        if not isinstance(text, str) or not text.strip():
            found = "is empty" if isinstance(text, str) else f"is {shown(text)}, not a text"
            raise InputError(f"{where}: {name} {found}; fill it in or remove the row")
    value = None if labels is None else label_value(where, label, labels)
    return Pair(number, str(left), str(right), value, "" if query is None else str(query))


def label_value(where: str, label: object, labels: Labels) -> Union[int, float]:
    """Return what is learned from a label. Raises InputError when it is none of ``labels``."""
    if labels.are_optional and (label is None or not str(label).strip()):
        return UNLABELLED
    if label is None:
        needed = f"one of {labels.allowed}" if labels.has_classes else labels.allowed
        raise InputError(f"{where}: no label; each row needs {needed} (name its column with --label)")
    value = labels.value_of(label)
    if value is not None:
        return value
    if not labels.has_classes:
        other = "another --label_range, or with " if labels.target == REGRESSION else ""
        wrong = (
            f"label {shown(label)} is not {labels.allowed}, as a model for {labels.target} takes it; correct "
            f"it, or train with {other}--target classification"
        )
    elif isinstance(label, (list, tuple, dict)):
        wrong = f"label {shown(label)} is no single value; write one of {labels.allowed}"
    elif isinstance(label, (bool, np.bool_)):
        wrong = f"label {label} is a boolean; name the classes so with --label_map 0=False,1=True"
    else:
        is_score = Labels.scores().value_of(label) is not None
        wrong = (
            f"label {shown(label)} is not one of {labels.allowed}; correct it, or train with the names of "
            f"the classes, for example --label_map {EXAMPLE}"
            f"{'; a file of scores is for --target regression' if is_score else ''}"
        )
    if labels.has_classes and where.endswith(":1"):
        wrong += "; if the line is a header, name its columns with --text_a, --text_b and --label"
    raise InputError(f"{where}: {wrong}")
