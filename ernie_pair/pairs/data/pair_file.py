"""Sentence pairs on disk: tables whose columns are separated by tabs (by commas in .csv), or JSON objects.

    text_a<TAB>text_b<TAB>label                                   the header may be absent
    怎么开户<TAB>如何开户<TAB>1

    {"sentence1": "怎么开户", "sentence2": "如何开户", "label": "1"}          in .json and .jsonl

See `pair_records` for other names and orders, and for what a line is. Labels may be absent
where nobody asks for them. Every row is kept, or the file is refused with the number of the line; or, where
the rules say so, bad rows are left out and told.
"""

import logging
from functools import partial
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import (
    Any,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    TypeVar,
    Union,
    cast,
)

import numpy as np

from data_tools.text.headers import say_no_header
from data_tools.text.tables import (
    LOOKED_AT,
    SHEET_ERRORS,
    Form,
    Record,
    blank_line,
    form_of,
    is_blank,
    records,
)
from ernie_pair.core.cli.standard_streams import as_called
from ernie_pair.core.errors import InputError, OpenError, counted
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.models.label_words import bare_label
from ernie_pair.models.labels import REGRESSION, UNLABELLED, Labels
from ernie_pair.pairs.data.encoder_rows import (
    BELONG_TOGETHER,
    Unlabelled,
    is_list,
    no_label,
    pairs_of_row,
    refuse_lists,
)
from ernie_pair.pairs.data.label_checks import (
    WITHOUT_LABELS,
    LabelsOfFile,
    count_labels,
    describe_counts,
    explain_other_label,
)
from ernie_pair.pairs.data.pair_records import (
    LEFT,
    RIGHT,
    Columns,
    Layout,
    RowRules,
    is_negative,
    keys_of,
    layout_of,
)

UNNAMED = ("text_a", "text_b", "label")  # what columns without a header are called
NONE: Mapping[str, Any] = MappingProxyType({})


class Cells(NamedTuple):
    """A row as it stands, None for what it lacks; ``query`` is there with --query alone.

    ``negatives``: {column: what it holds} of rows for encoders, see `encoder_rows`.
    """

    left: Any
    right: Any
    label: Any = None
    query: Any = None
    negatives: Mapping[str, Any] = NONE


CellsRecord = tuple[int, Union[Cells, InputError]]  # the number of its line before them, or what is wrong
MOST_LOOKED_AT = 1_000_000  # rows behind a bad one that are looked through for others
_SAID: set[str] = set()  # lines about files, each of which is said once

logger = logging.getLogger(__name__)


class OpenedTable(NamedTuple):
    """A file whose columns are known: how they lie, and its rows that are still to be read."""

    layout: Optional[Layout]  # None: of a file without rows
    keys: tuple[str, ...]  # of the texts and the label in rows of keys and values, else ()
    rows: Iterator[Record]
    said: str = ""  # what is found of its encoding and its columns, in words
    has_label: bool = False
    names: Sequence[str] = ()  # of the keys of the first rows


