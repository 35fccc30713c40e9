"""Text files, plain or compressed: listed, read line by line, and read as texts with their ids.

A file of texts has one on each line (`read_texts`):

.tsv             id TAB text on every line; a first line that reads id TAB text is a header
.jsonl, .json    {"id": "a1", "text": "..."} on every line; without "id", the id is the line's number from 0
any other file   a text on every line, whose id is its number from 0
"""

import codecs
import gzip
import sys
import zlib
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from data_tools.files.errors import InputError, counted, dangling
from data_tools.files.installation import import_optional
from data_tools.files.json_file import (
    JsonError,
    begins_json_lines,
    is_utf8,
    kind_of,
    parse_json,
    parse_json_object,
)

LONGEST_LINE = 64 << 20
ENCODINGS = ("utf-8", "gb18030", "gbk", "big5")
_SNIPPET = 60
_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_LOOKED_THROUGH = 64 << 20  # bytes of plain ASCII before a file is taken for UTF-8
_RARE = 0.45  # a text of which less is in GB 2312 is of another encoding that GB18030 decodes to nonsense


@dataclass(frozen=True)
class LineRules:
    """The rules for a line.

    json_key   the key of the text, for lines of JSON
    max_bytes  a longer line is refused
    replaces   bytes that are not UTF-8 become U+FFFD; otherwise such a line is refused
    encoding   of the bytes; utf-8, to which `read_lines` turns what else it finds, or one of ENCODINGS
    has_flag   the command has --encoding, which an error may suggest
    keeps_cr   a CR inside the line is text
    """

    json_key: str = "text"
    max_bytes: int = LONGEST_LINE
    replaces: bool = False
    encoding: str = "utf-8"
    has_flag: bool = False
    keeps_cr: bool = False


STRICT = LineRules()


def decoded(path: str, number: int, line: bytes, rules: LineRules = STRICT) -> str:
    """Decode line ``number``, from 1, of ``path``. Raises InputError if it is too long, no text or has CR."""
    where = f"{path}:{number}"
    if len(line) > rules.max_bytes:
        raise InputError(
            f"{where}: the line is above {rules.max_bytes} bytes; cut it, or raise --max_line_bytes"
        )
    if b"\r" in line and not rules.keeps_cr:
        raise InputError(f"{where}: CR inside the line; save the file with LF or CRLF line ends")
    try:
        text = line.decode(rules.encoding)
        return text if rules.encoding == "utf-8" or number > 1 else text.removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        if rules.replaces and rules.encoding == "utf-8":
            return line.decode("utf-8", "replace")
        place = f"byte {error.start + 1} of the line is 0x{line[error.start]:02x}"
        hint = _encoding_hint(line, error, rules)
        name = "UTF-8" if rules.encoding == "utf-8" else rules.encoding
        raise InputError(f"{where}: not {name} ({place}); {hint}") from None


def _decodes(text: bytes, encoding: str, is_cut: bool = False) -> bool:
    """Return whether ``text`` is of ``encoding``; ``is_cut``: its last character may be cut short."""
    try:
        codecs.getincrementaldecoder(encoding)().decode(text, not is_cut)
    except UnicodeDecodeError:
        return False
    return True


def num_invalid_bytes(line: bytes) -> int:
    """Count the bytes of ``line`` that are not UTF-8: those that `decoded` replaces if asked to."""
    return len(line) - len(line.decode("utf-8", "ignore").encode("utf-8"))


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
        if not _decodes(line, "utf-8"):
            return "give the encoding of the file with --encoding, or correct it"
        return (
            "it is UTF-8, and one --encoding holds for all files: convert the others by "
            f"iconv -f {rules.encoding} -t UTF-8"
        )
    if error.reason == "unexpected end of data":
        return "its last character is cut short: copy the file again, or fix the line"
    # A damaged line of UTF-8 often decodes as GB18030 as well; it has few bytes that are not UTF-8.
    mostly_other = 2 * num_invalid_bytes(line) > sum(byte > 127 for byte in line)
    if not (_decodes(line, "gb18030") and mostly_other):
        return "fix the line"
    if rules.has_flag:
        return "it looks like GB18030, and lines before it like UTF-8: write all of them in one encoding"
    return "it looks like GB18030: convert the file with iconv -f GB18030 -t UTF-8"


REJECTED = ".rejected.jsonl"  # ends the name of a file of lines that are not documents
TEXT_ENDINGS = (".txt", ".jsonl", ".gz", ".zst")  # of the files in a folder of text
_CHUNK = 1 << 20
_PACKED = 512  # bytes of a .zst that are unpacked at a time: to 16 MiB at the very most
_BATCH = 1 << 18
_BEGINNING = 1 << 10  # bytes of a line that show whether it is JSON
_BOM = b"\xef\xbb\xbf"


