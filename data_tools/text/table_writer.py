"""Rows written as a table in the format that the ending of a file says; `tables` reads all of them back.

.tsv            cells between tabs, no quotes: a text with a tab or a line end is refused
.csv            commas, quotes where need be (RFC 4180), UTF-8 with a byte-order mark, as Excel opens it
.xlsx           a workbook of one sheet; a text is never a formula, and control characters are kept as _x0001_
.json .jsonl    an object on each line
.parquet        columns of whole numbers, numbers, booleans or texts

A stream, such as /dev/stdout, gets a .tsv.
"""

import csv
import json
import math
import re
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Callable, Iterator, List, Mapping, Sequence

from data_tools.text.tables import JSON_ENDINGS
from data_tools.text.text_files import PACKED
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.results import followed, is_stream
from ernie_pair.core.installation import import_optional

ENDINGS = (".tsv", ".csv", ".xlsx", *JSON_ENDINGS, ".parquet")
MAX_CELL_LENGTH, MAX_ROWS = 32_767, (1 << 20) - 1  # of a sheet of Excel, its header left out
MAX_NUMBER = 10**15  # that a cell of Excel holds to the last digit
ROWS_AT_ONCE = 1 << 13  # of a .parquet
_NOT_IN_A_TSV = re.compile(r"[\t\r\n]")
# What XML cannot hold, and what Excel would read as the code of a character.
_ESCAPED = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")

Write = Callable[[Sequence[Any]], object]


def ending_to_write(path: Path) -> str:
    """Return the ending that says how a table is written to ``path``: .tsv of a stream."""
    return ".tsv" if is_stream(followed(path)) else path.suffix.lower()


def check_table_suffix(option: str, path: str) -> None:
    """Raise InputError when ``path``, given with ``option``, is no name for a table that can be written."""
    ending = ending_to_write(Path(path))
    if ending not in ENDINGS or ending in PACKED:
        raise InputError(f"--{option} {path}: name a file that ends with {', '.join(ENDINGS)}")
    if ending == ".xlsx":
        import_optional("openpyxl")


def check_cell(where: str, ending: str, value: Any, row: int = 0) -> None:
    """Raise InputError for a cell, or a ``row`` counted from 0, that a file with this ending cannot hold."""
    fault = ""
    if ending == ".tsv" and isinstance(value, str) and _NOT_IN_A_TSV.search(value):
        fault = (
            f"{value[:40]!r} has a tab or a line end, which no .tsv can hold; name the file .jsonl or .csv"
        )
    elif ending == ".xlsx" and row >= MAX_ROWS:
        fault = f"more than {MAX_ROWS} rows, which no sheet of Excel can hold; name the file .csv"
    elif ending == ".xlsx" and isinstance(value, str) and len(value) > MAX_CELL_LENGTH:
        fault = (
            f"a text above {MAX_CELL_LENGTH} characters, which no cell of Excel can hold; name the file .csv"
        )
    if fault:
        raise InputError(f"{where}: {fault}")


@contextmanager
def table_writer(
    draft: Path,
    final: Path,
    names: Sequence[str],
    kinds: Mapping[str, type] = MappingProxyType({}),
    keeps_none: bool = True,
) -> Iterator[Write]:
    """Yield what writes a row of cells, one for each of ``names``, to ``draft`` in the format of ``final``.

    ``kinds``: of the columns of a .parquet: int, float, bool, or str where it is absent. Without
    ``keeps_none`` an object of JSON lacks what is None. Raises InputError as `check_cell` does.
    """
    ending = ending_to_write(final)
    if ending == ".xlsx":
        with _sheet(draft, names) as write:
            yield _checked(final, write)
        return
    if ending == ".parquet":
        with _columns(draft, names, kinds) as write:
            yield write
        return
    encoding = "utf-8-sig" if ending == ".csv" else "utf-8"
    with open(draft, "w", encoding=encoding, newline="") as file:
        if ending in JSON_ENDINGS:
            yield _object_writer(file, names, keeps_none)
        elif ending == ".csv":
            yield _csv_writer(file, names)
        else:
            file.write("\t".join(names) + "\n")
            yield _checked(final, lambda row: file.write("\t".join(map(text_of, row)) + "\n"))


def _checked(final: Path, write: Write) -> Write:
    count, where, ending = 0, str(final), ending_to_write(final)

    def checked(row: Sequence[Any]) -> None:
        nonlocal count
        for value in row:
            check_cell(where, ending, value, count)
        write(row)
        count += 1

    return checked


def text_of(value: Any) -> str:
    """Return a cell as text: '' of None, JSON of a list or an object."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _object_writer(file: IO[str], names: Sequence[str], keeps_none: bool) -> Write:
    def write(row: Sequence[Any]) -> object:
        known = {name: _finite(value) for name, value in zip(names, row)}
        if not keeps_none:
            known = {name: value for name, value in known.items() if value is not None}
        return file.write(json.dumps(known, ensure_ascii=False, default=str) + "\n")

    return write


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv_writer(file: IO[str], names: Sequence[str]) -> Write:
    rows = csv.writer(file, lineterminator="\n")
    # Python 3.11 puts a CR in quotes only where rows end with one.
    quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
    rows.writerow(names)

    def write(row: Sequence[Any]) -> object:
        cells = list(map(text_of, row))
        return (quoted if "\r" in "".join(cells) else rows).writerow(cells)

    return write


@contextmanager
def _sheet(draft: Path, names: Sequence[str]) -> Iterator[Write]:
    openpyxl = import_optional("openpyxl")
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("Sheet1")

    def cell_of(value: Any) -> Any:
        value = _finite(value)
        is_number = isinstance(value, (int, float)) and abs(value) < MAX_NUMBER
        if value is None or isinstance(value, bool) or is_number:
            return value
        return text_cell(text_of(value))

    def text_cell(text: str) -> Any:
        cell = openpyxl.cell.WriteOnlyCell(sheet, _ESCAPED.sub(lambda found: f"_x{ord(found[0]):04X}_", text))
        cell.data_type = "s"  # neither a formula nor an error, whatever it begins with
        return cell

    def write(row: Sequence[Any]) -> None:
        *cells, last = map(cell_of, row)
        sheet.append([*cells, text_cell("") if last is None else last])  # so that readers find all columns

    write(names)
    try:
        yield write
        book.save(draft)
    finally:
        book.close()


@contextmanager
def _columns(draft: Path, names: Sequence[str], kinds: Mapping[str, type]) -> Iterator[Write]:
    import pyarrow as pa
    from pyarrow import parquet

    types = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    schema = pa.schema([(name, types[kinds.get(name, str)]) for name in names])
    is_text = [kinds.get(name, str) is str for name in names]
    held: List[List[Any]] = []

    def flush() -> None:
        columns = zip(*held) if held else [()] * len(names)
        writer.write_table(pa.table(list(map(pa.array, columns, schema.types)), schema=schema))
        held.clear()

    def write(row: Sequence[Any]) -> None:
        held.append([text_of(one) if t and one is not None else one for t, one in zip(is_text, row)])
        if len(held) == ROWS_AT_ONCE:
            flush()

    with parquet.ParquetWriter(str(draft), schema) as writer:
        yield write
        flush()
