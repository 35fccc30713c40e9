"""Rows of tables as people have them, read one at a time: text with any separator, spreadsheets, Arrow, JSON.

.tsv .txt ...           cells between tabs, where quotes are plain text; with commas or semicolons, as .csv
.csv                    cells between commas, semicolons or tabs, in quotes where need be (RFC 4180)
.json .jsonl            an object on each line, objects over several lines, or one array of objects
.xlsx                   the sheet that fits, or --sheet; numbers are read as the texts that they show
.parquet .arrow .feather    columns; those of a struct are called OUTER.INNER

What a file holds counts, not its name, but where text could be either. Text is UTF-8, UTF-16, UTF-32 or
GB18030, as `detect_encoding` finds it, and may be packed. A line `sep=;`, a title above the header of a sheet
and blank rows at the end are left out, blank rows and columns of a sheet everywhere.
"""

import csv
import json
import re
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, time
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from data_tools.text.columns import LOOKED_AT, text_of
from data_tools.text.file_content import (
    PARQUET,
    SHEET,
    TEXT,
    detect_encoding,
    detect_kind,
    free_name,
    is_utf8_line,
)
from data_tools.text.text_files import (
    MAX_LINE_BYTES,
    LineRules,
    Place,
    decoded,
    plain_suffix,
    read_lines,
    say_once,
)
from ernie_pair.core.cli.options import Options, kept_data_option
from ernie_pair.core.errors import InputError, OpenError, again_with, counted
from ernie_pair.core.files.json_file import JsonError, begins_json_lines, kind_of, parse_json
from ernie_pair.core.installation import import_optional

JSON_ENDINGS = (".json", ".jsonl")
JSON_FORMS = ("json", "array", "objects")
# Endings of what is no text: a file so called that holds none of it is refused, unless it is a table of text.
UNREAD = {
    ".xls": "Excel 97-2003", ".ods": "OpenDocument", ".et": "WPS", ".pickle": "Python", ".pkl": "Python",
    ".xlsx": "Excel", ".xlsm": "Excel", ".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Arrow",
}  # fmt: skip
SHEET_ERRORS = ("#N/A", "#REF!", "#DIV/0!", "#NAME?", "#VALUE!", "#NUM!", "#NULL!")
SNIFFED = 20  # lines that tell the separator
MAX_BLANK_ROWS = 10_000  # blank rows held back until another row, or the end of the file, is read
MAX_JSON_BYTES = 1 << 30  # bytes of one array, or of objects over several lines, which are held in memory
MAX_ROWS = 1 << 20  # of a sheet of Excel
MAX_CELL_BYTES = 1 << 20  # bytes of a cell of a sheet: Excel's own limit is 32,767 characters
MAX_STRING_BYTES = 1 << 30  # bytes of the texts that a workbook shares between its cells
_ROWS_AT_ONCE = 1 << 13
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\s*')
_BEGINS_ARRAY = re.compile(r'\s*\[\s*\{\s*["}]')
_QUOTED_CELLS = re.compile(r'(?:"(?:[^"]|"")*"|[-+.\deE]*|NA|NULL|TRUE|FALSE|True|False)')
_LABEL = re.compile(r"[^\s,;]{1,12}")
# A format of a number, without the colours and the room of another character, that Python can follow.
_NUMBER_FORMAT = re.compile(r"(#,##)?(0+)(?:\.(0+))?(%?)")
_ROOM = re.compile(r"_.|\[(?:Red|Black|Blue|Green|红色|黑色|蓝色|绿色)\]|\\ ")
_EXACT = 10**15  # above which a workbook has other digits
# In a sheet: a row beyond all bounds, or hidden; a range of merged cells; a formula's cell, and its value.
_MARKED = re.compile(
    rb'<row r="(\d{7,20})"|<row [^>]*?hidden="(1|true)"|<mergeCell ref="([A-Z0-9:]+)"'
    rb'|<c r="([A-Z]+\d+)"([^>]*)><f(?:[^>]*/>|[^>]*>[^<]*</f>)(?:<v[^>/]*>([^<]))?'
)
_BETWEEN = 1 << 16  # bytes in which no more than one of these is cut by the end of a piece
_CUT = 32  # bytes behind a formula in which its value begins
_PIECE = 1 << 20


