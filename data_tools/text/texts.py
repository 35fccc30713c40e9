"""The texts of any file: documents of a corpus (`line_batches`), and texts with their ids (`read_texts`).

plain text (.txt)        a text on every line, whose id is its number from 0
.tsv of two columns      id TAB text; a first line that reads id TAB text is a header
any other table          the one column that holds texts, or the one that is named, and the column of ids
JSON                     {"id": "a1", "text": "..."}; without ids, they are numbers from 0

A column is named by its header, or by its number from 1 where there is none. What is read of a table is said.
"""

import json
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from data_tools.text.columns import (
    FIRST_NAMES,
    ID_NAMES,
    LOOKED_AT,
    are_ids,
    holds_texts,
    is_header,
    plain_name,
    say_no_header,
    split_columns,
    text_of,
)
from data_tools.text.tables import (
    JSON_FORMS,
    PARTLY,
    SHEET_ERRORS,
    SURE,
    UNFIT,
    UNREAD,
    BlankLine,
    Form,
    Record,
    SheetFlags,
    choose_table,
    detect_form,
    looks_like_table,
    records,
)
from data_tools.text.text_files import (
    DOCUMENTS,
    RAW,
    STRICT,
    LineRules,
    decoded,
    plain_suffix,
    read_lines,
    say_once,
)
from ernie_pair.core.cli.options import data_option
from ernie_pair.core.errors import InputError, OpenError, counted
from ernie_pair.core.files.json_file import is_utf8, shown

BEIR_ID = "_id"  # the key of the ids in its queries.jsonl and corpus.jsonl
LINES = "lines"  # the form of plain text
INPUT_HELP = (
    "a text per line (.txt), id TAB text (.tsv), id and text (.jsonl, .json), or a table (.csv, .xlsx, "
    ".parquet); also packed"
)
TEXT_COLUMN_HELP = "the column or key of the texts; its number where a table has no header; empty: found"
READ_AS = ("column", "sheet", "header_row")
_BATCH = 1 << 18


class LineBatch(NamedTuple):
    """Consecutive lines of one file, without their ends, the first of them number ``first``, from 1."""

    path: str
    first: int
    lines: List[bytes]
    is_json: bool

    def numbered(self) -> Iterator:
        """Yield (number of the line in its file, line)."""
        return enumerate(self.lines, start=self.first)


class TextColumns(NamedTuple):
    """The columns, or keys, that hold the texts and their ids; '': they are found.

    ``payload``: those that ride along with a text, such as the answer to a question.
    ``may_lack_ids``: a text without an id has its number. ``only_ids``: ids, where there are, are the texts.
    """

    text: str = ""
    id: str = ""
    payload: Tuple[str, ...] = ()
    may_lack_ids: bool = False
    only_ids: bool = False

    @property
    def named(self) -> List[str]:
        """Return the names of all that are given."""
        return [name for name in (self.text, self.id, *self.payload) if name]


@dataclass(frozen=True, kw_only=True)
class TextFlags(SheetFlags):
    """The columns of a file of texts."""

    text_column: str = data_option("", help=TEXT_COLUMN_HELP)
    id_column: str = data_option(
        "", help="the column or key of the ids of the texts; empty: id, or the numbers of the texts from 0"
    )

    @property
    def text_columns(self) -> TextColumns:
        """Return the columns of the texts and their ids."""
        return TextColumns(self.text_column, self.id_column)

    @property
    def read_as(self) -> Dict[str, object]:
        """Return those of READ_AS that are given, as a file of vectors has them."""
        values = (self.text_column, self.sheet, self.header_row)
        return {name: value for name, value in zip(READ_AS, values) if value not in ("", None)}


def columns_in(text: str) -> Tuple[str, ...]:
    """Return the names in the text of --payload_columns, separated by commas, each once."""
    return tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


class NamedText(NamedTuple):
    """A text and its name, and what rides along, without what is empty."""

    id: str
    text: str
    line: int  # of its file, from 1; of a sheet or an array, that of the row
    payload: Dict[str, str] = {}
    has_id: bool = True  # of its own, and not that of its number


class LeftOut:
    """Lines without a text: how many, and the reason for the first."""

    def __init__(self):
        self.count, self.first = 0, ""

    def add(self, reason: str, line: int) -> None:
        """Count a line, whose number is ``line``."""
        self.count += 1
        self.first = self.first or reason


def is_text_file(name: str) -> bool:
    """Return whether ``name`` is that of a file of plain texts, not of pairs."""
    return plain_suffix(Path(name)) in RAW