def open_table(path: Path, columns: Columns, rules: RowRules, needs_label: bool = True) -> OpenedTable:
    """Open a file at its first row. Without ``needs_label`` a table may lack the column that --label names.

    Raises InputError when the first rows do not tell how the others are to be read.
    """
    form = form_of(path, rules.encoding)
    rows = records(path, form, rules.encoding)
    first = list(islice(rows, LOOKED_AT))
    if not first:
        return OpenedTable(None, (), iter(()))
    if isinstance(first[0][1], InputError):
        raise first[0][1]
    rows, where = chain(first, rows), f"{path}:{first[0][0]}" if first[0][0] else str(path)
    if isinstance(first[0][1], dict):
        objects = [row for _, row in first if isinstance(row, dict)]
        names = list(dict.fromkeys(chain(*objects)))
        keys = keys_of(where, names, columns, objects)
        if not rules.of_encoders:
            refuse_lists(where, keys[1], [row.get(keys[1]) for row in objects])
        said = said_of(names, keys, columns, rules, needs_label)
        return OpenedTable(None, keys, rows, _said(form, said), keys[2] in names, names)
    table = [row for _, row in first[1:] if isinstance(row, list)]
    layout = layout_of(where, first[0][1], columns, needs_label, table, form.kind == "arrow")
    names = list(layout.names) or [f"column {n + 1}" for n in range(layout.width)]
    used = [names[layout.left], names[layout.right], "" if layout.label is None else names[layout.label]]
    if not rules.of_encoders:
        refuse_lists(where, used[1], [row[layout.right] for row in table if len(row) == layout.width])
    said = said_of(names, used, columns, rules, needs_label, bool(layout.names))
    if layout.may_be_header:
        cells = [str(cell).strip() for cell in first[0][1]]
        flags = dict(zip(("text_a", "text_b", "label"), cells))
        said = f"{say_no_header('a pair', cells, flags)}{'; ' if said else ''}{said}"
    return OpenedTable(layout, (), rows, _said(form, said), layout.label is not None)


def read_cells(
    path: Path, columns: Columns, rules: RowRules, needs_label: bool = True, tells: bool = True
) -> Iterator[CellsRecord]:
    """Yield every row of a file: the number of its line, and its cells or what is wrong with them.

    Without ``needs_label`` a table may lack the column that --label names. ``tells``: log what is found of
    its columns. Raises InputError when the first rows do not tell how the others are to be read.
    """
    table = open_table(path, columns, rules, needs_label)
    if tells and table.said and as_called(str(path)) != "--pair":  # words have no columns
        say_once(str(path), table.said)
    is_unlabelled = rules.of_encoders and not table.has_label
    if table.layout is None:
        yield from _cells_of_objects(path, columns, rules, table, is_unlabelled)
        return
    layout, rows = table.layout, cast(Iterator[tuple[int, Any]], table.rows)
    if layout.has_header:
        next(rows)
    width, left, right, label, query = layout.width, layout.left, layout.right, layout.label, layout.query
    none = BELONG_TOGETHER if is_unlabelled else None
    named = [(n, name) for n, name in enumerate(layout.names) if rules.of_encoders and is_negative(name)]
    for number, cells in rows:
        if isinstance(cells, InputError):
            yield number, cells
        elif len(cells) != width:
            yield number, _bad_width(path, number, cells, layout, rules)
        else:
            asked = None if query is None else "" if is_missing(cells[query]) else cells[query]
            negatives = {name: cells[n] for n, name in named if not is_missing(cells[n])} if named else NONE
            found = none if label is None else cells[label]
            yield number, Cells(cells[left], cells[right], found, asked, negatives)