class Form(NamedTuple):
    """How the rows of a file are written: its ``kind``, and of text the separator and the encoding.

    ``kind``: tab (quotes are plain text), csv, json (lines), objects (over several), array, sheet or arrow;
    ``skipped``: lines before the first row; ``has_header``: whether that is a header, None: it is found;
    ``columns``: the places of those of a ``sheet`` that are read.
    """

    kind: str
    mark: str = ""
    encoding: str = ""
    skipped: int = 0
    has_header: Optional[bool] = None
    sheet: str = ""
    columns: Tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SheetFlags(Options):
    """Where in a file a table is."""

    sheet: str = kept_data_option(
        "", help="the sheet of a workbook, its name or number; empty: found", affects="rows, text"
    )
    header_row: Optional[int] = kept_data_option(
        None,
        help="the row with the names of the columns, from 1; 0: there is none; none: found",
        at_least=0,
        affects="rows, text",
    )

    @property
    def place(self) -> Place:
        """Return where the tables of a command are."""
        return Place(self.sheet, self.header_row)


# The line or row that it is in, and its cells, or its keys and values, or what is wrong with it.
Record = Tuple[int, Union[List[Any], Dict[str, Any], InputError]]


# What a judge says of the rows from one on: they are not what is looked for, may be it, are it by what they
# hold, or by the names of their columns. It raises InputError with what is wrong with them.
UNFIT, PARTLY, FITS, SURE = range(4)
Judge = Callable[[List[Record], Form], int]


class BlankLine(InputError):
    """A line without a text."""


BLANK = "the line is blank; remove it, so that rows and lines agree"