class LineBatch(NamedTuple):
    """Consecutive lines of one file, without their ends, the first of them number ``first``, from 1."""

    path: str
    first: int
    lines: List[bytes]
    is_json: bool

    def numbered(self) -> Iterator:
        """Yield (number of the line in its file, line)."""
        return enumerate(self.lines, start=self.first)


def list_inputs(
    input_path: str,
    endings: Sequence[str],
    apart_from: Iterable[Path] = (),
    never: Sequence[str] = (),
    any_file: bool = False,
    named: str = "--input_path",
) -> List[Path]:
    """Return the file ``input_path``, or the files with ``endings`` of that folder and its subfolders.

    It may be several of them, with commas between. They are sorted, each once. ``apart_from``: the outputs,
    which are never read, and an error if one is the only input. In a folder, names with an ending in
    ``never`` are left out, and so are the lines that another run rejected; with ``any_file`` a single file
    may have any ending. ``named``: what the user calls ``input_path``. Raises InputError if there is nothing,
    nothing that matches, or a name that is not a file.
    """
    if not input_path:
        raise InputError(f"{named} is empty; name a file or folder, . is the working folder")
    path = Path(input_path)
    if "," in input_path and not path.exists():
        each = (
            list_inputs(one, endings, apart_from, never, any_file, named) for one in input_path.split(",")
        )
        return each_once(chain.from_iterable(each))
    outputs = {output.resolve() for output in apart_from}
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; fix {named}")
    if path.is_file():
        if path.resolve() in outputs:
            raise InputError(f"{path} is both input and output; choose another output")
        if not any_file and not path.name.endswith(tuple(endings)):
            raise InputError(f"{path} does not end with {' or '.join(endings)}; rename or convert it")
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: a pipe or a device; give its content as standard input, {named} -")
    found = sorted(_names_below(path, levels=2))
    left_out = (REJECTED, *never)
    fitting = [f for f in found if f.name.endswith(tuple(endings)) and not f.name.endswith(left_out)]
    for item in fitting:
        if not item.is_file():
            raise InputError(f"{item}: {dangling(item) or 'not a file (a pipe, for example)'}; remove it")
    inputs = each_once(item for item in fitting if item.resolve() not in outputs)
    if not inputs:
        raise InputError(f"{path}: no file ends with {' or '.join(endings)}; fix {named}")
    return inputs


def _names_below(folder: Path, levels: int) -> Iterator[Path]:
    """Yield the paths that are not folders, that many levels deep: the limit ends a loop of links."""
    try:
        items = list(folder.iterdir())
    except OSError as error:
        raise _unreadable(folder, error) from None
    for item in items:
        if not item.is_dir():
            yield item
        elif levels > 1:
            yield from _names_below(item, levels - 1)


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read ({error.strerror}); fix its permissions, or leave it out")


def each_once(paths: Iterable[Path]) -> List[Path]:
    """Drop from ``paths`` further names of a file: a link to it, or a path through a loop of folders."""
    first: Dict[Path, Path] = {}
    for path in paths:
        first.setdefault(path.resolve(), path)
    return list(first.values())


def line_batches(
    paths: Iterable[Path],
    advance: Callable[[int], None] = lambda count: None,
    batch_bytes: int = _BATCH,
    max_bytes: int = LONGEST_LINE,
) -> Iterator[LineBatch]:
    """Yield the lines of each file in batches of ``batch_bytes`` or a line more, the last one shorter.

    ``advance`` is called with the bytes read from the disk. Raises InputError as `read_lines` does.
    """
    for path in paths:
        lines: List[bytes] = []
        first, size, is_json = 1, 0, is_json_lines(path)
        for line in read_lines(path, advance, max_bytes):
            lines.append(line)
            size += len(line)
            if size >= batch_bytes:
                yield LineBatch(str(path), first, lines, is_json)
                first, lines, size = first + len(lines), [], 0
        if lines:
            yield LineBatch(str(path), first, lines, is_json)


def is_json_lines(path: Path) -> bool:
    """Return whether a file has JSON lines and not raw text: by its name, or by its first line with text.

    Documents may have any name: docs.json, docs.zst. Raises InputError as `read_lines` does.
    """
    if ".jsonl" in path.suffixes:
        return True
    first = next((line for line in read_lines(path, max_bytes=_BEGINNING) if line.strip()), b"")
    return begins_json_lines(first)


