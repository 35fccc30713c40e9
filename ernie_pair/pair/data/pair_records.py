"""The columns of the two texts and the label.

A header, or the keys of the first JSON line, may call them as the known sets do, in any order:

    text_a text_b label    query title label    sentence1 sentence2 label
    id qid1 qid2 question1 question2 is_duplicate                                            (QQP)
    Quality #1_ID #2_ID #1_String #2_String              (MRPC, with spaces for the underscores)
    文本1 文本2 标签    句子一 句子二 标签    问题A 问题B 标签

--text_a, --text_b and --label name columns that are called otherwise. Without a header the order is
text, text, label.
"""

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Iterator, Literal, NamedTuple, Optional, Sequence, Union

from data_tools.files.errors import InputError, counted
from data_tools.files.json_file import JsonError, kind_of, parse_json, shown
from data_tools.options.options import Options, data_option
from data_tools.text.text_files import ENCODINGS, LONGEST_LINE, LineRules, decoded, read_lines

LEFT, RIGHT, LABEL = ROLES = ("sentence1", "sentence2", "label")
FLAG_OF = {LEFT: "--text_a", RIGHT: "--text_b", LABEL: "--label"}
TEXTS = ("文本", "句子", "问题", "问句", "语句")  # with a number or letter behind
NAMES = {
    LEFT: (LEFT, "text_a", "query", "question1", "#1 string", "premise", "sentence_a", "text1", "s1", "q1")
    + tuple(text + number for text in TEXTS for number in "1一a"),
    RIGHT: (RIGHT, "text_b", "title", "question2", "#2 string", "hypothesis", "sentence_b", "text2", "s2")
    + ("q2", *(text + number for text in TEXTS for number in "2二b")),
    LABEL: (LABEL, "labels", "quality", "is_duplicate", "gold_label", "标签", "类别"),
}
# A first line of nothing but these is a header, though not which text is meant.
ALSO_NAMES = {"question", "answer", "text", "sentence", "query", "title", "答案", "标题", "查询", *TEXTS}
FIRST_TEXT_HELP = "the column of the first text; empty: a known name, or the first column"
SECOND_TEXT_HELP = "the column of the second text"
PASSED_OVER = ("id", "index", "idx", "#1 id", "#2 id", "qid", "qid1", "qid2", "pairid", "origin")


@dataclass(frozen=True)
class Columns:
    """The column names that flags give; an empty one is left to the known names."""

    text_a: str = ""
    text_b: str = ""
    label: str = ""
    query: str = ""  # what rows of one query share; empty: their first text

    @property
    def by_role(self) -> dict[str, str]:
        """Return {role: the name given by a flag} for ROLES; the name is empty where no flag was given."""
        return dict(zip(ROLES, (self.text_a, self.text_b, self.label)))


class Layout(NamedTuple):
    """The places of the texts, the label and the query in a line of ``width`` columns."""

    left: int
    right: int
    label: Optional[int]
    width: int
    has_header: bool
    query: Optional[int] = None


def layout_of(where: str, first: list[str], columns: Columns, needs_label: bool = True) -> Layout:
    """Return the layout of a table, judged by the cells of its first line.

    Without ``needs_label`` the column that --label names may be absent. Raises InputError for a header that
    is not understood, and for other than 2 or 3 columns without a header.
    """
    cells = [cell.strip() for cell in first]
    if not needs_label and columns.label not in cells:
        columns = replace(columns, label="")
    places = _places(where, cells, columns, must_be_there=True)
    if LEFT in places and RIGHT in places:
        query = None
        if columns.query:
            if columns.query not in cells:
                raise InputError(f"{where}: no column {columns.query!r} in {', '.join(cells)}; fix --query")
            query = cells.index(columns.query)
        known = {*places.values(), query}
        others = {cell.lower() for place, cell in enumerate(cells) if place not in known}
        if others.issubset(PASSED_OVER) or (columns.text_a and columns.text_b):
            return Layout(places[LEFT], places[RIGHT], places.get(LABEL), len(cells), True, query)
    elif not (any(columns.by_role.values()) or columns.query or _is_header(cells)):
        if len(cells) in (2, 3):
            return Layout(0, 1, 2 if len(cells) == 3 else None, len(cells), False)
        how = "separate them by tabs, or name a file of JSON lines .jsonl, one with commas .csv"
        if len(cells) > 1:
            line = shown(", ".join(cells))
            how = f"if the line is a header, name its columns with --text_a, --text_b and --label: {line}"
        raise InputError(
            f"{where}: {counted(len(cells), 'column')} instead of 3 (text, text, label) or 2 (text, text); "
            + how
        )
    names = cells if len(cells) in (2, 3) else ["..."] * 3
    flags = " ".join(f"{FLAG_OF[role]} {cell or '...'}" for role, cell in zip(ROLES, names))
    raise InputError(
        f"{where}: the header {', '.join(cells)} is not understood; write text_a, text_b, label, or name "
        f"its columns: {flags}"
    )


def keys_of(where: str, first: Sequence[str], columns: Columns) -> tuple[str, str, str]:
    """Return the keys of the two texts and the label in JSON lines, judged by the keys of the first line.

    Raises InputError when two keys may name the same role.
    """
    places = _places(where, list(first), columns, must_be_there=False)
    left, right, label = (
        columns.by_role[role] or (first[places[role]] if role in places else role) for role in ROLES
    )
    return left, right, label