def given_rows(path: Path, columns: Columns, rules: RowRules) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the line of each row, good or bad, and {column: cell} as it stands; {} of one that is no row.

    Columns without a name are called text_a, text_b and label, or column_N.
    """
    refuse_missing(path)
    table = open_table(path, columns, rules, needs_label=False)
    if table.layout is None:
        for number, found in table.rows:
            yield number, found if isinstance(found, dict) else NONE
        return
    names = list(table.layout.names or UNNAMED[: table.layout.width])
    if table.layout.has_header:
        next(table.rows)
        named = [name or f"column_{n}" for n, name in enumerate(table.layout.names, start=1)]
        names = []
        for number, name in enumerate(named, start=1):
            free = name if name not in names else f"{name}_{number}"
            while free != name and free in (*named, *names):
                free += "_"
            names.append(free)
    for number, cells in table.rows:
        is_row = isinstance(cells, list) and len(cells) == len(names)
        yield number, dict(zip(names, cast(list, cells))) if is_row else NONE


def say_once(name: str, said: str) -> None:
    """Log what is found of the columns of ``name``, once in a process."""
    if (line := f"{name}: {said}") not in _SAID:
        _SAID.add(line)
        logger.info("%s", line)


def said_of(
    names: Sequence[str],
    used: Sequence[str],
    columns: Columns,
    rules: RowRules,
    needs_label: bool,
    has_header: bool = True,
) -> str:
    """Return in words which of the columns ``names`` are read, and which are not; ``used``: by role."""
    texts, label = used[:2], used[2] if used[2] in names and needs_label else ""
    negatives = [name for name in names if rules.of_encoders and is_negative(name)]
    unread = [name for name in names if name not in (*texts, label, columns.query, *negatives)]
    read = f"reads {' and '.join(texts)} as the texts"
    read += f", {label} as the label" if label else ""
    read += f", {', '.join(negatives)} as hard negatives" if negatives else ""
    parts = [read] if has_header else []
    if rules.of_encoders and needs_label and used[2] not in names:
        parts.append("no column is a label: the two texts of each row belong together")
    return "; ".join([*parts, *([f"not read: {', '.join(unread)}"] if unread else [])])


def _said(form: Form, said: str) -> str:
    """Return in words how a file is read; '' where nothing had to be found."""
    encoding = [f"read as {form.encoding.upper()}"] if form.encoding not in ("", "utf-8") else []
    return "; ".join(encoding + ([said] if said else []))


def _bad_width(
    path: Path, number: int, cells: Sequence[object], layout: Layout, rules: RowRules
) -> InputError:
    where, form = f"{path}:{number}", form_of(path, rules.encoding)
    if is_blank(list(cells)) and form.mark == "\t":
        return blank_line(where)
    cure = "tab between two columns and none in a text (quotes are plain text: they do not protect it)"
    if form.kind != "tab":
        name = {",": "comma", ";": "semicolon", "\t": "tab"}.get(form.mark, repr(form.mark))
        cure = f"{name} between two columns, and a text with {name}s in quotes"
    return InputError(f"{where}: {counted(len(cells), 'column')} instead of {layout.width}; write one {cure}")


def _cells_of_objects(
    path: Path, columns: Columns, rules: RowRules, table: OpenedTable, is_unlabelled: bool
) -> Iterator[CellsRecord]:
    known = {*table.names, *table.keys}
    for number, found in table.rows:
        where = f"{path}:{number}"
        if isinstance(found, list):  # no reader gives lists and objects
            raise TypeError(where)
        if isinstance(found, InputError):
            yield number, found
            continue
        if not known.issuperset(found):
            more = [key for key in found if key not in known]
            unread = [key for key in more if not (rules.of_encoders and is_negative(key))]
            if unread:
                say_once(where, f"also not read: {', '.join(unread)}")
            known.update(more)
        try:
            yield number, cells_of_object(where, found, table.keys, columns, rules, is_unlabelled)
        except InputError as error:
            yield number, error


def cells_of_object(
    where: str,
    found: Mapping,
    keys: Sequence[str],
    columns: Columns,
    rules: RowRules,
    is_unlabelled: bool = False,
) -> Cells:
    """Return the cells of a row of keys and values. Raises InputError for what is not a text."""
    left, right, label = keys
    is_group = rules.of_encoders and is_list(found.get(right))
    for key in (left,) if is_group else (left, right):
        _refuse_half_text(where, key, found)
    value = found.get(label)
    value = None if is_missing(value) else value
    value = no_label(where, label, value) if is_unlabelled else value
    negatives: Mapping[str, Any] = NONE
    if rules.of_encoders:
        negatives = {key: cell for key, cell in found.items() if is_negative(key) and not is_missing(cell)}
    return Cells(found[left], found[right], value, query_in(found, columns), negatives)


def _refuse_half_text(where: str, key: str, found: Mapping) -> None:
    text = found.get(key)
    if not isinstance(text, str):
        keys = ", ".join(found) or "-"
        what = f"is {shown(text)}, not a text" if key in found else f"is missing (found: {keys})"
        raise InputError(f"{where}: {key} {what}; every row needs two texts: see --text_a and --text_b")
    refuse_half(where, key, text)


def refuse_half(where: str, key: str, text: Any) -> None:
    """Raise InputError for a text with half of a character, which JSON and Python can hold."""
    try:
        (text if isinstance(text, str) else "").encode("utf-8")
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
    except ValueError:  # an array is neither
        return False


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
    the rules say. ``other_label``: the label that is wrong, '' where it is missing; None for other faults.
    """

    number: int
    reason: str
    place: int = 0
    is_known: bool = False
    other_label: Optional[str] = None


