"""Rows as sentence pairs, whatever holds them: tables with or without a header, JSON objects, rows in memory.

    text_a<TAB>text_b<TAB>label                                   the header may be absent
    怎么开户<TAB>如何开户<TAB>1

    {"sentence1": "怎么开户", "sentence2": "如何开户", "label": "1"}          in .json and .jsonl

    {"query": "怎么开户", "pos": ["如何开户", "开户怎么办"], "neg": ["几点下班"]}            for encoders
    {"anchor": "怎么开户", "positive": "如何开户", "negative_1": "几点下班"}

See `pair_records` for other names and orders. A row for encoders is read as pairs: its first text with each
match, of label 1, and with each hard negative, of label 0. Labels may be absent where nobody asks for them.
Every row is kept, or the file is refused with the number of the line; or, where the rules say so, bad rows
are left out and told.
"""

import logging
from dataclasses import fields
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, TypeVar, Union

import numpy as np

from data_tools.text.columns import LOOKED_AT, say_no_header, text_of
from data_tools.text.tables import (
    BLANK,
    FITS,
    PARTLY,
    SHEET_ERRORS,
    SURE,
    Form,
    Record,
    choose_table,
    detect_form,
    is_blank,
    records,
)
from ernie_pair.core.cli.standard_streams import as_called
from ernie_pair.core.errors import InputError, counted
from ernie_pair.models.labels import REGRESSION, UNLABELLED, Labels, bare_label
from ernie_pair.pairs.data.pair_records import (
    LEFT,
    RIGHT,
    Columns,
    Layout,
    RowRules,
    find_columns,
    find_keys,
    is_negative,
)

UNNAMED = tuple(item.name for item in fields(Columns))[:3]  # what columns without a header are called
NONE: Mapping[str, Any] = MappingProxyType({})
HEADER_HINT = "; if the line is a header, name its columns with --text_a, --text_b and --label"
NO_FORM = Form("")  # of rows in memory
FILE = 1 << 40  # of several files, the numbers of the lines of the n-th one, from 0, begin at n * FILE
BELONG_TOGETHER = object()  # the label of a row without labels, whose two texts belong together
_SAID: set[str] = set()  # lines about files, each of which is said once

logger = logging.getLogger(__name__)


class Cells(NamedTuple):
    """A row as it stands, None for what it lacks; ``query`` is there with --query alone.

    ``negatives``: {column: what it holds} of rows for encoders.
    """

    left: Any
    right: Any
    label: Any = None
    query: Any = None
    negatives: Mapping[str, Any] = NONE


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

    @property
    def file(self) -> str:
        """Return the file that its reason names, '' where it names none."""
        before, found, _ = self.reason.partition(f":{self.number}: ")
        return before if found else ""


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
    ``numbers`` int64 [rows] are the lines that they begin in, see FILE; without it they lie in consecutive
    lines from ``first_line`` on. ``paths``: of several files. ``bad``: the rows that were left out.
    ``queries`` are there where --query names their column, ``groups`` int64 [rows], the number of the query
    of each row, where candidates are ranked.
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
    paths: tuple[str, ...] = ()

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
            numbers=np.array([self._number(int(row)) for row in kept], dtype=np.int64),
            queries=None if self.queries is None else [self.queries[row] for row in kept],
            groups=None if self.groups is None else self.groups[kept],
        )

    def labelled(self) -> "Pairs":
        """Return the rows that have a label, where it is optional; there may be none."""
        kept = np.flatnonzero(self.known_labels != UNLABELLED)
        return self if len(kept) == len(self) else self.rows(kept)

    def number(self, row: int) -> int:
        """Return the number of the line at which row ``row`` begins; of pairs in memory, that of the row."""
        return self._number(row) % FILE

    def where(self, row: int) -> str:
        """Return PATH:LINE of row ``row``, as errors name it."""
        return f"{self.paths[self._number(row) // FILE] if self.paths else self.path}:{self.number(row)}"

    def _number(self, row: int) -> int:
        return self.first_line + row if self.numbers is None else int(self.numbers[row])


