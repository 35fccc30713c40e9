"""Rows of tables as people have them, read one at a time: text with any separator, spreadsheets, Arrow, JSON.

.tsv .txt ...           cells between tabs, where quotes are plain text; with commas or semicolons, as .csv
.csv                    cells between commas, semicolons or tabs, in quotes where need be (RFC 4180)
.json .jsonl            an object on each line, or one array of objects
.xlsx                   the first sheet that has rows; numbers are read as the texts that they show
.parquet .arrow .feather    columns; those of a struct are called OUTER.INNER

Text is UTF-8, UTF-16 or GB18030, as `encoding_of` finds it, and may be packed, .gz or .zst. A line `sep=;`,
and blank rows at the end, as spreadsheets write them, are left out.
"""

import csv
import re
import zipfile
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Tuple, Union

from data_tools.files.errors import InputError, again_with
from data_tools.files.installation import import_optional
from data_tools.files.json_file import JsonError, kind_of, parse_json
from data_tools.text.text_files import (
    LONGEST_LINE,
    PACKED,
    LineRules,
    decoded,
    encoding_of,
    is_utf8_line,
    read_lines,
)

JSON_ENDINGS = (".json", ".jsonl")
SHEETS = (".xlsx", ".xlsm")
ARROW = (".parquet", ".arrow", ".feather")
UNREAD = {
    ".xls": "Excel 97-2003",
    ".ods": "OpenDocument",
    ".et": "WPS",
    ".pickle": "Python",
    ".pkl": "Python",
}
SNIFFED = 20  # lines that tell the separator
MOST_BLANK = 10_000  # blank rows held back until another row, or the end of the file, is read
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\s*')
_MARKED = re.compile(rb'<c r="([A-Z]+\d+)"[^>]*><f[ >/]|<mergeCell ref="([A-Z0-9:]+)"')
# Bytes of a sheet in which no more than one mark of `_MARKED` is cut by the end of a piece.
_BETWEEN = 1 << 10


class Form(NamedTuple):
    """How the rows of a file are written: its ``kind``, and of text the separator and the encoding.

    ``kind``: tab (quotes are plain text), csv, json (lines), array, sheet or arrow; ``skipped``: before it.
    """

    kind: str
    mark: str = ""
    encoding: str = ""
    skipped: int = 0


# The line or row that it is in, and its cells, or its keys and values, or what is wrong with it.
Record = Tuple[int, Union[List[Any], Dict[str, Any], InputError]]


class BlankLine(InputError):
    """A line without a text."""


def blank_line(where: str) -> BlankLine:
    """Return the error about a line without a text."""
    return BlankLine(f"{where}: the line is blank; remove it, so that rows and lines agree")


def ending_of(path: Path) -> str:
    """Return the ending of a file in lower case, .json for example, without that of its compression."""
    return (path.with_suffix("") if path.suffix in PACKED else path).suffix.lower()