def detect_form(path: Path, encoding: str = "utf-8") -> Form:
    """Return how the rows of a file are written; utf-8: its encoding is found. Raises InputError."""
    status = path.stat()
    return _detect_form(path, encoding, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _detect_form(path: Path, encoding: str, *stamp: int) -> Form:
    ending, kind = plain_suffix(path), detect_kind(path)
    if kind != TEXT:
        return Form("sheet") if kind == SHEET else Form("arrow", has_header=True)
    found = detect_encoding(path) if encoding == "utf-8" else encoding
    raw = islice(read_lines(path, max_bytes=MAX_LINE_BYTES, encoding=encoding), SNIFFED)
    lines = [line.decode(encoding, "replace").removeprefix("\ufeff") for line in raw]
    mark = _detect_separator(lines, "," if ending == ".csv" else "\t")
    is_table = _is_table(lines, mark)
    if not is_table and ending in UNREAD:
        kinds = ".xlsx, .csv or .parquet"
        raise InputError(f"{path} cannot be read as a file of {UNREAD[ending]}; save it again, as {kinds}")
    of_json = _json_form(lines, "" if is_table else ending)
    if of_json:
        return Form(of_json, "", found)
    named = _SEPARATOR_LINE.fullmatch(lines[0]) if lines else None
    if named:
        return Form("csv", named[1], found, 1)
    # The "Unicode text" of a spreadsheet puts cells in quotes; other lines of tabs are as they stand.
    is_plain = mark == "\t" and ending != ".csv" and not found.startswith("utf-16")
    return Form("tab" if is_plain and not _has_quoted_cells(lines) else "csv", mark, found)


def _json_form(lines: List[str], ending: str) -> str:
    """Return one of JSON_FORMS for the beginning of a file of JSON, by its first lines; '' for other text."""
    is_named = ending in JSON_ENDINGS
    first, second, *_ = *(line.strip() for line in lines if line.strip()), "", ""
    beginning = "\n".join(lines)
    is_row = second.startswith("{") and first != "[" and not first.endswith(",")  # above other rows
    if is_named and first.startswith("[") and not is_row or _BEGINS_ARRAY.match(beginning[:1000]):
        return "array"
    if not (is_named or begins_json_lines(beginning[:1000].encode("utf-8", "replace"))):
        return ""
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        if first.startswith("{") and (second.startswith(('"', "}")) or second and first[-1] in "{[,:"):
            return "objects"
        return "json" if is_named or ending not in (".csv", ".tsv") else ""
    return "json"


def _has_quoted_cells(lines: List[str]) -> bool:
    """Return whether cells between tabs are in quotes, as R and pandas (QUOTE_NONNUMERIC) write them."""
    begins = [line for line in lines if line][:2]
    if not begins or not all(
        '"' in line and all(map(_QUOTED_CELLS.fullmatch, line.split("\t"))) for line in begins[:1]
    ):
        return False
    if len(begins) > 1 and not _QUOTED_CELLS.fullmatch(begins[1].split("\t")[0]):
        return False
    return len({len(row) for row in _rows_split(lines, "\t")}) == 1


def _rows_split(lines: List[str], mark: str) -> List[List[str]]:
    """Return the rows of the first lines, with quotes, split at ``mark``; [] where they cannot be read."""
    try:
        rows = [row for row in csv.reader([line + "\n" for line in lines], delimiter=mark) if row]
    except csv.Error:
        return []
    return rows[:-1] if len(lines) == SNIFFED and len(rows) > 1 else rows  # the last one may be cut


def _is_table(lines: List[str], mark: str) -> bool:
    """Return whether the first lines are rows of several cells, and not JSON."""
    if not lines or lines[0].lstrip()[:1] in ("{", "[", ""):
        return False
    try:
        json.loads(lines[0])
    except (ValueError, RecursionError):
        widths = {len(row) for row in _rows_split(lines, mark)}
        return len(widths) == 1 and max(widths) > 1
    return False


def looks_like_table(path: Path, form: Form, encoding: str) -> bool:
    """Return whether the first lines of a text are two rows or more, of several cells each."""
    rows = [row for _, row in islice(records(path, form, encoding), SNIFFED)]
    widths = {len(row) if isinstance(row, list) else 0 for row in rows}
    return len(rows) > 1 and len(widths) == 1 and max(widths) > 1


def _detect_separator(lines: List[str], usual: str) -> str:
    """Return the mark of tab, comma, semicolon that makes rows of one width of two or more; or ``usual``.

    Where several do, the one whose last column is a number or a word in each row, the label; else tab.
    """
    if usual == "\t" and any("\t" in line for line in lines[:1]):
        return usual
    split = {mark: _rows_split(lines, mark) for mark in dict.fromkeys(("\t", usual, ",", ";"))}
    whole = {m: rows for m, rows in split.items() if rows and {len(row) for row in rows} == {len(rows[0])}}
    fitting = [mark for mark, rows in whole.items() if len(rows[0]) > 1]
    labelled = [mark for mark in fitting if all(_LABEL.fullmatch(row[-1]) for row in whole[mark])]
    if fitting:
        return (labelled or fitting)[0]
    first = {mark: len(rows[0]) if rows else 0 for mark, rows in split.items()}
    of_tabs = [len(row) for row in split["\t"]]
    if usual == "," and first["\t"] > 1 and 2 * of_tabs.count(first["\t"]) > len(of_tabs):
        return "\t"  # with some row that is not whole
    header = [mark for mark, width in first.items() if width > 2]
    return usual if first.get(usual, 0) > 1 or not header or usual == "\t" else header[0]


def records(path: Path, form: Form, encoding: str = "utf-8") -> Iterator[Record]:
    """Yield each row with its number: that of its line, or in a sheet, an array or columns that of the row.

    A row that cannot be read is an InputError. Blank rows at the end are left out. Raises InputError where no
    row after this one can be found, or nothing can be read.
    """
    readers = {
        "json": _json_lines,
        "array": _json_whole,
        "objects": _json_whole,
        "csv": _csv_rows,
        "tab": _tab_rows,
    }
    if form.kind in readers:
        found = readers[form.kind](path, form, encoding)
    elif form.kind == "sheet":
        found = _sheet_rows(path, form if form.sheet else choose_table(path, form))
    else:
        found = _arrow_rows(path)
    held: List[Record] = []
    for record in found:
        row: Any = record[1]
        if row.__class__ is list and row and row[0] and not held:  # of nearly all
            yield record
            continue
        if is_blank(row) and len(held) < MAX_BLANK_ROWS:
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
    name, longest = str(path), MAX_LINE_BYTES
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
                    "encoding"
                )
            text = decoded(name, number, raw, rules)
            if not keeps_cr and not text.strip():
                raise BlankLine(f"{name}:{number}: {BLANK}")
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
    csv.field_size_limit(max(MAX_LINE_BYTES, csv.field_size_limit()))
    reader = csv.reader(lines, strict=True, delimiter=form.mark)
    while True:
        number = lines.number + 1
        try:
            row = next(reader)
            yield number, row if row else BlankLine(f"{path}:{number}: {BLANK}")
        except StopIteration:
            return
        except csv.Error as error:
            yield number, _bad_csv(f"{path}:{number}", str(error))
        except InputError as error:
            yield number, error