class RowReader:
    """Reads rows, lists of cells or {key: value}, whose ``first`` ones tell the columns of all of them.

    ``name``: of the file or the argument; ``where`` returns how an error names the row of a number; ``form``:
    of a file. Without ``needs_label`` a table may lack the column that --label names. ``layout``: where the
    texts and the label are, ``names``: of all columns, ``said``: in words what is found, '' where nothing had
    to be. Raises InputError when the first rows do not tell how the others are to be read.
    """

    def __init__(
        self,
        name: str,
        where: Callable[[int], str],
        first: Sequence[Record],
        columns: Columns,
        rules: RowRules,
        needs_label: bool = True,
        form: Form = NO_FORM,
    ):
        self.name, self.where, self.columns, self.rules, self.form = name, where, columns, rules, form
        number, begin = first[0]
        layout: Optional[Layout] = None
        if isinstance(begin, list):
            table = [row for _, row in first[1:] if isinstance(row, list)]
            layout = find_columns(where(number), begin, columns, needs_label, table, form.has_header)
            self.names = list(layout.names)
            shown = self.names or [f"column {n + 1}" for n in range(layout.width)]
            self._used = ["" if n is None else shown[n] for n in layout[:3]]
            seconds = [row[layout.right] for row in table if len(row) == layout.width]
        else:
            objects = [row for _, row in first if isinstance(row, dict)]
            self.names = shown = list(map(str, dict.fromkeys(chain(*objects))))
            self._used = list(find_keys(where(number), shown, columns, objects))
            seconds = [row.get(self._used[1]) for row in objects]
        if not rules.of_encoders and seconds and all(map(is_list, seconds)):
            raise InputError(
                f"{where(number)}: {self._used[1]} is a list of texts, and a pair per row is needed; "
                "ernie-pair train-embedding --objective pairs reads such rows"
            )
        self.layout, self.has_label = layout, self._used[2] in shown
        is_named = any((*columns.by_role.values(), columns.query))
        self.is_sure = bool(layout and layout.has_header and (layout.is_known or is_named))
        self._is_unlabelled = rules.of_encoders and not self.has_label
        self._known = {*self.names, *self._used}
        self._negatives = [(n, x) for n, x in enumerate(self.names) if rules.of_encoders and is_negative(x)]
        head = [text_of(cell) for cell in begin] if isinstance(begin, list) else shown
        self.said = self._describe(shown, head, needs_label)

    def _describe(self, shown: list[str], head: list[str], needs_label: bool) -> str:
        """Return in words how the rows are read: their encoding, and which columns, and which are not."""
        parts, texts, label = [], self._used[:2], self._used[2] if self.has_label and needs_label else ""
        if self.form.encoding not in ("", "utf-8"):
            parts.append(f"read as {self.form.encoding.upper()}")
        if self.layout and self.layout.may_be_header:
            parts.append(say_no_header("a pair", head, dict(zip(UNNAMED, head))))
        negatives = [name for _, name in self._negatives]
        if self.names:
            named = f"reads {' and '.join(texts)} as the texts" + (f", {label} as the label" if label else "")
            parts.append(named + (f", {', '.join(negatives)} as hard negatives" if negatives else ""))
        if self._is_unlabelled and needs_label:
            parts.append("no column is a label: the two texts of each row belong together")
        read = (*texts, label, self.columns.query, *negatives)
        unread = [name or "one without a name" for name in shown if not name or name not in read]
        return "; ".join([*parts, *([f"not read: {', '.join(unread)}"] if unread else [])])

    def log(self) -> None:
        """Log what is found of the columns, once in a process."""
        if self.said and as_called(self.name) != "--pair":  # words have no columns
            say_once(self.name, self.said)

    def cells(self, number: int, row: Any) -> Cells:
        """Return the cells of a row. Raises InputError for one that is not as the first ones are."""
        if isinstance(row, dict):
            return self._cells_of_object(number, row)
        assert self.layout is not None
        left, right, label, width, _, query = self.layout[:6]
        if len(row) != width:
            raise self._bad_width(row, width)
        none = BELONG_TOGETHER if self._is_unlabelled else None
        asked = None if query is None else "" if is_missing(row[query]) else row[query]
        negatives = NONE
        if self._negatives:
            negatives = {name: row[n] for n, name in self._negatives if not is_missing(row[n])}
        return Cells(row[left], row[right], none if label is None else row[label], asked, negatives)

    def _cells_of_object(self, number: int, row: Mapping) -> Cells:
        if not self._known.issuperset(row):
            more = [key for key in map(str, row) if key not in self._known]
            unread = [key for key in more if not (self.rules.of_encoders and is_negative(key))]
            if unread:
                say_once(self.where(number), f"also not read: {', '.join(unread)}")
            self._known.update(more)
        left, right, label = self._used
        is_group = self.rules.of_encoders and is_list(row.get(right))
        for key in (left,) if is_group else (left, right):
            if not isinstance(row.get(key), str):
                keys = ", ".join(map(str, row)) or "-"
                what = f"is {shown(row[key])}, not a text" if key in row else f"is missing (found: {keys})"
                raise InputError(f"{key} {what}; every row needs two texts: see --text_a and --text_b")
            check_surrogates(key, row[key])
        value: Any = None if is_missing(row.get(label)) else row[label]
        if self._is_unlabelled:
            if value is not None:
                raise InputError(f"{label} is a label, and the first rows have none; label all or none")
            value = BELONG_TOGETHER
        negatives = NONE
        if self.rules.of_encoders:
            negatives = {key: cell for key, cell in row.items() if is_negative(key) and not is_missing(cell)}
        query = None if not self.columns.query else row.get(self.columns.query)
        query = "" if self.columns.query and is_missing(query) else query
        return Cells(row[left], row[right], value, query, negatives)

    def _bad_width(self, cells: list, width: int) -> InputError:
        mark = self.form.mark
        if is_blank(cells) and mark == "\t":
            return InputError(BLANK)
        cure = "tab between two columns and none in a text (quotes are plain text: they do not protect it)"
        if self.form.kind != "tab":
            name = {",": "comma", ";": "semicolon", "\t": "tab"}.get(mark, repr(mark))
            cure = f"{name} between two columns, and a text with {name}s in quotes"
        found = f"{counted(len(cells), 'column')} instead of {width}"
        return InputError(f"{found}; write one {cure}")

    def given(self, row: Any) -> Mapping[str, Any]:
        """Return {column: cell} of a row as it stands; {} of one that is no row.

        Columns without a name are called text_a, text_b and label, or column_N.
        """
        if isinstance(row, dict):
            return row
        is_whole = isinstance(row, list) and len(row) == len(self._own_names)
        return dict(zip(self._own_names, row)) if is_whole else NONE

    @cached_property
    def _own_names(self) -> list[str]:
        """Return a name of its own for each column of a table."""
        assert self.layout is not None
        named = [name or f"column_{n}" for n, name in enumerate(self.names, start=1)]
        names: list[str] = []
        for number, name in enumerate(named or UNNAMED[: self.layout.width], start=1):
            free = name if name not in names else f"{name}_{number}"
            while free != name and free in (*named, *names):
                free += "_"
            names.append(free)
        return names


