"""Text files, plain or compressed: listed, and read line by line."""

import codecs
import os
import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set

from data_tools.text.file_content import (
    PACKED,
    decodes,
    detect_encoding,
    is_utf8_line,
    likely_encoding,
    num_invalid_bytes,
    unpacked,
    unreadable,
)
from ernie_pair.core.errors import InputError, dangling
from ernie_pair.core.files.json_file import JsonError, kind_of, parse_json
from ernie_pair.core.files.results import paths_named
from ernie_pair.core.progress import say

MAX_LINE_BYTES = 64 << 20
_SNIPPET = 60
_SAID: Set[str] = set()  # lines about files, each of which is said once


class Place(NamedTuple):
    """Where a table is: the name or the number of its sheet, '' if it is found, and the row of its header.

    ``header_row``: from 1; 0: it has none; None: it is found.
    """

    sheet: str = ""
    header_row: Optional[int] = None


@dataclass(frozen=True)
class LineRules:
    """The rules for a line.

    json_key   the key of the text, for JSON
    max_bytes  a longer line is refused
    replaces   bytes that are not UTF-8 become U+FFFD; otherwise such a line is refused
    encoding   of the bytes; utf-8, to which `read_lines` turns what else it finds, or one of ENCODINGS
    has_flag   the command has --encoding, which an error may suggest
    keeps_cr   a CR inside the line is text
    text_column  the column of the text, for tables; empty: it is found
    place  the sheet and the header row, for tables
    """

    json_key: str = "text"
    max_bytes: int = MAX_LINE_BYTES
    replaces: bool = False
    encoding: str = "utf-8"
    has_flag: bool = False
    keeps_cr: bool = False
    text_column: str = ""
    place: Place = Place()


STRICT = LineRules()


def decoded(path: str, number: int, line: bytes, rules: LineRules = STRICT) -> str:
    """Decode line ``number``, from 1, of ``path``. Raises InputError if it is too long, no text or has CR."""
    if len(line) > rules.max_bytes:
        raise InputError(
            f"{path}:{number}: the line is above {rules.max_bytes} bytes; cut it, or raise --max_line_bytes"
        )
    if b"\r" in line and not rules.keeps_cr:
        raise InputError(f"{path}:{number}: CR inside the line; save the file with LF or CRLF line ends")
    try:
        text = line.decode(rules.encoding)
        return text if rules.encoding == "utf-8" or number > 1 else text.removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        if rules.replaces and rules.encoding == "utf-8":
            return line.decode("utf-8", "replace")
        place = f"byte {error.start + 1} of the line is 0x{line[error.start]:02x}"
        hint = _encoding_hint(line, error, rules)
        name = "UTF-8" if rules.encoding == "utf-8" else rules.encoding
        raise InputError(f"{path}:{number}: not {name} ({place}); {hint}") from None


def json_text(path: str, number: int, line: bytes, rules: LineRules) -> str:
    """Return the text under the key of a JSON line. Raises InputError with file:line for anything else."""
    where = f"{path}:{number}"
    text = decoded(path, number, line, rules)
    try:
        record = parse_json(text)
    except JsonError as error:
        place, cut = where, ""
        if error.column:  # not even JSON
            place = f"{where}:{error.column}"
            cut = "" if text.rstrip().endswith("}") else " (is the line cut short?)"
        snippet = _snippet(text, max(error.column - 1, 0))
        raise InputError(f"{place}: {error}{cut}: {snippet}; correct the line") from None
    key = rules.json_key
    if not isinstance(record, dict):
        raise InputError(f'{where}: {kind_of(record)}, not an object; write {{"{key}": "..."}}')
    if key not in record:
        keys = ", ".join(record) or "none"
        raise InputError(f"{where}: no key '{key}', it has {_snippet(keys)}; pass the right --json_key")
    text = record[key]
    if not isinstance(text, str):
        raise InputError(f"{where}: '{key}' is {kind_of(text)}, not a text; put it in quotes")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"\\u{ord(text[error.start]):04x}"
        raise InputError(
            f"{where}: half a surrogate pair ({code}); remove it or write the whole pair"
        ) from None
    return text


