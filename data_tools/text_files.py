"""Text files, plain or compressed: listed, read line by line, refused with file and line."""

import gzip
import json
import zlib
from pathlib import Path
from typing import BinaryIO, Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence

import zstandard

from data_tools.errors import InputError

_CHUNK = 1 << 20
_LONGEST_LINE = 64 << 20
_BATCH = 1 << 18
_BOM = b"\xef\xbb\xbf"


class LineBatch(NamedTuple):
    """Consecutive lines of one file, without their ends; ``first`` is the number of the first, from 1."""

    path: str
    first: int
    lines: List[bytes]

    def numbered(self) -> Iterator:
        return enumerate(self.lines, start=self.first)


def list_inputs(
    input_path: str,
    endings: Sequence[str],
    apart_from: Iterable[Path] = (),
    never: Sequence[str] = (),
    any_file: bool = False,
) -> List[Path]:
    """The file ``input_path``, or the files of that folder and its subfolders that end so, sorted, each once.

    ``apart_from`` are the outputs: never read, and an error when one is the only input. In a folder,
    names that end as ``never`` says are left out; a single file may have any ending with
    ``any_file``. Raises InputError: nothing there, nothing that fits.
    """
    path = Path(input_path)
    outputs = {output.resolve() for output in apart_from}
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; mend --input_path")
    if path.is_file():
        _check_single(path, endings, outputs, any_file)
        return [path]
    found = [item for pattern in ("*", "*/*") for item in path.glob(pattern) if item.is_file()]
    fitting = (f for f in found if f.name.endswith(tuple(endings)) and not f.name.endswith(tuple(never)))
    inputs = _each_once(sorted(item for item in fitting if item.resolve() not in outputs))
    if not inputs:
        raise InputError(f"{path}: no file ends with {' or '.join(endings)}; mend --input_path")
    return inputs


def _each_once(paths: Iterable[Path]) -> List[Path]:
    """Without the further names of a file: a link to it, or a way around a ring of folders."""
    first: Dict[Path, Path] = {}
    for path in paths:
        first.setdefault(path.resolve(), path)
    return list(first.values())


def _check_single(path: Path, endings: Sequence[str], outputs, any_file: bool) -> None:
    if path.resolve() in outputs:
        raise InputError(f"{path} is both input and output; choose another output")
    if not any_file and not path.name.endswith(tuple(endings)):
        raise InputError(f"{path} does not end with {' or '.join(endings)}; rename or convert it")


def line_batches(
    path: Path, advance: Callable[[int], None] = lambda count: None, batch_bytes: int = _BATCH
) -> Iterator[LineBatch]:
    """The lines of ``path`` in batches of ``batch_bytes`` or a line more, the last one shorter.

    ``advance`` hears the bytes read from the disk.
    """
    lines: List[bytes] = []
    first, size = 1, 0
    for line in read_lines(path, advance):
        lines.append(line)
        size += len(line)
        if size >= batch_bytes:
            yield LineBatch(str(path), first, lines)
            first, lines, size = first + len(lines), [], 0
    if lines:
        yield LineBatch(str(path), first, lines)


def read_lines(path: Path, advance: Callable[[int], None] = lambda count: None) -> Iterator[bytes]:
    """The lines of a plain, .gz or .zst file, ended by LF or CRLF; a byte-order mark is left out.

    Raises InputError: a compressed file that is damaged or cut short, a line above 64 MiB.
    """
    rest, number = b"", 0
    for chunk in _without_bom(_chunks(path, advance)):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        number += len(lines)
        if len(rest) > _LONGEST_LINE:
            raise InputError(f"{path}:{number + 1}: the line is above 64 MiB; cut it into documents")
        for line in lines:
            yield line[:-1] if line.endswith(b"\r") else line
    if rest:
        yield rest


def decoded(path: str, number: int, line: bytes) -> str:
    """Raises InputError with file:line for what is not UTF-8, or holds a CR that ends no line."""
    if b"\r" in line:
        raise InputError(f"{path}:{number}: CR inside the line; save the file with LF or CRLF line ends")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte {error.start + 1} of the line is 0x{line[error.start]:02x}"
        raise InputError(f"{path}:{number}: not UTF-8 ({found}); {_encoding_hint(line)}") from None


def json_text(path: str, number: int, line: bytes, key: str) -> str:
    """The text under ``key`` of a JSON line. Raises InputError with file:line for anything else."""
    where = f"{path}:{number}"
    text = decoded(path, number, line)
    try:
        record = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        cut = "" if text.rstrip().endswith("}") else " (is the line cut short?)"
        raise InputError(
            f"{where}:{error.colno}: not JSON, {error.msg}{cut}: {_snippet(text)}; mend the line"
        ) from None
    except (ValueError, RecursionError) as error:
        what = "nested too deep" if isinstance(error, RecursionError) else error
        raise InputError(f"{where}: {what}: {_snippet(text)}; mend the line") from None
    return _text_of(record, key, where)


def _text_of(record, key: str, where: str) -> str:
    if not isinstance(record, dict):
        raise InputError(f'{where}: {_kind(record)}, not an object; write {{"{key}": "..."}}')
    if key not in record:
        keys = ", ".join(record) or "none"
        raise InputError(f"{where}: no key '{key}', it has {_snippet(keys)}; pass the right --json_key")
    text = record[key]
    if not isinstance(text, str):
        raise InputError(f"{where}: '{key}' is {_kind(text)}, not a text; put it in quotes")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"\\u{ord(text[error.start]):04x}"
        raise InputError(
            f"{where}: half a surrogate pair ({code}); remove it or write the whole pair"
        ) from None
    return text


def _unique(pairs) -> dict:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key '{twice}' stands twice")
    return record


def _no_constant(name: str):
    raise ValueError(f"{name} is not JSON")


def _kind(value) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null", dict: "an object"}
    return names.get(type(value), "a number")


def _snippet(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "..."


def _encoding_hint(line: bytes) -> str:
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "it looks like UTF-16: convert the file by iconv -f UTF-16 -t UTF-8"
    try:
        line.decode("gb18030")
    except UnicodeDecodeError:
        return "mend the line"
    return "it looks like GB18030: convert the file by iconv -f GB18030 -t UTF-8"


def _without_bom(chunks: Iterator[bytes]) -> Iterator[bytes]:
    first = next(chunks, b"")
    yield first[len(_BOM) :] if first.startswith(_BOM) else first
    yield from chunks


def _chunks(path: Path, advance: Callable[[int], None]) -> Iterator[bytes]:
    with open(path, "rb") as raw:
        done = 0
        try:
            for chunk in _opened(path, raw):
                yield chunk
                advance(raw.tell() - done)
                done = raw.tell()
        except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError):
            raise InputError(
                f"{path}: damaged or cut short, read {raw.tell()} bytes of it; copy or compress it again"
            ) from None


def _opened(path: Path, raw: BinaryIO) -> Iterator[bytes]:
    if path.suffix == ".zst":
        return _unpacked_zst(raw)
    source = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
    return iter(lambda: source.read(_CHUNK), b"")


def _unpacked_zst(raw: BinaryIO) -> Iterator[bytes]:
    """Frame after frame; unlike the library's stream reader it notices a frame that is cut short."""
    make = zstandard.ZstdDecompressor().decompressobj
    frame, fresh = make(), True
    for packed in iter(lambda: raw.read(_CHUNK >> 4), b""):
        while packed:
            yield frame.decompress(packed)
            packed, fresh = frame.unused_data, frame.eof
            if frame.eof:
                frame = make()
    if not fresh:
        raise EOFError