# What Python's reader says of a row, and what we say.
_CSV_FAULTS = {
    "new-line": "CR outside of quotes; save the file with LF or CRLF line ends",
    "NUL": "a NUL character, which Python reads in a CSV from 3.11 on; remove it, or use that",
    "": "text behind the closing quote of a cell; double the quotes within a cell in quotes",
}


def _bad_csv(where: str, reason: str) -> InputError:
    """Return what is wrong with a row of a .csv. Raises InputError when the row after it cannot be found."""
    if "unexpected end of data" in reason or "field limit" in reason:
        raise InputError(
            f"{where}: a cell that begins with a quote in this row has no quote at its end; close it, and "
            "double the quotes within"
        )
    return InputError(f"{where}: {next(told for part, told in _CSV_FAULTS.items() if part in reason)}")


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


def _json_whole(path: Path, form: Form, encoding: str) -> Iterator[Record]:
    """Yield the objects of an array, or of objects over several lines, counted from 1."""
    lines, size = [], 0
    for line in read_lines(path, encoding=encoding):
        lines.append(line)
        size += len(line) + 1
        if size > MAX_JSON_BYTES:
            raise InputError(
                f"{path}: JSON over several lines above {MAX_JSON_BYTES} bytes; write an object per line: "
                f"jq -c '{'.[]' if form.kind == 'array' else '.'}' {path} > "
                + free_name(str(path.with_suffix("")), ".jsonl")
            )
    try:
        text = "\n".join(line.decode(encoding) for line in lines).removeprefix("\ufeff")
        found = parse_json(text) if form.kind == "array" else list(_objects_in(text))
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not {encoding} ({error.reason}); give its encoding with --encoding"
        ) from None
    except JsonError as error:
        where = f"{path}:{error.line}" if error.line else str(path)
        raise InputError(
            f"{where}: {error}; correct the array or the objects, or write one per line"
        ) from None
    for number, row in enumerate(found, start=1):
        wrong = f"{path}:{number}: {kind_of(row)} instead of an object; write {{...}}"
        yield number, row if isinstance(row, dict) else InputError(wrong)


def _objects_in(text: str) -> Iterator[Any]:
    """Yield the values of JSON that stand one after the other. Raises JsonError."""
    place, decoder = 0, json.JSONDecoder()
    while text[place:].strip():
        place += len(text[place:]) - len(text[place:].lstrip())
        try:
            _, end = decoder.raw_decode(text, place)
        except ValueError as error:
            line = text.count("\n", 0, getattr(error, "pos", place)) + 1
            raise JsonError(f"not JSON, {getattr(error, 'msg', error)}", line) from None
        yield parse_json(text[place:end])
        place = end


def choose_table(
    path: Path,
    form: Form,
    place: Place = Place(),  # noqa: B008
    judge: Judge = lambda rows, form: FITS,
    encoding: str = "utf-8",
) -> Form:
    """Return ``form`` with the sheet and the header that ``place`` names, or that ``judge`` finds.

    A line says what is found, where it is not the first sheet or row. Raises InputError where none, or
    several of the sheets may be meant, and for formulas without values.
    """
    if place.sheet and form.kind != "sheet":
        say_once(f"{path}: it is no workbook; --sheet {place.sheet} is for others")
    if form.kind in (*JSON_FORMS, "arrow"):
        if place.header_row is not None:
            say_once(f"{path}: its columns have names; --header_row is for sheets and tables of text")
        return form
    if form.kind == "sheet":
        return _choose_sheet(path, form, place, judge)
    if place.header_row == 0:
        return form._replace(has_header=False)
    if place.header_row is None:
        _, first = next(records(path, form, encoding), (0, None))
        if _num_filled(first) != 1:
            return form
    head = list(islice(records(path, form, encoding), SNIFFED + LOOKED_AT))
    found = _choose_row(str(path), form, head, place, judge)
    if place.header_row is None:
        if found.score < SURE or found.form.skipped == form.skipped:
            return form
        say_once(f"{path}: reads from line {found.form.skipped + 1} on")
    elif found.fault:
        raise found.fault
    return found.form


class _Reading(NamedTuple):
    """How a sheet, or a file of text, may be read; ``score``: of its `Judge`; ``fault``: what it raised."""

    form: Form
    score: int
    fault: Optional[InputError]


def _num_filled(row: Any) -> int:
    return sum(map(bool, map(text_of, row))) if isinstance(row, list) else 0