def encoding_of(path: Path) -> str:
    """Return the encoding of a text file: utf-8, utf-16-le, utf-16-be or gb18030.

    What can be UTF-8 is; so is a file with a few damaged lines, or none of whose first 64 MiB is beyond
    ASCII. UTF-16 is known by its mark or its zero bytes, GB18030 by decoding. Raises as `read_lines` does.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None
    return _encoding_of(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _encoding_of(path: Path, *stamp: int) -> str:
    passed, found = 0, "utf-8"
    for chunk in _chunks(path, lambda count: None):
        found = _encoding_in(chunk, is_first=not passed) or ""
        passed += len(chunk)
        if found or passed > _LOOKED_THROUGH:
            break
    return found or "utf-8"


def tell_encodings(paths: Iterable[Path]) -> None:
    """Write a line to standard error for each encoding but UTF-8 that files are found to be in."""
    others: Dict[str, List[str]] = {}
    for path in paths:
        if encoding_of(path) != "utf-8":
            others.setdefault(encoding_of(path), []).append(str(path))
    for encoding, names in others.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        sys.stderr.write(f"read as {encoding.upper()}, as their bytes say: {', '.join(names[:3])}{more}\n")


def _encoding_in(chunk: bytes, is_first: bool) -> Optional[str]:
    """Return the encoding of a text by its bytes; None where they are all ASCII."""
    if is_first and chunk[:2] in _MARKS:
        return _MARKS[chunk[:2]]
    zeros = chunk[1::2].count(0), chunk[::2].count(0)  # of UTF-16 that begins with the low byte, the high one
    most, least = max(zeros), min(zeros)
    order = "utf-16-le" if zeros[0] == most else "utf-16-be"
    if is_first and most > len(chunk) // 3 and 4 * least < most:
        return order
    if chunk.isascii():
        return None
    if _decodes(chunk, "utf-8", is_cut=True):
        return "utf-8"
    if is_first and 4 * least < most and _decodes(chunk, order, is_cut=True):
        return order
    is_damaged = 2 * num_invalid_bytes(chunk) <= sum(byte > 127 for byte in chunk)
    *lines, last = chunk.split(b"\n")  # which may be cut
    others = [line for line in lines if not line.isascii()] or [last]
    foreign = b"\n".join(line for line in others if not is_utf8_line(line))
    if is_damaged or is_utf8_line(others[0]) or not _decodes(foreign, "gb18030", is_cut=True):
        return "utf-8"
    # Lines of UTF-8 below are minded by `read_lines` and by tables.
    text = [char for char in foreign.decode("gb18030", "ignore") if not char.isascii()]
    common = sum(map(len, "".join(text).encode("gb2312", "ignore").split())) / 2
    return "gb18030" if common >= _RARE * len(text) else "utf-8"


def is_utf8_line(line: bytes) -> bool:
    """Return whether a line is UTF-8 and can hardly be anything else: most characters are of three bytes."""
    try:
        others = [char for char in line.decode("utf-8") if char > "\x7f"]
    except UnicodeDecodeError:
        return False
    long = sum(char >= "\u0800" for char in others)
    return long > 1 and 2 * long > len(others)


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
    max_bytes: int = LONGEST_LINE,
    encoding: str = "utf-8",
) -> Iterator[bytes]:
    """Yield the lines of a plain, .gz or .zst file, ended by LF or CRLF; a byte-order mark is left out.

    Those of a file in UTF-16 or GB18030 are turned into UTF-8; with an ``encoding`` they stay as they are. A
    Ctrl-Z that ends the file is left out. A line above ``max_bytes`` is yielded truncated, but still above:
    `decoded` refuses it. That is as soon as it is above, before the rest of it is read; memory and work do
    not grow with it. Raises InputError for a file that cannot be read, is damaged or truncated.
    """
    most = max_bytes + 2  # without a CR at its end it is still above
    held: List[bytes] = []  # the pieces of a line whose end was not read yet
    size, is_cut = 0, False
    is_first, chunks = True, _chunks(path, advance)
    found = encoding_of(path) if encoding == "utf-8" else encoding
    if found.startswith("utf-16"):
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


def _chunks(path: Path, advance: Callable[[int], None]) -> Iterator[bytes]:
    try:
        raw = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise _unreadable(path, error) from None
    with raw:
        done = 0
        try:
            if path.suffix == ".zst":
                unpacked = _gather(_unpacked_zst(raw))
            else:
                source = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
                unpacked = iter(partial(source.read, _CHUNK), b"")
            for chunk in unpacked:
                yield chunk
                advance(raw.tell() - done)
                done = raw.tell()
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise InputError(
                f"{path}: damaged or cut short, read {raw.tell()} bytes of it; copy or compress it again"
            ) from None


def _unpacked_zst(raw: BinaryIO) -> Iterator[bytes]:
    """Unpack frame after frame; unlike the library's stream reader, notice a truncated frame."""
    zstandard = import_optional("zstandard")
    make = zstandard.ZstdDecompressor().decompressobj
    frame, fresh = make(), True
    for packed in iter(lambda: raw.read(_PACKED), b""):
        while packed:
            try:
                yield frame.decompress(packed)
            except zstandard.ZstdError:
                raise EOFError from None
            packed, fresh = frame.unused_data, frame.eof
            if frame.eof:
                frame = make()
    if not fresh:
        raise EOFError