def open_file(
    path: Path, columns: Columns, rules: RowRules, needs_label: bool = True
) -> tuple[Optional[RowReader], Iterator[Record]]:
    """Return what reads the rows of a file, None if it has none, and these rows, without the header.

    Raises InputError as `RowReader` does, and where there is no such file.
    """
    check_pair_file(path)

    def where(number: int) -> str:
        return f"{path}:{number}" if number else str(path)

    def open_rows(first: Sequence[Record], form: Form) -> RowReader:
        return RowReader(str(path), where, first, columns, rules, needs_label, form)

    def judge(first: Sequence[Record], form: Form) -> int:
        reader = open_rows(first, form)
        lacks_label = needs_label and not reader.has_label
        is_fit = not lacks_label or rules.of_encoders
        return PARTLY if not is_fit else SURE if reader.is_sure else FITS if needs_label else PARTLY

    form = choose_table(path, detect_form(path, rules.encoding), rules.place, judge, rules.encoding)
    rows = records(path, form, rules.encoding)
    first = list(islice(rows, LOOKED_AT))
    if not first:
        return None, iter(())
    if isinstance(first[0][1], InputError):
        raise first[0][1]
    reader = open_rows(first, form)
    has_header = reader.layout is not None and reader.layout.has_header
    return reader, chain(first[has_header:], rows)