class _Layout(NamedTuple):
    """Where text, id and {name: payload} of a row are: places of columns, or keys.

    ``has_header``: the first row is one.
    """

    text: Any
    id: Any
    width: int = 0
    has_header: bool = False
    payload: Dict[str, Any] = {}
    said: Tuple[str, ...] = ()
    is_sure: bool = False


def form_of_texts(path: Path, rules: LineRules = STRICT, columns: TextColumns = TextColumns()) -> Form:  # noqa: B008
    """Return how the texts of a file are written: a `choose_table`, or LINES. Raises InputError."""
    form = detect_form(path, rules.encoding)
    is_table = form.kind not in ("tab", "csv") or columns.text or plain_suffix(path) in (*DOCUMENTS, *UNREAD)
    if rules.text_column and not is_table:
        is_table = plain_suffix(path) not in RAW or _has_column(path, form, rules)
    if is_table:
        columns = columns if columns.text else columns._replace(text=rules.text_column)
        return choose_table(path, form, rules.place, partial(_judge, path, columns), rules.encoding)
    if rules.place.header_row is not None:
        say_once(f"{path}: raw text is read whole: --header_row is for tables")
    if not rules.text_column and looks_like_table(path, form, rules.encoding):
        name = path.with_suffix(".tsv" if form.mark == "\t" else ".csv").name
        say_once(f"{path}: read as a text per line; if it is a table, call it {name}")
    return Form(LINES, "", form.encoding)


def _has_column(path: Path, form: Form, rules: LineRules) -> bool:
    """Return whether the first row of a file has the column of ``rules``, by its name or its number."""
    _, row = next(records(path, form, rules.encoding), (0, None))
    cells, column = row if isinstance(row, list) else [], rules.text_column
    if column in cells or column.isdecimal() and int(column) <= len(cells):
        return True
    say_once(f"raw text is read whole: --text_column {column} is for tables")
    return False


# Documents of a corpus


def holds_documents(path: Path, rules: LineRules = STRICT) -> bool:
    """Return whether the rows of a file are documents: JSON or a table, not raw text."""
    return form_of_texts(path, rules).kind != LINES