class OtherLabel(InputError):
    """A label that is none of those that are known; ``label``: '' where there is none."""

    def __init__(self, message: str, label: str = ""):
        super().__init__(message)
        self.label = label


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
        return Pairs(**{**{name: getattr(self, name) for name in self._fields}, **fields})

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
            labels=None if self.labels is None else self.labels[kept],
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
    """Read pairs labelled 0 to num_classes - 1; None: without labels. Raises InputError naming file:line."""
    return read_file(Path(path), None if num_classes is None else Labels.numbered(num_classes))


def read_file(
    path: Path,
    labels: Optional[Labels],
    columns: Columns = Columns(),  # noqa: B008
    rules: RowRules = RowRules(),  # noqa: B008
) -> Pairs:
    """Read all pairs, with one of ``labels`` each. Raises InputError naming file:line, or for a change."""
    refuse_missing(path)
    sha256, stamp = sha256_of_file(path), stamp_of(path)
    bad: list[BadRow] = []
    error_of = partial(error_of_rows, str(path), words_of_file(path, columns, rules), rules)
    found = good_rows(rows_of(path, labels, columns, rules), rules.skips, str(path), bad.append, error_of)
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
    """Collect rows into `Pairs`; ``bad`` is read when all of ``found`` have come, which may fill it."""
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
    """Yield ``rows`` in chunks of ``size``, read when asked for, each labelled as its first row is."""
    while part := list(islice(rows, size)):
        yield pairs_of(part, [], part[0].label is not None, "", path)


def good_rows(
    found: Iterator[Union[Row, BadRow]],
    skips: bool,
    path: str,
    reject: Reject = lambda row: None,
    error_of: Callable[[BadRow, Iterator], InputError] = lambda row, rest: InputError(row.reason),
) -> Iterator[Row]:
    """Yield the rows that are pairs, at least one; call ``reject`` with each bad row that is left out.

    Bad rows are left out when ``skips`` says so, and known ones always. Raises InputError when no row is a
    pair, and what ``error_of`` makes of the first other one and the rows behind it.
    """
    num_good, first_bad = 0, None
    for place, row in enumerate(found):
        if not isinstance(row, BadRow):
            num_good += 1
            yield row
            continue
        if not (skips or row.is_known):
            raise error_of(row._replace(place=place), found)
        first_bad = first_bad or row
        reject(row._replace(place=place))
    if first_bad and not num_good:
        if first_bad.other_label == "":
            raise refuse_unlabelled(path, first_bad)
        raise InputError(f"{path}: none of its rows is a pair; the first: {first_bad.reason}")
    if not num_good:
        raise InputError(f"{path}: it holds no pairs; give at least one")


def refuse_missing(path: Path) -> None:
    """Raise InputError when ``path`` is a folder or no file."""
    if path.is_dir():
        raise InputError(f"{path}: a folder; give a file of pairs in it")
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a .tsv, .csv, .xlsx, .parquet or .jsonl file of pairs")


def rows_of(
    path: Path, labels: Optional[Labels], columns: Columns, rules: RowRules
) -> Iterator[Union[Pair, BadRow]]:
    """Yield each row as a `Pair` or a `BadRow`, line by line. Raises InputError for an unclear layout."""
    labels = labels and with_words(labels, words_of_file(path, columns, rules))
    for number, cells in read_cells(path, columns, rules, needs_label=labels is not None):
        yield from pairs_in(f"{path}:{number}", number, cells, labels)


