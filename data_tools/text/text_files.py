"""Text files, plain or compressed: listed, and read line by line."""

import gzip
import zlib
from pathlib import Path
from typing import BinaryIO, Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence

from data_tools.base.errors import InputError
from data_tools.base.optional_import import import_optional
from data_tools.text.lines import LONGEST_LINE

TEXT_ENDINGS = (".txt", ".jsonl", ".gz", ".zst")  # of the files in a folder of text
_CHUNK = 1 << 20
_PACKED = 512  # bytes of a .zst that are unpacked at a time: to 16 MiB at the very most
_BATCH = 1 << 18
_BOM = b"\xef\xbb\xbf"


class LineBatch(NamedTuple):
    """Consecutive lines of one file, without their ends; ``first`` is the number of the first, from 1."""

    path: str
    first: int
    lines: List[bytes]

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
    """Return the file ``input_path``, or the files of that folder and its subfolders that end so.

    They are sorted, each once. ``apart_from`` are the outputs: never read, and an error when one is the
    only input. In a folder, names that end as ``never`` says are left out; a single file may have any
    ending with ``any_file``. ``named``: what the user calls ``input_path``. Raises InputError: nothing
    there, nothing that fits, a name that leads to no file.
    """
    path = Path(input_path)
    outputs = {output.resolve() for output in apart_from}
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; fix {named}")
    if path.is_file():
        _check_single(path, endings, outputs, any_file)
        return [path]
    found = sorted(_names_below(path, levels=2))
    fitting = [f for f in found if f.name.endswith(tuple(endings)) and not f.name.endswith(tuple(never))]
    for item in fitting:
        if not item.is_file():
            raise InputError(f"{item}: leads to no file (a link to nothing, or a pipe); remove it")
    inputs = each_once(item for item in fitting if item.resolve() not in outputs)
    if not inputs:
        raise InputError(f"{path}: no file ends with {' or '.join(endings)}; fix {named}")
    return inputs


def _names_below(folder: Path, levels: int) -> Iterator[Path]:
    """Yield the paths of what is no folder, that many levels deep: the depth ends a ring of links."""
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
    """Drop from ``paths`` the further names of a file: a link to it, or a way around a ring of folders."""
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

    ``advance`` hears the bytes read from the disk. Raises InputError as `read_lines` does.
    """
    lines: List[bytes] = []
    first, size = 1, 0
    for line in read_lines(path, advance, max_bytes):
        lines.append(line)
        size += len(line)
        if size >= batch_bytes:
            yield LineBatch(str(path), first, lines)
            first, lines, size = first + len(lines), [], 0
    if lines:
        yield LineBatch(str(path), first, lines)


def read_lines(
    path: Path, advance: Callable[[int], None] = lambda count: None, max_bytes: int = LONGEST_LINE
) -> Iterator[bytes]:
    """Yield the lines of a plain, .gz or .zst file, ended by LF or CRLF; a byte-order mark is left out.

    A line above ``max_bytes`` comes cut short, but still above: `lines.decoded` refuses it. It comes as
    soon as it is above, before the rest of it is read; memory and work do not grow with it. Raises
    InputError: a file that cannot be read, or a compressed one that is damaged or cut short.
    """
    most = max_bytes + 2  # without a CR at its end it is still above
    held: List[bytes] = []  # the pieces of a line whose end has not come
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
        chunk = rest = b""  # of 16 MiB perhaps: not held while the next one is unpacked
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
        return _gathered(_unpacked_zst(raw))
    source = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
    return iter(lambda: source.read(_CHUNK), b"")


def _unpacked_zst(raw: BinaryIO) -> Iterator[bytes]:
    """Unpack frame after frame; unlike the library's stream reader, notice a frame that is cut short."""
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


def _gathered(tokenizer: Iterator[bytes]) -> Iterator[bytes]:
    held: List[bytes] = []
    size = 0
    for piece in tokenizer:
        held.append(piece)
        size += len(piece)
        if size >= _CHUNK:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)