def check_pair_file(path: Path) -> None:
    """Raise InputError when ``path`` is no file."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a .tsv, .csv, .xlsx, .parquet or .jsonl file of pairs")


def say_once(name: str, said: str) -> None:
    """Log what is found of the columns of ``name``, once in a process."""
    if (line := f"{name}: {said}") not in _SAID:
        _SAID.add(line)
        logger.info("%s", line)


def check_surrogates(key: str, text: Any) -> None:
    """Raise InputError for a text with half of a character, which JSON and Python can hold."""
    try:
        (text if isinstance(text, str) else "").encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise InputError(f"{key} has half of a character ({half}); correct it") from None


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


def checked_rows(
    rows: Iterable[tuple[int, Any]], where: Callable[[int], str], make: Callable[[int, Any], Iterable[Row]]
) -> Iterator[Union[Row, BadRow]]:
    """Yield what ``make`` returns of each numbered row, or as a `BadRow` what is wrong with it, and where."""
    for number, row in rows:
        if isinstance(row, InputError):
            yield BadRow(number, row.message)
            continue
        try:
            found = make(number, row)
        except InputError as error:
            label, place = error.label if isinstance(error, OtherLabel) else None, where(number)
            hint = HEADER_HINT if label and place.endswith(":1") else ""
            yield BadRow(number, f"{place}: {error.message}{hint}", other_label=label)
        else:
            yield from found


def make_pairs(number: int, cells: Cells, labels: Optional[Labels]) -> list[Pair]:
    """Return the pair of a row, or all pairs of a row for encoders. Raises InputError."""
    right, label, negatives = cells.right, cells.label, cells.negatives
    if right.__class__ is str and not negatives and label is not BELONG_TOGETHER:
        return [make_pair(number, cells, labels)]
    if is_list(right) and not len(right):
        raise InputError("its list of matches is empty; give one, or remove the row")
    names: Sequence[Any] = labels.names if labels is not None and labels.names else (0, 1)
    match = names[1] if label is BELONG_TOGETHER else label
    rows = [(text, match) for text in (right if is_list(right) else [right])]
    if labels is None or labels.names:  # others collect the words of labels
        rows += [(text, names[0]) for name, cell in negatives.items() for text in texts_in(name, cell)]
    for text, _ in rows:
        check_surrogates("a text", text)
    return [make_pair(number, Cells(cells.left, *row, cells.query), labels) for row in rows]


def is_list(cell: Any) -> bool:
    """Return whether a cell is a list, or an array as parquet files give it."""
    return isinstance(cell, (list, tuple)) or getattr(cell, "ndim", 0) == 1


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


def make_pair(number: int, cells: Cells, labels: Optional[Labels]) -> Pair:
    """Return the cells as a `Pair`. Raises InputError for a blank text, or a label not in ``labels``."""
    left, right, label, query, _ = cells
    label = label if isinstance(label, str) or not is_missing(label) else None
    if query is not None and not str(query).strip():
        raise InputError("no query; fill in the column that --query names, or remove the row")
    for name, text in ((LEFT, left), (RIGHT, right)):
        if not isinstance(text, str) or not text.strip():
            found = "is empty" if isinstance(text, str) else f"is {shown(text)}, not a text"
            raise InputError(f"{name} {found}; fill it in or remove the row")
        if text in SHEET_ERRORS:
            raise InputError(f"{name} is {text}, an error of a spreadsheet; correct or remove the row")
    value = None if labels is None else label_value(label, labels)
    return Pair(number, str(left), str(right), value, "" if query is None else str(query))


def label_value(label: object, labels: Labels) -> Union[int, float]:
    """Return what is learned from a label. Raises InputError when it is none of ``labels``."""
    if labels.are_optional and (label is None or not bare_label(label)):
        return UNLABELLED
    if label is None:
        needed = f"one of {labels.allowed}" if labels.has_classes else labels.allowed
        raise OtherLabel(f"no label; each row needs {needed} (name its column with --label)")
    value = labels.value_of(label)
    if value is not None:
        return value
    if not labels.has_classes:
        of_scores = labels.target == REGRESSION
        raise InputError(
            f"label {shown(label)} is not {labels.allowed}, as {labels.target} takes it; correct "
            f"it, or train with {'another --label_range, or with ' if of_scores else ''}--target "
            f"classification{' (an encoder with --objective pairs)' if of_scores else ''}"
        )
    if isinstance(label, (list, tuple, dict)):
        raise InputError(f"label {shown(label)} is no single value; write one of {labels.allowed}")
    raise OtherLabel(f"label {shown(label)} is not one of {labels.allowed}; correct it", bare_label(label))


def collect_pairs(
    found: Iterable[Pair],
    bad: list[BadRow],
    labelled: bool,
    sha256: str,
    path: str,
    paths: tuple[str, ...] = (),
) -> Pairs:
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
    return Pairs(left, right, labels, sha256, path, numbers[0] % FILE, lines, tuple(bad), named, None, paths)


def labels_array(labels: Sequence[Union[int, float, None]]) -> np.ndarray:
    """Return the labels of rows that have them: classes int64 [rows], scores float64 [rows]."""
    return np.array(labels, dtype=np.float64 if isinstance(labels[0], float) else np.int64)


def read_chunks(rows: Iterator[Pair], size: int, path: str) -> Iterator[Pairs]:
    """Yield ``rows`` in chunks of ``size``, read when asked for, each labelled as its first row is."""
    while part := list(islice(rows, size)):
        yield collect_pairs(part, [], part[0].label is not None, "", path)