def document_lines(
    path: Path, rules: LineRules = STRICT, advance: Callable[[int], None] = lambda count: None
) -> Iterator[bytes]:
    """Yield the lines of a text, or of a table or an array a line of JSON per row: line n is row n.

    Raises InputError as `read_lines` and `records` do, and for a table whose texts are not found.
    """
    form = form_of_texts(path, rules)
    if form.kind in (LINES, "json"):
        yield from read_lines(path, advance, rules.max_bytes)
        return
    layout, rows = _opened(path, form, rules, TextColumns(rules.text_column))
    key, last = rules.json_key, 0
    for number, row in rows:
        if isinstance(row, InputError) and not isinstance(row, BlankLine):
            raise row
        for _ in range(number - last - 1):
            yield b""
        last = max(number, last + 1)
        if isinstance(row, dict):
            found = {name: value if name == key else None for name, value in row.items()}
        else:
            found = {key: None if isinstance(row, InputError) else _cells(path, number, row, layout)[1]}
        is_empty = key in found and (found[key] is None or found[key] == "")
        yield (
            b""
            if is_empty
            else json.dumps(found, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass")
        )
    advance(path.stat().st_size)


def line_batches(
    paths: Iterable[Path],
    advance: Callable[[int], None] = lambda count: None,
    batch_bytes: int = _BATCH,
    rules: LineRules = STRICT,
) -> Iterator[LineBatch]:
    """Yield the lines of each file in batches of ``batch_bytes`` or a line more, the last one shorter.

    ``advance`` is called with the bytes read from the disk. Raises InputError as `document_lines` does.
    """
    for path in paths:
        lines: List[bytes] = []
        first, size, is_json = 1, 0, holds_documents(path, rules)
        for line in document_lines(path, rules, advance):
            lines.append(line)
            size += len(line)
            if size >= batch_bytes:
                yield LineBatch(str(path), first, lines, is_json)
                first, lines, size = first + len(lines), [], 0
        if lines:
            yield LineBatch(str(path), first, lines, is_json)


# Texts with their ids


def has_ids(path: Path, rules: LineRules = STRICT, columns: TextColumns = TextColumns()) -> bool:  # noqa: B008
    """Return whether a file names its texts; otherwise their numbers do. Raises InputError."""
    form = form_of_texts(path, rules, columns)
    if form.kind == LINES:
        return False
    layout, rows = _opened(path, form, rules, columns)
    if form.kind in JSON_FORMS:
        return any(isinstance(row, dict) and layout.id in row for _, row in islice(rows, LOOKED_AT))
    return layout.id is not None


def read_texts(
    path: Path,
    left_out: Optional[LeftOut] = None,
    advance: Callable[[int], None] = lambda count: None,
    cure: str = "fix the line",
    rules: LineRules = STRICT,
    columns: TextColumns = TextColumns(),  # noqa: B008
) -> Iterator[NamedText]:
    """Yield the texts of a file; bad lines are counted by ``left_out``, if it is given.

    ``advance`` is called with the bytes read; ``cure`` ends the message about a bad line;
    ``rules``: the encoding of the lines. Raises InputError with file:line for a bad line otherwise, and for a
    file that cannot be read, or does not tell which column holds the texts.
    """
    if not path.is_file():
        raise InputError(f"{path} is not a file; give one with a text on every line")
    form = form_of_texts(path, rules, columns)
    if form.encoding not in ("", rules.encoding):
        say_once(f"{path}: read as {form.encoding.upper()}, as its bytes say")
    if form.kind == LINES:
        layout, rows = _Layout(0, None, 1), _plain_lines(path, rules, advance)
    else:
        layout, rows = _opened(path, form, rules, columns)
    first: Optional[Tuple[int, bool]] = None  # the line of the first text, and whether it has an id
    for count, (number, row) in enumerate(rows):
        try:
            name, text = _named(*_cells(path, number, row, layout), layout.text, columns.may_lack_ids)
            more = _payload_of(row, layout)
            first = first or (number, name is not None)
            if first[1] != (name is not None) and not columns.may_lack_ids:
                has, lacks = ("no", "one") if first[1] else ("an", "none")
                raise ValueError(f"{has} id, and line {first[0]} has {lacks}; give every text an id, or none")
        except ValueError as error:
            reason = error.message if isinstance(error, InputError) else f"{path}:{number}: {error}; {cure}"
            if left_out is None:
                raise InputError(reason) from None
            left_out.add(reason, number)
            continue
        yield NamedText(str(count) if name is None else name, text, number, more, name is not None)


def _plain_lines(path: Path, rules: LineRules, advance: Callable[[int], None]) -> Iterator[Tuple[int, Any]]:
    """Yield the number of each line, and a row of its text, or what is wrong with it."""
    for number, line in enumerate(read_lines(path, advance, encoding=rules.encoding), start=1):
        try:
            yield number, [decoded(str(path), number, line, rules)]
        except InputError as error:
            yield number, error


def _named(name: object, text: object, called: object, may_lack: bool) -> Tuple[Optional[str], str]:
    """Return the id, None without one, and the text. Raises ValueError with what is wrong with them."""
    if not isinstance(text, (str, type(None))) and not isinstance(called, str):
        raise ValueError(f"{shown(text)}, not a text")
    if not isinstance(text, str):
        raise ValueError(f'no "{called}" that is a string' if isinstance(called, str) else "an empty text")
    if not text.strip():
        raise ValueError("an empty text")
    if text in SHEET_ERRORS:
        raise ValueError(f"{text}, an error of a spreadsheet, and no text")
    if isinstance(name, bool) or not isinstance(name, (str, int, type(None))):
        raise ValueError('an "id" that is neither a string nor a whole number')
    if not (may_lack or name is None or str(name).strip()):
        raise ValueError("an empty id")
    if not is_utf8([name, text]):
        raise ValueError("half of a character")
    return None if name is None or not str(name).strip() else str(name), text


def _payload_of(row: Any, layout: _Layout) -> Dict[str, str]:
    """Return {name: text} of what rides along in a row. Raises ValueError for what is no text."""
    cells = {
        name: row.get(key) if isinstance(row, dict) else row[key] for name, key in layout.payload.items()
    }
    for name, cell in cells.items():
        if isinstance(cell, (list, dict)) or not is_utf8([str(cell)]) or cell in SHEET_ERRORS:
            raise ValueError(f'{shown(cell)} for "{name}", not a text')
    return {name: text_of(cell) for name, cell in cells.items() if text_of(cell)}


def hash_texts(texts: Iterable[str]) -> np.ndarray:
    """Hash n texts to 64 bits each: uint64 [n], by BLAKE2b.

    The probability that any two of n different texts collide is about n * n / 2**65.
    """
    digests = b"".join(blake2b(text.encode("utf-8"), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8")


def check_unique_ids(path: Path, ids: Iterator[str], lines: np.ndarray) -> None:
    """Raise InputError if two texts have the same id. ``lines`` int64 [N]: their lines in ``path``.

    The line of a text that an index holds already is 0. It holds eight bytes per id.
    """
    digests = hash_texts(ids)
    order = np.argsort(digests, kind="stable")
    equal = np.flatnonzero(digests[order[1:]] == digests[order[:-1]])
    if len(equal):
        place = int(np.argmin(order[equal + 1]))
        first, second = (int(lines[order[equal[place] + step]]) for step in (0, 1))
        other = f"line {first}" if first else "a text in the index"
        raise InputError(f"{path}:{second}: repeats the id of {other}; give every text an id of its own")


# Columns


def _opened(
    path: Path, form: Form, rules: LineRules, columns: TextColumns
) -> Tuple[_Layout, Iterator[Tuple[int, Any]]]:
    """Return where the texts of a table or of JSON are, and its rows. Raises InputError if unclear."""
    found = records(path, form, rules.encoding)
    first = list(islice(found, LOOKED_AT))
    rows = chain(first, found)
    if form.kind in JSON_FORMS:
        objects = [row for _, row in first if isinstance(row, dict)]
        layout = _find_keys(path, objects, columns)
    else:
        layout = _layout_of(path, form, first, columns)
    for line in layout.said:
        say_once(f"{path}: {line}")
    if layout.has_header:
        next(rows)
    return layout, rows


def _judge(path: Path, columns: TextColumns, rows: List[Record], form: Form) -> int:
    """Return how surely rows are a table of texts, as `choose_table` asks. Raises InputError if unclear."""
    layout = _layout_of(path, form, rows, columns)
    return SURE if layout.is_sure else PARTLY if layout.width > 1 else UNFIT


def _layout_of(path: Path, form: Form, first: List[Record], columns: TextColumns) -> _Layout:
    table = [row for _, row in first if isinstance(row, list)]
    if not table:
        return _Layout(0, None)
    widths = [len(row) for row in table]
    width = max(dict.fromkeys(widths), key=widths.count)
    return _find_columns(path, [row for row in table if len(row) == width], columns, form.has_header)


def _find_keys(path: Path, objects: Sequence[Dict[str, Any]], columns: TextColumns) -> _Layout:
    """Return the keys of the text and the id: those named, or text and id, or the one that holds texts."""
    names = list(dict.fromkeys(chain(*objects)))
    of_beir = BEIR_ID in names and "id" not in names
    text, name = columns.text or "text", columns.id or (BEIR_ID if of_beir else "id")
    _check_named(path, names, {"payload_columns": columns.payload})
    if columns.only_ids and name in names:
        text = name
    elif not columns.text and "text" not in names and names:
        rows = [[row.get(key) for key in names] for row in objects]
        text = names[_text_place(path, names, rows, columns)]
    is_plain = text == "text" and not {*names} - {text, name}
    of_ids = name if name in names else ""
    said = () if is_plain else (_describe_columns(names, text, of_ids, columns.payload),)
    return _Layout(text, name, payload={one: one for one in columns.payload}, said=said)


def _find_columns(
    path: Path, table: List[List[Any]], columns: TextColumns, has_header: Optional[bool]
) -> _Layout:
    """Return the places of the text and the id in a table of rows of one width. Raises InputError."""
    cells, rows = list(map(text_of, table[0])), table[1:]
    named = [name for name in columns.named if name in cells and not name.isdecimal()]
    if has_header is None:
        has_header = True if named else is_header(cells, rows)
    rows = rows if has_header else table
    names = cells if has_header else [str(place + 1) for place in range(len(cells))]
    given = {"text_column": [columns.text], "id_column": [columns.id], "payload_columns": columns.payload}
    _check_named(path, names, given)
    ids = [place for place, name in enumerate(names) if plain_name(name) in ID_NAMES]
    id_place = names.index(columns.id) if columns.id else ids[0] if ids else None
    is_free = id_place is None and not any(columns[:4]) and len(cells) == 2
    if is_free and _begins_with_ids(rows, bool(has_header)):
        id_place, place = 0, 0 if columns.only_ids else 1
    elif columns.only_ids and id_place is not None:
        place = id_place
    else:
        place = _text_place(path, names, rows, columns, id_place)
    called = names if has_header else [f"column {name}" for name in names]
    said = []
    if has_header is None and not columns.text.isdecimal():  # a number says that there is none
        flags = {"text_column": cells[place], "id_column": "" if id_place is None else cells[id_place]}
        said.append(say_no_header("a text", cells, flags))
    if len(names) > 1 or has_header:
        of_ids = "" if id_place is None else called[id_place]
        payload = [called[names.index(name)] for name in columns.payload]
        said.append(_describe_columns(called, called[place], of_ids, payload))
    places = {name: names.index(name) for name in columns.payload}
    is_known = columns.only_ids and place == id_place or plain_name(cells[place]) in FIRST_NAMES
    is_sure = bool(has_header) and (bool(named) or is_known)
    return _Layout(place, id_place, len(cells), bool(has_header), places, tuple(said), is_sure)


def _check_named(path: Path, names: List[str], given: Mapping[str, Sequence[str]]) -> None:
    """Raise InputError for a column that a flag names and a table has not."""
    for flag, wanted in given.items():
        for name in wanted:
            if name and name not in names:
                raise InputError(f"{path}: no column {name!r} in {', '.join(names)}; fix --{flag}")


def _begins_with_ids(rows: List[List[Any]], has_header: bool) -> bool:
    """Return whether rows of two cells are an id and a text, and not a text and a number of it.

    Below a header an id is in each row and in no other one; otherwise a row without one is a bad row.
    """
    ids, texts = split_columns(rows, 2)
    is_turned = bool(texts) and not holds_texts(texts) and holds_texts(ids)
    # e0, e1, ... beside Chinese texts of which many are the same
    is_turned = is_turned and not (
        len(set(ids)) == len(rows)
        and all(cell.isascii() and any(map(str.isdigit, cell)) for cell in ids)
        and not any(map(str.isascii, texts))
    )
    return are_ids(ids) and not is_turned and (not has_header or len(set(ids)) == len(rows))


def _text_place(
    path: Path, names: List[str], rows: List[List[Any]], columns: TextColumns, id_place: Optional[int] = None
) -> int:
    """Return the place of the column of texts. Raises InputError with the commands if several may be it."""
    if columns.text:
        return names.index(columns.text)
    cells = split_columns(rows, len(names))
    others = {id_place, *(names.index(name) for name in columns.payload)}
    may_be = [n for n, column in enumerate(cells) if n not in others and (not column or holds_texts(column))]
    named = [n for n in may_be if plain_name(names[n]) in FIRST_NAMES]
    found = named if len(named) == 1 else may_be
    if len(found) == 1 or len(names) == 1:
        return found[0] if found else 0
    open_ones = [names[n] for n in may_be or range(len(names))]
    listed, flags = ", ".join(open_ones), [{"text_column": name} for name in open_ones]
    if may_be:
        raise OpenError(f"{path}: the texts could be in the columns {listed}; name one", *flags)
    raise InputError(OpenError(f"{path}: none of the columns {listed} holds texts; name one", *flags).message)


def _describe_columns(names: List[str], text: str, name: str, payload: Sequence[str]) -> str:
    """Return in words which column is the text, which the id, which ride along, and which are not read."""
    others = [one or "one without a name" for one in names if one not in (text, name, *payload)]
    roles = {text: "the text", **({name: "the id"} if name else {})}
    read = " and ".join(f"{one} as {role}" for one, role in roles.items())
    read += f", with {', '.join(payload)}" if payload else ""
    return f"reads {read}" + (f"; not read: {', '.join(others)}" if others else "")


def _cells(path: Path, number: int, row: Any, layout: _Layout) -> Tuple[Any, Any]:
    """Return the id, None without one, and the text of a row. Raises InputError for what is wrong with it."""
    if isinstance(row, InputError):
        raise row
    if isinstance(row, dict):
        name = row.get(layout.id)
        is_number = layout.text == layout.id and type(name) is int
        return name, str(name) if is_number else row.get(layout.text)
    if len(row) != layout.width:
        wanted = (
            "id TAB text" if (layout.width, layout.id, layout.has_header) == (2, 0, False) else layout.width
        )
        raise ValueError(f"{counted(len(row), 'column')} instead of {wanted}")
    if layout.id is None:
        return None, row[layout.text]
    cell = row[layout.id]
    if isinstance(cell, float) and cell.is_integer():  # of Arrow: pandas makes floats of numbers with gaps
        cell = int(cell)
    name = text_of(cell)
    return name, name if layout.text == layout.id else row[layout.text]