def _choose_row(
    where: str, form: Form, head: List[Record], place: Place, judge: Judge, is_sheet: bool = False
) -> _Reading:
    """Return how ``head``, the first rows, is read: from one that surely is a header, or the first one."""
    sizes = [_num_filled(row) for _, row in head[:SNIFFED]]
    begins = [n for n, size in enumerate(sizes) if size > 1]
    if is_sheet and len(begins) > 2 and sizes[begins[0]] < min(sizes[n] for n in begins[1:]):
        begins.append(begins.pop(0))  # who has made it, and when
    if place.header_row:
        begins = [n for n, (number, _) in enumerate(head) if number == place.header_row]
        if not begins:
            reason = f"row {place.header_row} is blank, or not among the first ones; fix --header_row"
            return _Reading(form, UNFIT, InputError(f"{where}: {reason}"))
    first: Optional[_Reading] = None
    for n in begins or [0]:
        rows, columns = head[n : n + LOOKED_AT], ()  # type: List[Record], Tuple[int, ...]
        if is_sheet:
            columns = _filled_columns(rows)
            rows = [(number, _picked(row, columns)) for number, row in rows]
        has_header = form.has_header if place.header_row is None else place.header_row > 0
        tried = form._replace(skipped=rows[0][0] - 1, columns=columns, has_header=has_header)
        try:
            reading = _Reading(tried, judge(rows, tried), None)
        except InputError as error:
            is_open = "..." not in getattr(error, "flags", {"": "..."}).values()
            reading = _Reading(tried, PARTLY if is_open else UNFIT, error)
        if reading.score == SURE:
            return reading
        first = first or reading
    assert first is not None
    return first


def _filled_columns(rows: Sequence[Record]) -> Tuple[int, ...]:
    """Return the places of the columns of a sheet that hold anything in some of the rows."""
    table = [row for _, row in rows if isinstance(row, list)]
    width = max(map(len, table), default=0)
    return tuple(n for n in range(width) if any(len(row) > n and text_of(row[n]) for row in table))


def _picked(cells: Any, columns: Tuple[int, ...]) -> List[Any]:
    """Return the cells of ``columns``, and behind them what stands in others."""
    picked = [cells[n] if n < len(cells) else None for n in columns]
    if len(cells) <= len(columns) == columns[-1] + 1:  # of nearly all
        return picked
    return picked + [cell for n, cell in enumerate(cells) if n not in columns and text_of(cell)]


def _choose_sheet(path: Path, form: Form, place: Place, judge: Judge) -> Form:
    status = path.stat()
    sheets = _sheets_of(path, status.st_mtime_ns, status.st_size)
    asked = _asked_sheets(path, sheets, place.sheet)
    if not any(sheet.head for sheet in asked):
        return form._replace(sheet=asked[0].name)
    found = {
        sheet.name: _choose_row(
            f"{path}, sheet {sheet.name}",
            form._replace(sheet=sheet.name),
            sheet.head,
            place,
            judge,
            is_sheet=True,
        )
        for sheet in asked
        if sheet.head
    }
    best = min(FITS, max(reading.score for reading in found.values()))
    fitting = [name for name, reading in found.items() if reading.score >= best]
    fitting = [name for name in fitting if best or not found[name].fault] or fitting
    if len(fitting) > 1:
        raise _several_sheets(path, {name: found[name] for name in fitting})
    sheet = next(sheet for sheet in sheets if sheet.name == fitting[0])
    chosen = found[sheet.name]
    _say_sheet(path, sheet, chosen.form, sheets)
    _check_computed(path, sheet)
    if chosen.fault:
        raise chosen.fault
    return chosen.form


def _asked_sheets(path: Path, sheets: Sequence["Sheet"], asked: str) -> List["Sheet"]:
    """Return the sheets that ``asked``, a name or a number from 1, names; '': those that are not hidden."""
    if not asked or len(sheets) == 1:
        shown = [sheet for sheet in sheets if sheet.head and not sheet.is_hidden]
        return shown or list(sheets)
    named = [sheet for sheet in sheets if sheet.name == asked]
    if not named and asked.isdecimal() and 0 < int(asked) <= len(sheets):
        named = [sheets[int(asked) - 1]]
    if not named:
        raise InputError(
            f"{path}: no sheet {asked!r} in {', '.join(one.name for one in sheets)}; fix --sheet"
        )
    return named


