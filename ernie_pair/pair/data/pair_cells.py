"""The cells of every line of a file of pairs, unchanged: two texts, a label and a query.

A line at a time, of a table or of JSON objects; see `pair_columns` for the columns, `pair_records` for what
a line is.
"""

from pathlib import Path
from typing import Iterator, Mapping, Optional, Sequence, Tuple, Union

from data_tools.base.errors import InputError, counted
from data_tools.text.named_texts import PACKED
from ernie_pair.pair.data.pair_columns import Columns, Layout, keys_of, layout_of
from ernie_pair.pair.data.pair_records import BadRecord, RowRules, csv_records, json_records, tab_records

JSON_ENDINGS = (".json", ".jsonl")

# Text, text, label, query: as they stand, None where there is none; the query is there with --query alone.
Cells = Tuple[object, object, object, object]


def ending_of(path: Path) -> str:
    """Return the ending of a file in lower case, .json for example, without that of its compression."""
    return (path.with_suffix("") if path.suffix in PACKED else path).suffix.lower()


def read_cells(
    path: Path, columns: Columns, rules: RowRules, needs_label: bool = True
) -> Iterator[Tuple[int, Union[Cells, BadRecord]]]:
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
) -> Iterator[Tuple[int, Union[Cells, BadRecord]]]:
    layout: Optional[Layout] = None
    for number, cells in (csv_records if mark == "," else tab_records)(path, rules):
        where = f"{path}:{number}"
        if layout is None:
            if isinstance(cells, BadRecord):
                raise InputError(cells.reason)
            layout = layout_of(where, cells, columns, needs_label)
            if layout.has_header:
                continue
        if isinstance(cells, BadRecord):
            yield number, cells
        elif len(cells) != layout.width:
            yield number, BadRecord(_bad_width(where, cells, layout, mark))
        else:
            label = None if layout.label is None else cells[layout.label]
            query = None if layout.query is None else cells[layout.query]
            yield number, (cells[layout.left], cells[layout.right], label, query)


def _bad_width(where: str, cells: Sequence[str], layout: Layout, mark: str) -> str:
    if not "".join(cells).strip():
        return f"{where}: the line is blank; remove it, so that rows and lines agree"
    begin = f"{where}: {counted(len(cells), 'column')} instead of {layout.width}; write one "
    if mark == ",":
        return f"{begin}comma between two columns, and a text with commas in quotes"
    return (
        f"{begin}tab between two columns and none in a text (quotes are plain text: they do not protect it)"
    )


def _cells_of_json(
    path: Path, columns: Columns, rules: RowRules
) -> Iterator[Tuple[int, Union[Cells, BadRecord]]]:
    keys = None
    for number, found in json_records(path, rules):
        where = f"{path}:{number}"
        if keys is None and isinstance(found, BadRecord):
            raise InputError(found.reason)
        if isinstance(found, BadRecord):
            yield number, found
            continue
        keys = keys or keys_of(where, list(found), columns)
        try:
            for key in keys[:2]:
                _refuse_half_text(where, key, found)
        except InputError as error:
            yield number, BadRecord(error.message)
        else:
            left, right, label = keys
            yield number, (found.get(left), found.get(right), found.get(label), query_in(found, columns))


def _refuse_half_text(where: str, key: str, found: dict) -> None:
    """Raise InputError when a text is missing, not a string, or cannot be written as UTF-8."""
    text = found.get(key)
    if not isinstance(text, str):
        what = (
            f"is {shown(text)}, not a text"
            if key in found
            else f"is missing (found: {', '.join(found) or '-'})"
        )
        raise InputError(f"{where}: {key} {what}; every row needs two texts: see --text_a and --text_b")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: {key} has half of a character (\\u{ord(text[error.start]):04x}); correct it"
        ) from None


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
