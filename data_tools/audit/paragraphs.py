"""The paragraphs of text files: a line of text, or a line within the text of a JSON document."""

import unicodedata
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple

import numpy as np

from data_tools.text.lines import LineRules, decoded, json_text
from data_tools.text.text_files import LineBatch, is_json_lines, read_lines

QUOTE = 40  # characters of a paragraph that a report shows
_LAST_POINT = 0x110000


class TextPlace(NamedTuple):
    """The place of a paragraph: line ``part`` of the text in line ``line``, 0 where that is a single line."""

    path: str
    line: int
    part: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" + (f" (line {self.part} of its text)" if self.part else "")


class Paragraphs(NamedTuple):
    """The paragraphs of a batch of lines, empty ones included; three lists of the same length."""

    path: str
    lines: List[int]
    parts: List[int]
    texts: List[str]

    def place(self, row: int) -> TextPlace:
        """Return the place of paragraph ``row``."""
        return TextPlace(self.path, self.lines[row], self.parts[row])


def read_paragraphs(batch: LineBatch, rules: LineRules) -> Paragraphs:
    """Read the paragraphs of a batch of lines.

    Raises InputError with file:line for a line that `text.lines` refuses.
    """
    found = Paragraphs(batch.path, [], [], [])
    for number, line in batch.numbered():
        parts, texts = _in_line(batch.path, number, line, rules, batch.is_json)
        found.lines.extend([number] * len(texts))
        found.parts.extend(parts)
        found.texts.extend(texts)
    return found


def _in_line(path: str, number: int, line: bytes, rules: LineRules, is_json: bool):
    """Return (the part of each paragraph, the paragraphs) of one line."""
    if not is_json:
        return [0], [decoded(path, number, line, rules)]
    if not line.strip():
        return [], []
    text = json_text(path, number, line, rules).replace("\r\n", "\n")
    texts = (text[:-1] if text.endswith("\n") else text).split("\n")
    return (range(1, len(texts) + 1) if len(texts) > 1 else [0]), texts


def quotes(places: Iterable[TextPlace], rules: LineRules) -> Dict[TextPlace, str]:
    """Return the beginning of the paragraph at each place; reads the files again, as far as needed."""
    wanted: Dict[str, Dict[int, List[TextPlace]]] = {}
    for place in places:
        wanted.setdefault(place.path, {}).setdefault(place.line, []).append(place)
    found = {}
    for path, by_line in wanted.items():
        last, is_json = max(by_line), is_json_lines(Path(path))
        for number, line in enumerate(read_lines(Path(path), max_bytes=rules.max_bytes), start=1):
            for place in by_line.get(number, ()):
                _, texts = _in_line(path, number, line, rules, is_json)
                found[place] = quote(texts[max(0, place.part - 1)])
            if number == last:
                break
    return found


def quote(text: str, column: int = 0) -> str:
    """Cut at most QUOTE characters around ``column`` out of ``text``."""
    begin = max(0, min(column - QUOTE // 2, len(text) - QUOTE))
    part = text[begin : begin + QUOTE].strip()
    return f"{'...' if begin else ''}{part}{'...' if begin + QUOTE < len(text) else ''}"


def normalised(texts: List[str]) -> List[str]:
    """Return each text normalised for comparison: NFKC, lower case, no white space, no punctuation."""
    if not texts:
        return []
    whole = code_points(unicodedata.normalize("NFKC", "\n".join(texts)).lower())
    return whole[_compared()[whole]].tobytes().decode("utf-32-le").split("\n")


def code_points(text: str) -> np.ndarray:
    """Return the code point of every character of ``text``: uint32 [len(text)]."""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def starts_of(texts: List[str]) -> np.ndarray:
    """Return where each of n texts begins in "\\n".join(texts), and where one more would: int64 [n + 1]."""
    return np.cumsum([0, *(len(text) + 1 for text in texts)], dtype=np.int64)


def fingerprints(texts: List[str]) -> np.ndarray:
    """Hash n texts to 64 bits each: uint64 [n], by BLAKE2b.

    The probability that any two of n different texts collide is about n * n / 2**65.
    """
    digests = b"".join(blake2b(text.encode("utf-8"), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8")


@lru_cache(maxsize=1)
def categories() -> np.ndarray:
    """Return the category of every character, in the Unicode version of this Python: S2 [0x110000]."""
    joined = "".join(map(unicodedata.category, map(chr, range(_LAST_POINT))))
    return np.frombuffer(joined.encode("ascii"), dtype="S2")


@lru_cache(maxsize=1)
def _compared() -> np.ndarray:
    """Return which characters count when two paragraphs are compared: bool [0x110000]."""
    major = categories().astype("S1")
    left_out = (major == b"P") | (major == b"Z") | (categories() == b"Cc") | (categories() == b"Cf")
    left_out[ord("\n")] = False  # separates two paragraphs
    return ~left_out