def _snippet(text: str, place: int = 0) -> str:
    """Cut at most 60 characters out of ``text`` with ``place`` among them."""
    begin = max(0, min(place - _SNIPPET // 2, len(text) - _SNIPPET))
    end = begin + _SNIPPET
    return f"{'...' if begin else ''}{text[begin:end]}{'...' if end < len(text) else ''}"


def _encoding_hint(line: bytes, error: UnicodeDecodeError, rules: LineRules) -> str:
    if rules.encoding != "utf-8":
        if not decodes(line, "utf-8"):
            return "give the encoding of the file with --encoding, or correct it"
        return (
            "it is UTF-8, and one --encoding holds for all files: convert the others by "
            f"iconv -f {rules.encoding} -t UTF-8"
        )
    if error.reason == "unexpected end of data":
        return "its last character is cut short: copy the file again, or fix the line"
    # A damaged line of UTF-8 often decodes as GB18030 as well; it has few bytes that are not UTF-8.
    mostly_other = 2 * num_invalid_bytes(line) > sum(byte > 127 for byte in line)
    if not mostly_other:
        return "fix the line"
    found = likely_encoding(line)
    if found != "gb18030" and (found or not decodes(line, "gb2312")):
        return "nor like GB18030, and its encoding is not known here: save the file as UTF-8"
    if rules.has_flag:
        return (
            "it looks like GB18030, and lines before it like UTF-8: write all of them in one encoding, or, "
            "if all are GB18030, pass --encoding gb18030"
        )
    return "it looks like GB18030: convert the file with iconv -f GB18030 -t UTF-8"


REJECTED = ".rejected.jsonl"  # ends the name of a file of lines that are not documents
_OURS = (REJECTED, ".manifest.json")  # written beside corpora, and never read as text
RAW = (".txt",)
TABLES = (".csv", ".tsv", ".xlsx", ".xlsm", ".parquet", ".arrow", ".feather")
DOCUMENTS = (".jsonl", ".json", *TABLES)
HIDDEN = ("__MACOSX", "Thumbs.db", "desktop.ini")  # besides names that begin with . or ~$
_NAMED = 5  # files left out that a line names
_BOM = b"\xef\xbb\xbf"


def plain_suffix(path: Path) -> str:
    """Return the ending of a file in lower case, .json for example, without that of its compression."""
    return (path.with_suffix("") if path.suffix.lower() in PACKED else path).suffix.lower()


def say_once(text: str) -> None:
    """Write a line about a file to standard error, unless this process has written it before."""
    if text not in _SAID:
        _SAID.add(text)
        say(text, sys.stderr)


def list_inputs(
    input_path: str,
    endings: Sequence[str],
    apart_from: Iterable[Path] = (),
    named: str = "--input_path",
    levels: int = 2,
) -> List[Path]:
    """Return the file ``input_path``, of any name, or those with ``endings`` in ``levels`` of that folder.

    It may be several of them, with commas between. They are sorted, each once. ``endings``, in any case, may
    be followed by one of PACKED. ``apart_from``: the outputs, which are never read, and an error as the only
    input. Hidden files and those of other endings are left out, and a line names them. ``named``: what
    the user calls ``input_path``. Raises InputError if there is nothing, nothing that matches, or a name that
    is not a file.
    """
    if not input_path:
        raise InputError(f"{named} is empty; name a file or folder, . is the working folder")
    path, given = Path(input_path), paths_named(input_path)
    if len(given) > 1:
        each = (list_inputs(one, endings, apart_from, named, levels) for one in given)
        return each_once(chain.from_iterable(each))
    outputs = {os.path.realpath(output) for output in apart_from}
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; fix {named}")
    if path.is_file():
        if os.path.realpath(path) in outputs:
            raise InputError(f"{path} is both input and output; choose another output")
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: a pipe or a device; give its content as standard input, {named} -")
    hidden: List[Path] = []
    found = sorted(_names_below(path, levels, hidden))
    fitting = [item for item in found if _fits(item, endings) and os.path.realpath(item) not in outputs]
    for item in fitting:
        if not item.is_file():
            raise InputError(f"{item}: {dangling(item) or 'not a file (a pipe, for example)'}; remove it")
    known = {*fitting, *(item for item in found if os.path.realpath(item) in outputs)}
    others = [item for item in found if item not in known and not item.name.endswith(_OURS)]
    left_out = []
    for reason, paths in (("of other endings, or too deep", others), ("hidden", hidden)):
        names = ", ".join(str(item.relative_to(path)) for item in sorted(paths)[:_NAMED])
        more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
        left_out += [f"{len(paths)} {reason} ({names}{more})"] * bool(paths)
    if left_out:
        say_once(f"{path}: left out: {', '.join(left_out)}")
    if not fitting:
        raise InputError(f"{path}: no file ends with {' or '.join(endings)}; fix {named}")
    return each_once(fitting)


def _fits(path: Path, endings: Sequence[str]) -> bool:
    """Return whether a name has one of ``endings``, or of a compression alone: docs.zst."""
    ending = plain_suffix(path)
    if path.name.endswith(_OURS) or path.is_dir():
        return False
    return ending in endings or path.suffix.lower() in PACKED and ending not in (*RAW, *DOCUMENTS)


def _names_below(folder: Path, levels: int, hidden: List[Path]) -> Iterator[Path]:
    """Yield the files that many levels deep, and deeper folders that are not empty; ``hidden``: the rest."""
    try:
        items = list(folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from None
    for item in items:
        if item.name.startswith((".", "~$")) or item.name in HIDDEN:
            hidden.append(item)
        elif not item.is_dir():
            yield item
        elif levels > 1:
            yield from _names_below(item, levels - 1, hidden)
        elif not item.is_symlink() and any(item.iterdir()):
            yield item


def each_once(paths: Iterable[Path]) -> List[Path]:
    """Drop from ``paths`` further names of a file: a link to it, or a path through a loop of folders."""
    first: Dict[Path, Path] = {}
    for path in paths:
        first.setdefault(path.resolve(), path)
    return list(first.values())


def _as_utf8(chunks: Iterator[bytes], path: Path, encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    for chunk in chunks:  # half of a character stays so, and `decoded` refuses its line
        yield decoder.decode(chunk).encode("utf-8", "surrogatepass")
    try:
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        raise InputError(f"{path}: its last character is cut short; copy the file again") from None


def read_lines(
    path: Path,
    advance: Callable[[int], None] = lambda count: None,
    max_bytes: int = MAX_LINE_BYTES,
    encoding: str = "utf-8",
) -> Iterator[bytes]:
    """Yield the lines of a plain, .gz or .zst file, ended by LF or CRLF; a byte-order mark is left out.

    Those of a file in UTF-16, UTF-32 or GB18030 are turned into UTF-8; with an ``encoding`` they stay as they
    are. A Ctrl-Z that ends the file is left out. A line above ``max_bytes`` is yielded truncated, but still
    above: `decoded` refuses it. That is as soon as it is above, before the rest of it is read; memory and
    work do not grow with it. Raises InputError for a file that cannot be read, is damaged or truncated.
    """
    most = max_bytes + 2  # without a CR at its end it is still above
    held: List[bytes] = []  # the pieces of a line whose end was not read yet
    size, is_cut = 0, False
    is_first, chunks = True, unpacked(path, advance)
    found = detect_encoding(path) if encoding == "utf-8" else encoding
    if found.startswith(("utf-16", "utf-32")):
        chunks = _as_utf8(chunks, path, found)
    turned = encoding == "utf-8" and found == "gb18030"
    for chunk in chunks:
        chunk, is_first = chunk.removeprefix(_BOM) if is_first else chunk, False
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            if not is_cut:
                line = b"".join([*held, end]).removesuffix(b"\r")
                yield _line_as_utf8(line) if turned else line
            held, size, is_cut = [], 0, False
        if rest and not is_cut:
            held.append(rest)
            size += len(rest)
        if size >= most:
            yield b"".join(held)[:most]
            held, size, is_cut = [], 0, True
        chunk = rest = b""  # perhaps of 16 MiB: freed before the next one is unpacked
    last = b"".join(held).removesuffix(b"\x1a")
    if last:
        yield _line_as_utf8(last) if turned else last


def _line_as_utf8(line: bytes) -> bytes:
    """Return a line of GB18030 as UTF-8; one that is UTF-8, or neither, as it is: `decoded` says so."""
    try:
        return line if line.isascii() or is_utf8_line(line) else line.decode("gb18030").encode("utf-8")
    except UnicodeDecodeError:
        return line


def is_blank(text: str) -> bool:
    """Return whether a text has no visible character: it is empty, or of spaces and control characters."""
    return not any(character.isprintable() and not character.isspace() for character in text)