def _several_sheets(path: Path, found: Dict[str, _Reading]) -> InputError:
    """Return the error about sheets of which several may be meant, or none can be read."""
    faults = [f"{name}: {one.fault.message}" for name, one in found.items() if one.fault and not one.score]
    if faults:
        told = "; ".join(faults).replace(f"{path}: ", "").replace(f"{path}:", "row ")
        return InputError(f"{path}: none of its sheets is understood, name the one with --sheet: {told}")
    rows = {
        name: sum(1 for _ in _sheet_rows(path, reading.form))
        - (reading.score == SURE or reading.form.has_header is True)
        for name, reading in found.items()
    }
    listed = " and ".join(f"{name} ({counted(count, 'row')})" for name, count in rows.items())
    return OpenError(
        f"{path}: several sheets may be meant, {listed}; name one", *({"sheet": n} for n in found)
    )


def _check_computed(path: Path, sheet: "Sheet") -> None:
    """Raise InputError for formulas without results, as in a file that no office program has saved."""
    cells = sheet.marks.uncomputed
    if cells:
        new = path.with_suffix(".csv")
        raise InputError(
            f"{path}, sheet {sheet.name}: {counted(len(cells), 'formula')} without a stored value "
            f"({', '.join(cells[:5])}{', ...' if len(cells) > 5 else ''}); open the workbook in Excel, WPS "
            f"or LibreOffice and save it, or save the sheet as {new.name}, and pass that: "
            f"{again_with(replaced={str(path): str(new)})}"
        )


def _say_sheet(path: Path, sheet: "Sheet", form: Form, sheets: Sequence["Sheet"]) -> None:
    """Say which sheet is read from which row on, and what in it is not as it looks in a plain table."""
    others = [f"{one.name} (hidden)" if one.is_hidden else one.name for one in sheets if one != sheet]
    parts = [f"{path}: reads sheet {sheet.name}" + f", from row {form.skipped + 1} on" * (form.skipped > 0)]
    parts += [f"not read: {', '.join(others)}"] if others else []
    over = [each for each in sheet.marks.merged if each[0] > form.skipped + 1]
    if over:
        count = sum(last - first for first, last, _, _ in over)
        ranges = ", ".join(each[3] for each in over[:5]) + (", ..." if over[5:] else "")
        parts.append(f"{counted(count, 'cell')} filled with the value merged over them ({ranges})")
    if sheet.marks.computed:
        parts.append(f"{counted(sheet.marks.computed, 'formula')} read as computed when it was saved")
    if sheet.marks.hidden_rows:
        parts.append(f"{counted(sheet.marks.hidden_rows, 'hidden row')} read as well")
    if form.skipped or parts[1:]:
        say_once("; ".join(parts))


@dataclass
class _Marks:
    """What the XML of a sheet says of its cells.

    ``merged``: (first row, last row, column, range) of values merged over rows; ``uncomputed``: the cells
    with a formula but no value, ``computed``: how many have both.
    """

    merged: List[Tuple[int, int, int, str]] = field(default_factory=list)
    uncomputed: List[str] = field(default_factory=list)
    computed: int = 0
    hidden_rows: int = 0

    def add(self, path: Path, match: "re.Match[bytes]") -> None:
        """Note one of _MARKED. Raises InputError for a row beyond all bounds."""
        far, hidden, merged, cell, about, value = match.groups(default=b"")
        if far and int(far) > MAX_ROWS:
            raise InputError(f"{path}: row {int(far)}, above {MAX_ROWS}; save it as .csv")
        self.hidden_rows += bool(hidden)
        is_computed = bool(cell and (value or b't="str"' in about))
        self.uncomputed += [cell.decode()] if cell and not is_computed else []
        self.computed += is_computed
        if merged:
            cells = merged.decode()
            column, first, _, last = import_optional("openpyxl").utils.range_boundaries(cells)
            self.merged += [(first, last, column, cells)] if last > first else []


class Sheet(NamedTuple):
    """A sheet of a workbook; ``head``: its first rows that are not blank."""

    name: str
    is_hidden: bool
    head: List[Record]
    marks: _Marks


@lru_cache(maxsize=8)
def _sheets_of(path: Path, *stamp: int) -> Tuple[Sheet, ...]:
    with _open_book(path) as sheets:
        return tuple(
            Sheet(
                one.title,
                one.sheet_state != "visible",
                list(islice(_filled_rows(path, one, marks), SNIFFED + LOOKED_AT)),
                marks,
            )
            for one, marks in sheets
        )


