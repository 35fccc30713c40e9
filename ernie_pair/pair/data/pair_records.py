"""The records of a file of pairs: a line of a .tsv or of JSON, a row of a .csv; each with its line number.

A line ends at \\n or \\r\\n and nowhere else, a first byte-order mark is skipped. In a .tsv quotes are plain
text. A .csv is what RFC 4180, pandas and Excel call so: a cell in quotes may hold commas, line ends and
quotes, which are doubled; its row is named by the line that it begins in.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, List, NamedTuple, Tuple, Union

from data_tools.base.errors import InputError
from data_tools.files.json_file import JsonError, kind_of, parse_json
from data_tools.text.lines import LONGEST_LINE, LineRules, decoded
from data_tools.text.text_files import read_lines

ENCODING_HELP = (
    "encoding of tables and JSON lines: utf-8 (a byte-order mark is accepted), gb18030, gbk or big5"
)
PAIR_HELP = "two texts whose prediction is printed, instead of --input_file and --output_file"
BAD_ROW_HELP = "a row that is not a pair: stop with an error, or skip it, count it and write it to a file"


@dataclass(frozen=True)
class RowRules:
    """The ``encoding`` of a file; ``skips``: a bad row is left out, otherwise it ends the command."""

    encoding: str = "utf-8"
    skips: bool = False

    @classmethod
    def of(cls, config) -> "RowRules":
        """Return the rules that --encoding and --on_bad_row give."""
        return cls(config.encoding, config.on_bad_row == "skip")


class BadRecord(NamedTuple):
    """A record that cannot be read; ``reason`` says what is wrong, where, and how to fix it."""

    reason: str


# Its line, and what stands there.
CellsRecord = Tuple[int, Union[List[str], BadRecord]]
JsonRecord = Tuple[int, Union[dict, BadRecord]]


def tab_records(path: Path, rules: RowRules) -> Iterator[CellsRecord]:
    """Yield (line number, cells) of each line of a .tsv, split at tabs; an unreadable line is a BadRecord."""
    for number, text in _numbered(_Lines(path, rules)):
        yield number, text if isinstance(text, BadRecord) else text.split("\t")


def json_records(path: Path, rules: RowRules) -> Iterator[JsonRecord]:
    """Yield (line number, object) of each line of JSON lines; an unreadable line is a BadRecord."""
    for number, text in _numbered(_Lines(path, rules)):
        if isinstance(text, BadRecord):
            yield number, text
            continue
        try:
            yield number, _json_object(f"{path}:{number}", text)
        except InputError as error:
            yield number, BadRecord(error.message)


def csv_records(path: Path, rules: RowRules) -> Iterator[CellsRecord]:
    """Yield (line number, cells) of each row of a .csv (RFC 4180); cells are a BadRecord when unreadable.

    A row has the number of the line that it begins in. Line ends in a cell become \\n. Raises InputError for
    a quote without an end.
    """
    lines = _Lines(path, rules, keeps_cr=True, end="\n")
    csv.field_size_limit(max(LONGEST_LINE, csv.field_size_limit()))
    reader = csv.reader(lines, strict=True)
    while True:
        number = lines.number + 1
        try:
            yield number, next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, BadRecord(_bad_csv(f"{path}:{number}", str(error)))
        except InputError as error:
            yield number, BadRecord(error.message)


class _Lines:
    """An iterator over the lines of a file as text; after an InputError it continues with the next line."""

    def __init__(self, path: Path, rules: RowRules, keeps_cr: bool = False, end: str = ""):
        self.path, self.end, self.number = path, end, 0
        self._rules = LineRules(encoding=rules.encoding, has_flag=True, keeps_cr=keeps_cr)
        if rules.encoding != "utf-8":
            _refuse_mark(path, rules.encoding)
        self._raw = read_lines(path)

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        raw = next(self._raw)
        self.number += 1
        where = f"{self.path}:{self.number}"
        if len(raw) > LONGEST_LINE:
            raise InputError(f"{where}: the line is above {LONGEST_LINE} bytes; cut it")
        text = decoded(str(self.path), self.number, raw, self._rules)
        if not text.strip() and not self.end:
            raise InputError(_blank(where))
        return text + self.end


def _refuse_mark(path: Path, encoding: str) -> None:
    with open(path, "rb") as content:
        if content.read(3) == b"\xef\xbb\xbf":
            raise InputError(f"{path} has the byte-order mark of UTF-8, not {encoding}; leave --encoding out")


def _numbered(lines: _Lines) -> Iterator[Tuple[int, Union[str, BadRecord]]]:
    while True:
        try:
            text = next(lines)
        except StopIteration:
            return
        except InputError as error:
            yield lines.number, BadRecord(error.message)
        else:
            yield lines.number, text


def _blank(where: str) -> str:
    return f"{where}: the line is blank; remove it, so that rows and lines agree"


def _bad_csv(where: str, reason: str) -> str:
    """Return what is wrong with a row of a .csv. Raises InputError when the row after it cannot be found."""
    if "unexpected end of data" in reason or "field limit" in reason:
        raise InputError(
            f"{where}: a cell that begins with a quote in this row has no quote at its end; close it, and "
            "double the quotes within"
        )
    if "new-line" in reason:
        return f"{where}: CR outside of quotes; save the file with LF or CRLF line ends"
    return f"{where}: text behind the closing quote of a cell; double the quotes within a cell in quotes"


def _json_object(where: str, text: str) -> dict:
    is_first = where.endswith(":1")
    try:
        found = parse_json(text)
    except JsonError as error:
        if is_first and text.lstrip().startswith("["):
            raise _array(where) from None
        raise InputError(f"{where}: {error}; write an object per line") from None
    if isinstance(found, list) and is_first:
        raise _array(where)
    if not isinstance(found, dict):
        raise InputError(f"{where}: {kind_of(found)} instead of an object; write {{...}} on each line")
    return found


def _array(where: str) -> InputError:
    return InputError(f"{where}: an array instead of an object; write an object per line (jq -c '.[]' does)")