def _places(where: str, cells: list[str], columns: Columns, must_be_there: bool) -> dict[str, int]:
    places = {}
    for role, named in columns.by_role.items():
        found = [
            i for i, cell in enumerate(cells) if (cell == named if named else cell.lower() in NAMES[role])
        ]
        if len(found) > 1:
            both = ", ".join(cells[place] for place in found)
            raise InputError(f"{where}: both columns {both} may be {role}; name one with {FLAG_OF[role]}")
        if named and must_be_there and not found:
            raise InputError(f"{where}: no column {named!r} in {', '.join(cells)}; fix {FLAG_OF[role]}")
        if found:
            places[role] = found[0]
    return places


def _is_header(cells: list[str]) -> bool:
    """Return whether no row of texts, or of two texts and a label, has these cells."""
    lower = [cell.lower() for cell in cells]
    names_a_label = len(cells) == 3 and lower[2] in NAMES[LABEL]
    # `query` may be a text, `text_a` hardly.
    is_a_name = (not cell.isalpha() and any(cell in names for names in NAMES.values()) for cell in lower)
    return names_a_label or any(is_a_name) or ALSO_NAMES.issuperset(lower)


ENCODING_HELP = (
    "encoding of tables and JSON lines: utf-8 (a byte-order mark is accepted), gb18030, gbk or big5"
)
PAIR_HELP = "two texts whose prediction is printed, instead of --input_file and --output_file"
BAD_ROW_HELP = "a row that is not a pair: stop with an error, or skip it, count it and write it to a file"


@dataclass(frozen=True)
class RowFlags(Options):
    """How the rows of a file of pairs are read."""

    text_a: str = data_option("", help=FIRST_TEXT_HELP, resume="same")
    text_b: str = data_option("", help=SECOND_TEXT_HELP, resume="same")
    label: str = data_option("", help="the column of the label", resume="same")
    encoding: str = data_option("utf-8", help=ENCODING_HELP, choices=ENCODINGS, resume="same")
    on_bad_row: Literal["stop", "skip"] = data_option("stop", help=BAD_ROW_HELP)


@dataclass(frozen=True)
class RowRules:
    """The ``encoding`` of a file; ``skips``: a bad row is left out, otherwise it ends the command."""

    encoding: str = "utf-8"
    skips: bool = False

    @classmethod
    def of(cls, config) -> "RowRules":
        """Return the rules that --encoding and --on_bad_row give."""
        return cls(config.encoding, config.on_bad_row == "skip")


# Its line, and what stands there, or what is wrong with it, where, and how to fix it.
CellsRecord = tuple[int, Union[list[str], InputError]]
JsonRecord = tuple[int, Union[dict, InputError]]


def tab_records(path: Path, rules: RowRules) -> Iterator[CellsRecord]:
    """Yield (line number, cells) of each line of a .tsv, split at tabs; an InputError where unreadable."""
    for number, text in _numbered(_Lines(path, rules)):
        yield number, text if isinstance(text, InputError) else text.split("\t")


def json_records(path: Path, rules: RowRules) -> Iterator[JsonRecord]:
    """Yield (line number, object) of each line of JSON lines; an InputError for an unreadable one."""
    for number, text in _numbered(_Lines(path, rules)):
        try:
            yield number, text if isinstance(text, InputError) else _json_object(f"{path}:{number}", text)
        except InputError as error:
            yield number, error


def csv_records(path: Path, rules: RowRules) -> Iterator[CellsRecord]:
    """Yield (line number, cells) of each row of a .csv (RFC 4180); an InputError for an unreadable one.

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
            yield number, _bad_csv(f"{path}:{number}", str(error))
        except InputError as error:
            yield number, error


class _Lines:
    """An iterator over the lines of a file as text; after an InputError it continues with the next line."""

    def __init__(self, path: Path, rules: RowRules, keeps_cr: bool = False, end: str = ""):
        self.path, self.end, self.number = path, end, 0
        self._rules = LineRules(encoding=rules.encoding, has_flag=True, keeps_cr=keeps_cr)
        if rules.encoding != "utf-8":
            with open(path, "rb") as content:
                mark = content.read(3)
            if mark == b"\xef\xbb\xbf":
                raise InputError(
                    f"{path} has the byte-order mark of UTF-8, not {rules.encoding}; leave --encoding out"
                )
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
            raise blank_line(where)
        return text + self.end


def blank_line(where: str) -> InputError:
    """Return the error about a line without a text."""
    return InputError(f"{where}: the line is blank; remove it, so that rows and lines agree")


def _numbered(lines: _Lines) -> Iterator[tuple[int, Union[str, InputError]]]:
    while True:
        text: Union[str, InputError]
        try:
            text = next(lines)
        except StopIteration:
            return
        except InputError as error:
            text = error
        yield lines.number, text


def _bad_csv(where: str, reason: str) -> InputError:
    """Return what is wrong with a row of a .csv. Raises InputError when the row after it cannot be found."""
    if "unexpected end of data" in reason or "field limit" in reason:
        raise InputError(
            f"{where}: a cell that begins with a quote in this row has no quote at its end; close it, and "
            "double the quotes within"
        )
    if "new-line" in reason:
        return InputError(f"{where}: CR outside of quotes; save the file with LF or CRLF line ends")
    return InputError(
        f"{where}: text behind the closing quote of a cell; double the quotes within a cell in quotes"
    )


def _json_object(where: str, text: str) -> dict:
    is_first, is_array = where.endswith(":1"), text.lstrip().startswith("[")
    array = f"{where}: an array instead of an object; write an object per line (jq -c '.[]' does)"
    try:
        found = parse_json(text)
    except JsonError as error:
        raise InputError(
            array if is_first and is_array else f"{where}: {error}; write an object per line"
        ) from None
    if isinstance(found, dict):
        return found
    if isinstance(found, list) and is_first:
        raise InputError(array)
    raise InputError(f"{where}: {kind_of(found)} instead of an object; write {{...}} on each line")