@contextmanager
def _open_book(path: Path) -> Iterator[List[Tuple[Any, _Marks]]]:
    """Yield the sheets of a workbook, each with its marks. Raises InputError for one that cannot be read."""
    openpyxl, status = import_optional("openpyxl"), path.stat()
    try:
        marks = _scan_book(path, status.st_mtime_ns, status.st_size)
        with open(path, "rb") as file:  # by its name, one called .csv would be refused
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            yield [(one, marks.get(one._worksheet_path.lstrip("/"), _Marks())) for one in book.worksheets]
    except (InputError, MemoryError):
        raise
    except Exception as error:  # whatever a library for damaged XML raises
        hint = " (a control character in a cell?)" if type(error).__name__ == "ParseError" else ""
        raise _damaged(path, f"a workbook of Excel{hint}", error) from None


@lru_cache(maxsize=8)
def _scan_book(path: Path, *stamp: int) -> Dict[str, _Marks]:
    """Return {file of a sheet: its marks}.

    Raises InputError for a workbook with a cell, a row, or shared texts beyond all bounds, of which none is
    held in memory.
    """
    marked: Dict[str, _Marks] = {}
    with zipfile.ZipFile(path) as content:
        for item in content.infolist():
            if item.filename.endswith("sharedStrings.xml"):
                if item.file_size > MAX_STRING_BYTES:
                    raise InputError(f"{path}: its texts are above {MAX_STRING_BYTES} bytes; save it as .csv")
            elif "worksheets/" not in item.filename:
                continue
            rest = b""  # since the last begin of a tag
            found = marked.setdefault(item.filename, _Marks())
            with content.open(item) as source:
                for piece in iter(lambda: source.read(_PIECE), b""):
                    piece = rest + piece
                    ends = [0]
                    for match in _MARKED.finditer(piece):
                        if match.end() > len(piece) - _CUT and source.tell() < item.file_size:
                            break  # it may go on
                        found.add(path, match)
                        ends.append(match.end())
                    rest = piece[max(ends[-1], piece.rfind(b"<", 0, max(0, len(piece) - _BETWEEN))) :]
                    if len(rest) > MAX_CELL_BYTES:
                        raise InputError(
                            f"{path}: a cell above {MAX_CELL_BYTES} bytes; shorten it, or save it as .csv"
                        )
    return marked


def _sheet_rows(path: Path, form: Form) -> Iterator[Record]:
    """Yield the rows of the sheet of ``form`` that are not blank; a number is the text that it shows."""
    with _open_book(path) as sheets:
        sheet, marks = next(each for each in sheets if each[0].title == form.sheet)
        for number, row in _filled_rows(path, sheet, marks):
            if number > form.skipped:
                yield number, _picked(row, form.columns)


def _filled_rows(path: Path, sheet: Any, marks: _Marks) -> Iterator[Record]:
    """Yield the rows that are not blank; a value merged over rows stands in each of them."""
    sheet.reset_dimensions()  # what they say may be wrong, and rows beyond would be lost
    begins: Dict[int, List[Tuple[int, int]]] = {}
    for first, last, column, _ in marks.merged:
        begins.setdefault(first, []).append((column - 1, last))
    held: Dict[int, Tuple[Any, int]] = {}  # column: what is merged, and until which row
    for number, row in enumerate(sheet.iter_rows(), start=1):
        if number > MAX_ROWS:
            raise InputError(f"{path}, sheet {sheet.title}: above {MAX_ROWS} rows; save it as .csv")
        cells: List[Any] = [_shown_cell(cell) for cell in row]
        blank = is_blank(cells)
        held = {column: each for column, each in held.items() if number <= each[1]}
        for column, (value, _) in held.items():
            cells += [None] * (column + 1 - len(cells))
            cells[column] = value if cells[column] is None else cells[column]
        held.update((n, (cells[n], last)) for n, last in begins.get(number, ()) if n < len(cells))
        if not blank:
            yield number, cells


class UnclearNumber(float):
    """A number of a sheet of which it is not known how it is shown; as a text it is an error."""

    def __repr__(self) -> str:
        return f"{self.form} (store it as text)"

    def __str__(self) -> str:
        return str(int(self) if self.is_integer() else float(self))

    form = ""


