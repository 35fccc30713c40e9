"""Text files, plain or compressed: listed, and read line by line."""

import gzip
import zlib
from pathlib import Path
from typing import BinaryIO, Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence

from data_tools.base.errors import InputError
from data_tools.base.optional_import import import_optional
from data_tools.files.json_file import begins_json_lines
from data_tools.text.lines import LONGEST_LINE

REJECTED = ".rejected.jsonl"  # ends the name of a file of lines that are not documents
TEXT_ENDINGS = (".txt", ".jsonl", ".gz", ".zst")  # of the files in a folder of text
_CHUNK = 1 << 20
_PACKED = 512  # bytes of a .zst that are unpacked at a time: to 16 MiB at the very most
_BATCH = 1 << 18
_BEGINNING = 1 << 10  # bytes of a line that show whether it is JSON
_BOM = b"\xef\xbb\xbf"


class LineBatch(NamedTuple):
    """Consecutive lines of one file, without their ends; ``first`` is the number of the first, from 1.

    ``is_json``: the file is one of JSON lines, see `is_json_lines`.
    """

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

    They are sorted, each once. ``apart_from``: the outputs, which are never read, and an error if one is the
    only input. In a folder, names with an ending in ``never`` are left out, and so are the lines that another
    run rejected; with ``any_file`` a single file
    may have any ending. ``named``: what the user calls ``input_path``. Raises InputError if there is nothing,
    nothing that matches, or a name that is not a file.
    """
    if not input_path:
        raise InputError(f"{named} is empty; name a file or folder, . is the working folder")
    path = Path(input_path)
    outputs = {output.resolve() for output in apart_from}
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; fix {named}")
    if path.is_file():
        _check_single(path, endings, outputs, any_file)
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: a pipe or a device; give its content as standard input, {named} -")
    found = sorted(_names_below(path, levels=2))
    left_out = (REJECTED, *never)
    fitting = [f for f in found if f.name.endswith(tuple(endings)) and not f.name.endswith(left_out)]
    for item in fitting:
        if not item.is_file():
            raise InputError(f"{item}: not a file (a broken link, or a pipe); remove it")
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


def _check_single(path: Path, endings: Sequence[str], outputs, any_file: bool) -> None:
    if path.resolve() in outputs:
        raise InputError(f"{path} is both input and output; choose another output")
    if not any_file and not path.name.endswith(tuple(endings)):
        raise InputError(f"{path} does not end with {' or '.join(endings)}; rename or convert it")


def line_batches(
    path: Path,
    advance: Callable[[int], None] = lambda count: None,
    batch_bytes: int = _BATCH,
    max_bytes: int = LONGEST_LINE,
) -> Iterator[LineBatch]:
    """Yield the lines of ``path`` in batches of ``batch_bytes`` or a line more, the last one shorter.

    ``advance`` is called with the bytes read from the disk. Raises InputError as `read_lines` does.
    """
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


def read_lines(
    path: Path, advance: Callable[[int], None] = lambda count: None, max_bytes: int = LONGEST_LINE
) -> Iterator[bytes]:
    """Yield the lines of a plain, .gz or .zst file, ended by LF or CRLF; a byte-order mark is left out.

    A line above ``max_bytes`` is yielded truncated, but still above: `lines.decoded` refuses it. That is as
    soon as it is above, before the rest of it is read; memory and work do not grow with it. Raises
    InputError for a file that cannot be read, or a compressed one that is damaged or truncated.
    """
    most = max_bytes + 2  # without a CR at its end it is still above
    held: List[bytes] = []  # the pieces of a line whose end was not read yet
    size, is_cut = 0, False
    for chunk in _without_bom(_chunks(path, advance)):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            if not is_cut:
                yield _without_cr(b"".join([*held, end]))
            held, size, is_cut = [], 0, False
        if rest and not is_cut:
            held.append(rest)
            size += len(rest)
        if size >= most:
            yield b"".join(held)[:most]
            held, size, is_cut = [], 0, True
        chunk = rest = b""  # perhaps of 16 MiB: freed before the next one is unpacked
    if held:
        yield b"".join(held)


def _without_cr(line: bytes) -> bytes:
    return line[:-1] if line.endswith(b"\r") else line


def _without_bom(chunks: Iterator[bytes]) -> Iterator[bytes]:
    first = next(chunks, b"")
    yield first[len(_BOM) :] if first.startswith(_BOM) else first
    yield from chunks


def _chunks(path: Path, advance: Callable[[int], None]) -> Iterator[bytes]:
    try:
        raw = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise _unreadable(path, error) from None
    with raw:
        done = 0
        try:
            for chunk in _opened(path, raw):
                yield chunk
                advance(raw.tell() - done)
                done = raw.tell()
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise InputError(
                f"{path}: damaged or cut short, read {raw.tell()} bytes of it; copy or compress it again"
            ) from None


def _opened(path: Path, raw: BinaryIO) -> Iterator[bytes]:
    if path.suffix == ".zst":
        return _gather(_unpacked_zst(raw))
    source = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
    return iter(lambda: source.read(_CHUNK), b"")


def _unpacked_zst(raw: BinaryIO) -> Iterator[bytes]:
    """Unpack frame after frame; unlike the library's stream reader, notice a truncated frame."""
    zstandard = import_optional("zstandard", "cpu")
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
