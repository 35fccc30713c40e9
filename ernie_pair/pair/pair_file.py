"""Sentence pairs on disk: tab-separated lines (LCQMC), or JSON lines (AFQMC) in .json and .jsonl.

    text_a<TAB>text_b<TAB>label                                   the header may be absent
    怎么开户<TAB>如何开户<TAB>1

    {"sentence1": "怎么开户", "sentence2": "如何开户", "label": "1"}

A header may name its columns in any order: text_a text_b label, query title label, sentence1
sentence2 label. Without one the order is text, text, label. Labels may be absent where nobody asks
for them. A line ends at \\n or \\r\\n and nowhere else, quotes are plain text, a first byte-order
mark is skipped. Every row is kept, or the file is refused with the number of the line.
"""

import hashlib
import json
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from data_tools.errors import InputError

LEFT, RIGHT, LABEL = "sentence1", "sentence2", "label"
COLUMN_NAMES = {
    **dict.fromkeys(("text_a", "query", LEFT), LEFT),
    **dict.fromkeys(("text_b", "title", RIGHT), RIGHT),
    LABEL: LABEL,
}
JSON_ENDINGS = (".json", ".jsonl")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Line = Tuple[str, str]  # FILE:NUMBER, text
Row = Dict[str, object]  # LEFT, RIGHT and perhaps LABEL


class Pairs(NamedTuple):
    """The rows of a file in their order. ``labels`` is None when they were not asked for."""

    left: List[str]
    right: List[str]
    labels: Optional[np.ndarray]
    sha256: str

    def __len__(self) -> int:
        return len(self.left)


def read_pairs(path: Union[str, Path], num_classes: Optional[int]) -> Pairs:
    """Read a pair file. With ``num_classes`` every row must have a label in 0..num_classes-1.

    Without it labels are passed over, there or not. Raises InputError naming file:line.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a .tsv, .json or .jsonl file of pairs")
    content = path.read_bytes()
    read_rows: Callable[[Iterator[Line]], Iterator[Tuple[str, Row]]] = (
        _rows_of_json if path.suffix in JSON_ENDINGS else _rows_of_tsv
    )
    left, right, labels = [], [], []
    for where, row in read_rows(_lines(path, content)):
        left.append(_text_of(where, row, LEFT))
        right.append(_text_of(where, row, RIGHT))
        if num_classes is not None:
            labels.append(_label_of(where, row, num_classes))
    if not left:
        raise InputError(f"{path}: no pairs in it; write a pair per line")
    classes = None if num_classes is None else np.array(labels, dtype=np.int64)
    return Pairs(left, right, classes, hashlib.sha256(content).hexdigest())


def _lines(path: Path, content: bytes) -> Iterator[Line]:
    if content.startswith(BYTE_ORDER_MARK):
        content = content[len(BYTE_ORDER_MARK) :]
    raw_lines = content.split(b"\n")
    if not raw_lines[-1]:
        raw_lines.pop()  # the file ends with a line end
    for number, raw in enumerate(raw_lines, start=1):
        where = f"{path}:{number}"
        text = _decode(where, raw[:-1] if raw.endswith(b"\r") else raw)
        if not text.strip():
            raise InputError(f"{where}: the line is blank; remove it, so that rows and lines agree")
        yield where, text


def _decode(where: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: byte {error.start + 1} of the line (0x{raw[error.start]:02x}) is not UTF-8; "
            "convert the file, with iconv -f GB18030 -t UTF-8 for example"
        ) from None


def _rows_of_tsv(lines: Iterator[Line]) -> Iterator[Tuple[str, Row]]:
    names: Sequence[str] = ()
    for where, text in lines:
        columns = text.split("\t")
        if not names:
            names, is_header = _layout_of(where, columns)
            if is_header:
                continue
        if len(columns) != len(names):
            raise InputError(
                f"{where}: {len(columns)} column(s) instead of {len(names)}; separate {', '.join(names)} "
                "by one tab each"
            )
        yield where, dict(zip(names, columns))


def _layout_of(where: str, columns: List[str]) -> Tuple[Sequence[str], bool]:
    """What the columns hold, judged by the first line, and whether that line is a header."""
    names = [COLUMN_NAMES.get(column.strip().lower(), column) for column in columns]
    if LEFT in names and RIGHT in names:
        strange = [name for name in names if name not in (LEFT, RIGHT, LABEL)]
        if strange or len(set(names)) != len(names):
            raise InputError(
                f"{where}: the header {', '.join(columns)} is not understood; write text_a, text_b, label"
            )
        return names, True
    if len(columns) not in (2, 3):
        raise InputError(
            f"{where}: {len(columns)} column(s) instead of 3 (text, text, label) or 2 (text, text); "
            "separate them by tabs, or name a file of JSON lines .jsonl"
        )
    return (LEFT, RIGHT, LABEL)[: len(columns)], False


def _rows_of_json(lines: Iterator[Line]) -> Iterator[Tuple[str, Row]]:
    for where, text in lines:
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", error.__class__.__name__)
            raise InputError(f"{where}: not JSON ({reason}); write an object per line") from None
        if not isinstance(row, dict):
            raise InputError(
                f"{where}: a {type(row).__name__} instead of an object; write {{...}} on each line"
            )
        yield where, row


def _text_of(where: str, row: Row, key: str) -> str:
    text = row.get(key)
    if not isinstance(text, str):
        found = (
            f"is {text!r}, not a text" if key in row else f"is missing (found: {', '.join(row) or 'nothing'})"
        )
        raise InputError(f"{where}: {key} {found}; every row needs {LEFT} and {RIGHT}")
    if not text.strip():
        raise InputError(f"{where}: {key} is empty; fill it in or remove the row")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: {key} has half of a character (\\u{ord(text[error.start]):04x}); mend it"
        ) from None
    return text


def _label_of(where: str, row: Row, num_classes: int) -> int:
    allowed = [str(label) for label in range(num_classes)]
    if LABEL not in row:
        raise InputError(f"{where}: no label; each row needs one of {', '.join(allowed)}")
    label = row[LABEL]
    if isinstance(label, bool) or str(label) not in allowed:
        raise InputError(
            f"{where}: label {label!r} is not one of {', '.join(allowed)}; mend it "
            "(a header line reads text_a<TAB>text_b<TAB>label)"
        )
    return int(label)