def pairs_in(
    where: str, number: int, cells: Union[Cells, InputError], labels: Optional[Labels]
) -> Iterator[Union[Pair, BadRow]]:
    """Yield the pair of a row, or all of a row for encoders; or as a `BadRow` what is wrong with it."""
    try:
        if isinstance(cells, InputError):
            raise cells
        if cells.right.__class__ is str and not cells.negatives and not isinstance(cells.label, Unlabelled):
            found = [row_of(where, number, cells, labels)]
        else:
            found = []
            for right, label in pairs_of_row(where, cells.right, cells.label, cells.negatives, labels):
                refuse_half(where, "a text", right)
                found.append(row_of(where, number, Cells(cells.left, right, label, cells.query), labels))
    except InputError as error:
        yield bad_row(number, error)
    else:
        yield from found


class KeyedRows:
    """Rows of keys and values, given one at a time under ``name``; the ``first`` ones tell the keys."""

    def __init__(
        self, name: str, columns: Columns, rules: RowRules, labels: Optional[Labels], first: Sequence[dict]
    ):
        self.name, self.columns, self.rules, self.labels, self.first = name, columns, rules, labels, first
        self._keys: Optional[tuple[str, str, str]] = None
        self._known: set[str] = set()
        self._is_unlabelled = False

    def pairs_of(self, where: str, number: int, row: Mapping) -> Iterator[Union[Pair, BadRow]]:
        """Yield the pairs of a row, or what is wrong with it; say which keys are not read."""
        cells: Union[Cells, InputError]
        if not self._known.issuperset(row):
            self._open(where, row)
        assert self._keys is not None
        try:
            cells = cells_of_object(where, row, self._keys, self.columns, self.rules, self._is_unlabelled)
        except InputError as error:
            cells = error
        yield from pairs_in(where, number, cells, self.labels)

    def _open(self, where: str, row: Mapping) -> None:
        names = list(map(str, row))
        if self._keys is None:
            self._keys = keys_of(where, names, self.columns, self.first)
            self._is_unlabelled = self.rules.of_encoders and self._keys[2] not in names
            if not self.rules.of_encoders:
                refuse_lists(where, self._keys[1], [row.get(self._keys[1])])
        say_once(self.name, said_of(names, self._keys, self.columns, self.rules, self.labels is not None))
        self._known.update(row)


def bad_row(number: int, error: InputError) -> BadRow:
    """Return row ``number``, of which ``error`` says why it is no pair."""
    return BadRow(number, error.message, other_label=error.label if isinstance(error, OtherLabel) else None)


class _Words(Labels):
    """Labels that are taken as the texts that they are."""

    def value_of(self, label: object) -> Any:
        """Return the text of a label."""
        return bare_label(label)


WORDS = _Words((), {}, are_optional=True)


Words = Callable[[], Iterable[Union[Pair, BadRow]]]  # the rows of a file with their labels as texts


def words_of_file(path: Path, columns: Columns, rules: RowRules) -> Words:
    """Return a function that reads the rows of a file with their labels as texts."""
    return partial(rows_of, path, WORDS, columns, rules)


def counts_of(words: Words) -> dict[str, int]:
    """Return {label: rows} of what ``words`` reads."""
    return count_labels(cast(str, row.label) for row in words() if not isinstance(row, BadRow))


def with_words(labels: Labels, words: Words) -> Labels:
    """Return ``labels`` with the words for no and yes that a file has; see `LabelsOfFile`."""
    return labels if labels is WORDS else LabelsOfFile.of(labels, partial(counts_of, words))


