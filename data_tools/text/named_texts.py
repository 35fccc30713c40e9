"""Read files of texts, one on each line, with their ids.

.tsv             id TAB text on every line; a first line that reads id TAB text is a header
.jsonl, .json    {"id": "a1", "text": "..."} on every line; without "id", the id is the line's number from 0
any other file   a text on every line, whose id is its number from 0

Each may be compressed (.gz, .zst).
"""

from hashlib import blake2b
from pathlib import Path
from typing import Callable, Dict, Iterator, NamedTuple, Optional, Tuple

import numpy as np

from data_tools.files.errors import InputError, counted
from data_tools.files.json_file import JsonError, is_utf8, parse_json_object
from data_tools.text.text_files import STRICT, LineRules, decoded, read_lines

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


class BadLineError(ValueError):
    """A line without a text; the message is the reason."""


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
    for number, line in enumerate(read_lines(path, advance), start=1):
        try:
            text = decoded(str(path), number, line, rules)
            name = str(number - 1)
            if kind == "tsv":
                name, text = _cells_of(text)
            elif kind == "jsonl":
                name, text = _values_of(text, name)
            if number == 1 and name in HEADER[0] and text in HEADER[1]:
                continue
            for value, what in ((text, "text"), (name, "id")):
                if not value.strip():
                    raise BadLineError(f"an empty {what}")
        except (BadLineError, InputError) as error:
            reason = error.message if isinstance(error, InputError) else f"{path}:{number}: {error}; {cure}"
            if left_out is None:
                raise InputError(reason) from None
            left_out.add(reason)
            continue
        yield NamedText(name, text, number)


def refuse_repeated_ids(path: Path, ids: Iterator[str], lines: np.ndarray) -> None:
    """Raise InputError if two texts have the same id. ``lines`` int64 [N]: their lines in ``path``.

    It holds eight bytes per id.
    """
    hashes = (blake2b(name.encode("utf-8"), digest_size=8).digest() for name in ids)
    digests = np.fromiter((int.from_bytes(each, "little") for each in hashes), np.uint64, count=len(lines))
    order = np.argsort(digests, kind="stable")
    equal = np.flatnonzero(digests[order[1:]] == digests[order[:-1]])
    if len(equal):
        place = int(np.argmin(order[equal + 1]))
        first, second = (int(lines[order[equal[place] + step]]) for step in (0, 1))
        raise InputError(f"{path}:{second}: repeats the id of line {first}; give every text an id of its own")


def _cells_of(line: str) -> Tuple[str, str]:
    cells = line.split("\t")
    if len(cells) != 2:
        raise BadLineError(f"{counted(len(cells), 'column')} instead of id TAB text")
    return cells[0], cells[1]


def _values_of(line: str, number: str) -> Tuple[str, str]:
    """Return the id, or else the ``number``, and the text of a JSON object."""
    try:
        row: Dict[str, object] = parse_json_object(line)
    except JsonError as error:
        raise BadLineError(str(error)) from None
    name, text = row.get("id", number), row.get("text")
    if not isinstance(text, str):
        raise BadLineError('no "text" that is a string')
    if isinstance(name, bool) or not isinstance(name, (str, int)):
        raise BadLineError('an "id" that is neither a string nor a whole number')
    if not is_utf8([name, text]):
        raise BadLineError("half of a character")
    return str(name), text