def _shown_cell(cell: Any) -> object:
    """Return a number as the text that it shows, as far as its format is a plain one; others as they are.

    A day without a time is a date.
    """
    value = cell.value
    if isinstance(value, datetime) and value.time() == time.min:
        return value.date()
    if type(value) not in (int, float):
        return value
    first, *others = _ROOM.sub("", cell.number_format or "").split(";")
    form = others[0].removeprefix("-") if others and value < 0 else first
    plain = _NUMBER_FORMAT.fullmatch(form)
    if abs(value) >= _EXACT or not plain and form not in ("General", "@", "", "G/通用格式"):
        unclear = UnclearNumber(value)
        unclear.form = f"{value:.6g} of {cell.coordinate} as {cell.number_format[:16]}"
        return unclear
    if plain and form != "0":
        comma, whole, places, percent = plain.groups(default="")
        width = len(whole) + len(places) + bool(places) + (value < 0)  # "05d" of Python counts the sign
        filled = "" if comma or percent else f"0{width}"
        return f"{value:{filled}{comma[1:2]}.{len(places)}{percent or 'f'}}"
    return str(int(value)) if isinstance(value, int) or value.is_integer() else str(value)


def _arrow_rows(path: Path) -> Iterator[Record]:
    """Yield the names of the columns, and each row, counted from 1; lists and maps are left as they are."""
    import_optional("pyarrow")
    import pyarrow as pa

    number = 0
    try:
        for batch in _arrow_batches(path):
            table = pa.Table.from_batches([batch])
            while any(pa.types.is_struct(field.type) for field in table.schema):
                table = table.flatten()
            if not number:
                yield 0, list(table.column_names)
            for row in zip(*(_values_of(path, column) for column in table.columns)):
                number += 1
                yield number, list(row)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, "a table of Arrow or Parquet", error) from None


def _values_of(path: Path, column: Any) -> List[Any]:
    """Return a column as values, one string for what a dictionary holds once. Raises InputError if huge."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chunk = column.combine_chunks()
    chunk = chunk.chunk(0) if isinstance(chunk, pa.ChunkedArray) and chunk.num_chunks == 1 else chunk
    is_coded = isinstance(chunk, pa.DictionaryArray)
    used = chunk.indices.unique().drop_null() if is_coded else chunk
    values = chunk.dictionary.take(used) if is_coded else chunk
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if is_text and (pc.max(pc.binary_length(values)).as_py() or 0) > MAX_LINE_BYTES:
        raise InputError(f"{path}: a text above {MAX_LINE_BYTES} bytes; cut it")
    if not is_coded:
        return values.to_pylist()
    known = dict(zip(used.to_pylist(), values.to_pylist()))
    return [known.get(index) for index in chunk.indices.to_pylist()]


def _arrow_batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    if detect_kind(path) == PARQUET:
        schema = parquet.read_schema(path)
        texts = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
        found = parquet.ParquetFile(path, read_dictionary=texts)
        _check_column_sizes(path, found.metadata)
        empty = pa.RecordBatch.from_pylist([], schema=found.schema_arrow)
        batches = found.iter_batches(batch_size=_ROWS_AT_ONCE)
        yield from chain(batches, () if found.metadata.num_rows else (empty,))
        return
    with pa.memory_map(str(path)) as source:
        try:
            file = pa.ipc.open_file(source)
            batches = map(file.get_batch, range(file.num_record_batches))
        except pa.ArrowInvalid:  # a stream, as the datasets of Hugging Face are kept
            source.seek(0)
            batches = iter(pa.ipc.open_stream(source))
        for batch in batches:
            parts = range(0, max(1, batch.num_rows), _ROWS_AT_ONCE)
            yield from (batch.slice(begin, _ROWS_AT_ONCE) for begin in parts)


def _check_column_sizes(path: Path, about: Any) -> None:
    """Raise InputError for a column that unpacks to more than any text does: a text of 300 MB in 10 KB."""
    for group in map(about.row_group, range(about.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            size, packed = column.total_uncompressed_size, column.total_compressed_size
            if size > max(MAX_LINE_BYTES, 200 * packed):
                raise InputError(
                    f"{path}: column {column.path_in_schema} unpacks from {packed} to {size} bytes, which no "
                    "texts do; cut what repeats in it, or save it as .csv"
                )


def _damaged(path: Path, what: str, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:100]
    return InputError(f"{path} cannot be read as {what} ({reason}); save it again, or as .csv")