def error_of_rows(name: str, words: Words, rules: RowRules, row: BadRow, rest: Iterator) -> InputError:
    """Return the error of the bad ``row`` of a file, with all others in the ``rest`` of its rows.

    It ends with the command that works: without such rows, or with all labels of the file as classes.
    """
    behind = list(islice(rest, MOST_LOOKED_AT))
    others = [other for other in behind if isinstance(other, BadRow)]
    if row.other_label == "" and row.place == 0 and len(others) == len(behind):
        return refuse_unlabelled(name, row)
    lines = ", ".join(str(other.number) for other in others[:5])
    more = ", ..." if len(others) > 5 else ""
    reason = row.reason + (
        f"; {counted(len(others), 'more row')} so, in line {lines}{more}" if others else ""
    )
    if row.other_label:
        return explain_other_label(reason, name, row.other_label, counts_of(words), rules)
    has_few = 2 * (1 + len(others)) < row.place + 1 + len(behind)
    counts = counts_of(words) if row.other_label == "" else {}
    if has_few and len(counts) != 1:
        return OpenError(f"{reason}; to leave such rows out", {"on_bad_row": "skip"})
    if counts:
        reason += f"; the other labels: {describe_counts(counts)}; write the label of each row that has none"
    return InputError(reason)


def refuse_unlabelled(name: str, row: BadRow) -> InputError:
    """Return the error of a file without labels, ``row`` being its first."""
    return InputError(f"{row.reason}; no row of {name} has one: {WITHOUT_LABELS}")


def has_labels(path: Path, columns: Columns, rules: RowRules) -> bool:
    """Return whether the first good row has a label. Raises InputError without a file or a layout."""
    refuse_missing(path)
    read = read_cells(path, columns, rules, needs_label=False, tells=False)
    first = next((cells for _, cells in read if not isinstance(cells, InputError)), None)
    return first is not None and first.label is not None


def row_of(where: str, number: int, cells: Cells, labels: Optional[Labels]) -> Pair:
    """Return the cells as a `Pair`. Raises InputError for a blank text, or a label not in ``labels``."""
    left, right, label, query, _ = cells
    label = label if isinstance(label, str) or not is_missing(label) else None
    if query is not None and not str(query).strip():
        raise InputError(f"{where}: no query; fill in the column that --query names, or remove the row")
    for name, text in ((LEFT, left), (RIGHT, right)):
        if not isinstance(text, str) or not text.strip():
            found = "is empty" if isinstance(text, str) else f"is {shown(text)}, not a text"
            raise InputError(f"{where}: {name} {found}; fill it in or remove the row")
        if text in SHEET_ERRORS:
            raise InputError(
                f"{where}: {name} is {text}, an error of a spreadsheet; correct or remove the row"
            )
    value = None if labels is None else label_value(where, label, labels)
    return Pair(number, str(left), str(right), value, "" if query is None else str(query))


def label_value(where: str, label: object, labels: Labels) -> Union[int, float]:
    """Return what is learned from a label. Raises InputError when it is none of ``labels``."""
    if labels.are_optional and (label is None or not bare_label(label)):
        return UNLABELLED
    if label is None:
        needed = f"one of {labels.allowed}" if labels.has_classes else labels.allowed
        raise OtherLabel(f"{where}: no label; each row needs {needed} (name its column with --label)")
    value = labels.value_of(label)
    if value is not None:
        return value
    if not labels.has_classes:
        of_scores = labels.target == REGRESSION
        raise InputError(
            f"{where}: label {shown(label)} is not {labels.allowed}, as {labels.target} takes it; correct "
            f"it, or train with {'another --label_range, or with ' if of_scores else ''}--target "
            f"classification{' (an encoder with --objective pairs)' if of_scores else ''}"
        )
    if isinstance(label, (list, tuple, dict)):
        raise InputError(f"{where}: label {shown(label)} is no single value; write one of {labels.allowed}")
    wrong = f"label {shown(label)} is not one of {labels.allowed}; correct it"
    if where.endswith(":1"):
        wrong += "; if the line is a header, name its columns with --text_a, --text_b and --label"
    raise OtherLabel(f"{where}: {wrong}", bare_label(label))