def _gather(pieces: Iterator[bytes]) -> Iterator[bytes]:
    held: List[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _CHUNK:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


PACKED = (".gz", ".zst")
PLAIN = (".txt", ".txt.gz", ".txt.zst")
HEADER = ({"id", "编号", "序号"}, {"text", "文本", "句子", "问题", "标题", "内容"})


class NamedText(NamedTuple):
    """A text and its name."""

    id: str
    text: str
    line: int  # of its file, from 1


class LeftOut:
    """Lines without a text: how many, and the reason for the first."""

    def __init__(self):
        self.count, self.first = 0, ""

    def add(self, reason: str) -> None:
        """Count a line."""
        self.count += 1
        self.first = self.first or reason


def is_blank(text: str) -> bool:
    """Return whether a text has no visible character: it is empty, or of spaces and control characters."""
    return not any(character.isprintable() and not character.isspace() for character in text)


def is_text_file(name: str) -> bool:
    """Return whether ``name`` is that of a file of plain texts, not of pairs."""
    return name.endswith(PLAIN)


def format_of(path: Path) -> str:
    """Return how the lines of a file are read, by its name: tsv, jsonl or text."""
    name = path.stem if path.suffix in PACKED else path.name
    ending = Path(name).suffix
    return {".tsv": "tsv", ".jsonl": "jsonl", ".json": "jsonl"}.get(ending, "text")


def has_ids(path: Path) -> bool:
    """Return whether the lines of a file may name their texts; otherwise their numbers do."""
    return format_of(path) != "text"


def read_texts(
    path: Path,
    left_out: Optional[LeftOut] = None,
    advance: Callable[[int], None] = lambda count: None,
    cure: str = "fix the line",
    rules: LineRules = STRICT,
) -> Iterator[NamedText]:
    """Yield the texts of a file; bad lines are counted by ``left_out``, if it is given.

    ``advance`` is called with the bytes read; ``cure`` ends the message about a bad line;
    ``rules``: the encoding of the lines. Raises InputError with file:line for a bad line otherwise, and for a
    file that cannot be read.
    """
    if not path.is_file():
        raise InputError(f"{path} is not a file; give one with a text on every line")
    kind = format_of(path)
    for number, line in enumerate(read_lines(path, advance, encoding=rules.encoding), start=1):
        try:
            name, text = _id_and_text(decoded(str(path), number, line, rules), kind, str(number - 1))
            if number == 1 and name in HEADER[0] and text in HEADER[1]:
                continue
            for value, what in ((text, "text"), (name, "id")):
                if not value.strip():
                    raise ValueError(f"an empty {what}")
        except ValueError as error:
            reason = error.message if isinstance(error, InputError) else f"{path}:{number}: {error}; {cure}"
            if left_out is None:
                raise InputError(reason) from None
            left_out.add(reason)
            continue
        yield NamedText(name, text, number)


def refuse_repeated_ids(path: Path, ids: Iterator[str], lines: np.ndarray) -> None:
    """Raise InputError if two texts have the same id. ``lines`` int64 [N]: their lines in ``path``.

    The line of a text that an index holds already is 0. It holds eight bytes per id.
    """
    hashes = (blake2b(name.encode("utf-8"), digest_size=8).digest() for name in ids)
    digests = np.fromiter((int.from_bytes(each, "little") for each in hashes), np.uint64, count=len(lines))
    order = np.argsort(digests, kind="stable")
    equal = np.flatnonzero(digests[order[1:]] == digests[order[:-1]])
    if len(equal):
        place = int(np.argmin(order[equal + 1]))
        first, second = (int(lines[order[equal[place] + step]]) for step in (0, 1))
        other = f"line {first}" if first else "a text in the index"
        raise InputError(f"{path}:{second}: repeats the id of {other}; give every text an id of its own")


def _id_and_text(line: str, kind: str, number: str) -> Tuple[str, str]:
    """Return the id of a line, or ``number`` without one, and its text. Raises ValueError with the reason."""
    if kind == "text":
        return number, line
    if kind == "tsv":
        cells = line.split("\t")
        if len(cells) != 2:
            raise ValueError(f"{counted(len(cells), 'column')} instead of id TAB text")
        return cells[0], cells[1]
    row: Dict[str, object] = parse_json_object(line)
    name, text = row.get("id", number), row.get("text")
    if not isinstance(text, str):
        raise ValueError('no "text" that is a string')
    if isinstance(name, bool) or not isinstance(name, (str, int)):
        raise ValueError('an "id" that is neither a string nor a whole number')
    if not is_utf8([name, text]):
        raise ValueError("half of a character")
    return str(name), text