def form_of(path: Path, encoding: str = "utf-8") -> Form:
    """Return how the rows of a file are written; utf-8: its encoding is found. Raises InputError."""
    status = path.stat()
    return _form_of(path, encoding, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _form_of(path: Path, encoding: str, *stamp: int) -> Form:
    ending = ending_of(path)
    if ending in UNREAD:
        raise InputError(f"{path} is a file of {UNREAD[ending]}; save it as .xlsx, .csv or .parquet")
    if ending in (*SHEETS, *ARROW):
        return Form("sheet" if ending in SHEETS else "arrow")
    found = encoding_of(path) if encoding == "utf-8" else encoding
    raw = islice(read_lines(path, max_bytes=LONGEST_LINE, encoding=encoding), SNIFFED)
    code = "utf-8" if encoding == "utf-8" else encoding
    lines = [line.decode(code, "replace").removeprefix("\ufeff") for line in raw]
    if ending in JSON_ENDINGS:
        first = next((line for line in lines if line.strip()), "")
        return Form("array" if first.lstrip().startswith("[") else "json", "", found)
    named = _SEPARATOR_LINE.fullmatch(lines[0]) if lines else None
    if named:
        return Form("csv", named[1], found, 1)
    mark = _mark_of(lines, "," if ending == ".csv" else "\t")
    # The "Unicode text" of a spreadsheet puts cells in quotes; other lines of tabs are as they stand.
    is_plain = mark == "\t" and ending != ".csv" and not found.startswith("utf-16")
    return Form("tab" if is_plain else "csv", mark, found)


def _mark_of(lines: List[str], usual: str) -> str:
    """Return the first of comma, semicolon, tab that makes rows of one width of two or more; or ``usual``."""
    if usual == "\t" and any("\t" in line for line in lines[:1]):
        return usual
    first = {}
    for mark in (usual, *(mark for mark in ",;\t" if mark != usual)):
        try:
            rows = [row for row in csv.reader([line + "\n" for line in lines], delimiter=mark) if row]
        except csv.Error:
            continue
        rows = rows[:-1] if len(lines) == SNIFFED and len(rows) > 1 else rows  # the last one may be cut
        first[mark] = len(rows[0]) if rows else 0
        if first[mark] > 1 and {len(row) for row in rows} == {first[mark]}:
            return mark
    header = [mark for mark, width in first.items() if width > 2]
    return usual if first.get(usual, 0) > 1 or not header or usual == "\t" else header[0]


def records(path: Path, form: Form, encoding: str = "utf-8") -> Iterator[Record]:
    """Yield each row with its number: that of its line, or in a sheet, an array or columns that of the row.

    A row that cannot be read is an InputError. Blank rows at the end are left out. Raises InputError where no
    row after this one can be found, or nothing can be read.
    """
    readers = {"json": _json_lines, "array": _json_array, "csv": _csv_rows, "tab": _tab_rows}
    if form.kind in readers:
        found = readers[form.kind](path, form, encoding)
    else:
        found = _sheet_rows(path) if form.kind == "sheet" else _arrow_rows(path)
    held: List[Record] = []
    for record in found:
        row: Any = record[1]
        if row.__class__ is list and row and row[0] and not held:  # of nearly all
            yield record
            continue
        if is_blank(row) and len(held) < MOST_BLANK:
            held.append(record)
            continue
        if held:
            yield from held
            held = []
        yield record


def is_blank(row: object) -> bool:
    """Return whether a row has no text in any cell."""
    if isinstance(row, list):
        return not (row and row[0]) and not any(cell is not None and str(cell).strip() for cell in row)
    return isinstance(row, BlankLine)


def _texts(
    path: Path, form: Form, encoding: str, keeps_cr: bool = False
) -> Iterator[Tuple[int, Union[str, InputError]]]:
    """Yield the number of each line and its text, or what is wrong with it; ``keeps_cr``: blank ones too."""
    if encoding != "utf-8":
        with open(path, "rb") as content:
            if content.read(3) == b"\xef\xbb\xbf":
                raise InputError(
                    f"{path} has the byte-order mark of UTF-8, not {encoding}; leave --encoding out"
                )
    found_gb = encoding == "utf-8" and form.encoding == "gb18030"
    rules = LineRules(encoding="gb18030" if found_gb else encoding, has_flag=True, keeps_cr=keeps_cr)
    name, longest = str(path), LONGEST_LINE
    for number, raw in enumerate(read_lines(path, encoding=rules.encoding), start=1):
        if number <= form.skipped:
            continue
        text: Union[str, InputError]
        try:
            if len(raw) > longest:
                raise InputError(f"{name}:{number}: the line is above {longest} bytes; cut it")
            if found_gb and is_utf8_line(raw):
                raise InputError(
                    f"{name}:{number}: UTF-8, and the lines before it are GB18030; write all of them in one "
                    f"encoding, or leave such lines out: {again_with(on_bad_row='skip')}"
                )
            text = decoded(name, number, raw, rules)
            if not keeps_cr and not text.strip():
                raise blank_line(f"{name}:{number}")
        except InputError as error:
            text = error
        yield number, text


def _tab_rows(path: Path, form: Form, encoding: str) -> Iterator[Record]:
    for number, text in _texts(path, form, encoding):
        yield number, text.split("\t") if isinstance(text, str) else text


class _CsvLines:
    """The lines of a file for `csv.reader`; ``number``: of the last one, counted from 1."""

    def __init__(self, texts: Iterator[Tuple[int, Union[str, InputError]]], number: int):
        self.number, self._texts = number, texts

    def __iter__(self) -> "_CsvLines":
        return self

    def __next__(self) -> str:
        self.number, text = next(self._texts)
        if isinstance(text, InputError):
            raise text
        return text + "\n"


def _csv_rows(path: Path, form: Form, encoding: str) -> Iterator[Record]:
    """Yield the rows of a .csv, with the number of the line that each begins in; their line ends are LF."""
    lines = _CsvLines(_texts(path, form, encoding, keeps_cr=True), form.skipped)
    csv.field_size_limit(max(LONGEST_LINE, csv.field_size_limit()))
    reader = csv.reader(lines, strict=True, delimiter=form.mark)
    while True:
        number = lines.number + 1
        try:
            row = next(reader)
            yield number, row if row else blank_line(f"{path}:{number}")
        except StopIteration:
            return
        except csv.Error as error:
            yield number, _bad_csv(f"{path}:{number}", str(error))
        except InputError as error:
            yield number, error


def _bad_csv(where: str, reason: str) -> InputError:
    """Return what is wrong with a row of a .csv. Raises InputError when the row after it cannot be found."""
    if "unexpected end of data" in reason or "field limit" in reason:
        raise InputError(
            f"{where}: a cell that begins with a quote in this row has no quote at its end; close it, and "
            "double the quotes within"
        )
    if "NUL" in reason:  # of Python 3.10
        return InputError(
            f"{where}: a NUL character, which Python reads in a CSV from 3.11 on; remove it, or use that"
        )
    if "new-line" in reason:
        return InputError(f"{where}: CR outside of quotes; save the file with LF or CRLF line ends")
    return InputError(
        f"{where}: text behind the closing quote of a cell; double the quotes within a cell in quotes"
    )


def _json_lines(path: Path, form: Form, encoding: str) -> Iterator[Record]:
    found: Any
    for number, found in _texts(path, form, encoding):
        if isinstance(found, str):
            where = f"{path}:{number}"
            try:
                row = parse_json(found)
                wrong = f"{kind_of(row)} instead of an object; write {{...}} on each line"
                found = row if isinstance(row, dict) else InputError(f"{where}: {wrong}")
            except JsonError as error:
                found = InputError(f"{where}: {error}; write an object per line")
        yield number, found


def _json_array(path: Path, form: Form, encoding: str) -> Iterator[Record]:
    code = "utf-8" if encoding == "utf-8" else encoding
    lines = read_lines(path, encoding=encoding)
    try:
        found = parse_json("\n".join(line.decode(code) for line in lines).removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not {code} ({error.reason}); give its encoding with --encoding") from None
    except JsonError as error:
        where = f"{path}:{error.line}" if error.line else str(path)
        raise InputError(f"{where}: {error}; correct the array, or write an object per line") from None
    for number, row in enumerate(found, start=1):
        wrong = f"{path}:{number}: {kind_of(row)} instead of an object; write {{...}}"
        yield number, row if isinstance(row, dict) else InputError(wrong)


def _sheet_rows(path: Path) -> Iterator[Record]:
    """Yield the rows of the first sheet that has any; a number is the text that it shows, TRUE a bool."""
    openpyxl = import_optional("openpyxl")
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise _damaged(path, "a workbook of Excel", error) from None
    try:
        sheets = {sheet.title: sheet for sheet in book.worksheets}
        for name, sheet in sheets.items():
            rows = enumerate(sheet.iter_rows(values_only=True), start=1)
            first = next(((n, row) for n, row in rows if any(cell is not None for cell in row)), None)
            if first is not None:
                _refuse_marked(path, name, sheet)
                width = max(n + 1 for n, cell in enumerate(first[1]) if cell is not None)
                for number, row in chain([first], rows):
                    cells = [_shown_cell(cell) for cell in row]
                    yield number, cells[:width] if is_blank(cells[width:]) else cells
                return
    finally:
        book.close()


def _shown_cell(cell: object) -> object:
    if isinstance(cell, float) and cell.is_integer() or type(cell) is int:
        return str(int(cell))
    return str(cell) if isinstance(cell, float) else cell


def _refuse_marked(path: Path, name: str, sheet: Any) -> None:
    """Raise InputError for a sheet with merged cells, or with formulas, whose results may be out of date."""
    merged: List[str] = []
    formulas: List[str] = []
    rest = b""
    with sheet._get_source() as source:
        for piece in iter(lambda: source.read(1 << 20), b""):
            content = rest + piece
            ends = 0
            for match in _MARKED.finditer(content):
                (formulas if match[1] else merged).append((match[1] or match[2]).decode())
                ends = match.end()
            rest = content[max(ends, len(content) - _BETWEEN) :]
    found = [
        f"{len(cells)} {what} ({', '.join(cells[:5])}{', ...' if len(cells) > 5 else ''})"
        for what, cells in (("ranges of merged cells", merged), ("cells with a formula", formulas))
        if cells
    ]
    if found:
        cures = (["unmerge and fill the merged ones"] if merged else []) + (
            ["paste the formulas as values"] if formulas else []
        )
        raise InputError(
            f"{path}, sheet {name}: {' and '.join(found)}; {' and '.join(cures)}, save the sheet as "
            f"{path.with_suffix('.csv').name}, and pass that: "
            f"{again_with(replaced={str(path): str(path.with_suffix('.csv'))})}"
        )


def _arrow_rows(path: Path) -> Iterator[Record]:
    """Yield the names of the columns, and each row, counted from 1; lists and maps are left as they are."""
    import_optional("pyarrow")
    import pyarrow as pa

    try:
        batches = _arrow_batches(path)
        first = next(batches, None)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, "a table of Arrow or Parquet", error) from None
    if first is None:
        return
    number = 0
    for batch in chain([first], batches):
        table = pa.Table.from_batches([batch])
        while any(pa.types.is_struct(field.type) for field in table.schema):
            table = table.flatten()
        if not number:
            yield 0, list(table.column_names)
        for row in zip(*(column.to_pylist() for column in table.columns)):
            number += 1
            yield number, list(row)


def _arrow_batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    if path.suffix.lower() == ".parquet":
        found = parquet.ParquetFile(path)
        empty = pa.RecordBatch.from_pylist([], schema=found.schema_arrow)
        yield from chain(found.iter_batches(batch_size=1 << 13), () if found.metadata.num_rows else (empty,))
        return
    with pa.memory_map(str(path)) as source:
        try:
            file = pa.ipc.open_file(source)
            yield from map(file.get_batch, range(file.num_record_batches))
        except pa.ArrowInvalid:  # a stream, as the datasets of Hugging Face are kept
            source.seek(0)
            yield from pa.ipc.open_stream(source)


def _damaged(path: Path, what: str, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:100]
    return InputError(f"{path} cannot be read as {what} ({reason}); save it again, or as .csv")


def text_of(cell: object) -> str:
    """Return a cell as text, without the white space around it; '' of none."""
    return "" if cell is None else str(cell).strip()


def columns_of(rows: Iterable[List[Any]], width: int) -> List[List[str]]:
    """Return the cells of each of ``width`` columns as texts, without those that are empty."""
    columns: List[List[str]] = [[] for _ in range(width)]
    for row in rows:
        for column, cell in zip(columns, row):
            text = text_of(cell)
            if text:
                column.append(text)
    return columns
