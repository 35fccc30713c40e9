"""The paragraphs of text files: a line of text, or a line within the text of a JSON document."""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Sequence

import numpy as np

from data_tools.text.characters import categories, compatible, lowered
from data_tools.text.text_files import LineRules, decoded, json_text
from data_tools.text.texts import LineBatch, document_lines, holds_documents
from data_tools.text.wordpiece import code_points

QUOTE = 40  # characters of a paragraph that a report shows
QUANTILES = (0, 5, 25, 50, 75, 95, 99, 100)


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
    """Read the paragraphs of a batch of lines. Raises InputError with file:line as `text_files` does."""
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
        last, is_json = max(by_line), holds_documents(Path(path), rules)
        for number, line in enumerate(document_lines(Path(path), rules), start=1):
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
    whole = code_points(lowered(compatible("\n".join(texts))))
    return whole[_compared()[whole]].tobytes().decode("utf-32-le").split("\n")


def quantiles(lengths: np.ndarray) -> Dict[str, int]:
    """Return {percent: length} of lengths int64 [n], for the percents in QUANTILES."""
    found = np.percentile(lengths, QUANTILES, method="lower").tolist()
    return {str(percent): int(length) for percent, length in zip(QUANTILES, found)}


def describe_quantiles(found: Dict[str, int]) -> str:
    """Return `quantiles` in words."""
    marks = {"0": "shortest", "50": "median", "100": "longest"}
    return ", ".join(f"{marks.get(percent, percent + ' %')} {value}" for percent, value in found.items())


@lru_cache(maxsize=1)
def _compared() -> np.ndarray:
    """Return which characters count when two paragraphs are compared: bool [0x110000]."""
    major = categories().astype("S1")
    left_out = (major == b"P") | (major == b"Z") | (categories() == b"Cc") | (categories() == b"Cf")
    left_out[ord("\n")] = False  # separates two paragraphs
    return ~left_out


EXAMPLES = 3  # kept of each kind


@dataclass(frozen=True)
class Example:
    """A finding: ``what`` occurs ``at`` file:line, with some of the ``text`` there."""

    at: str
    what: str
    text: str


@dataclass
class Tally:
    """The number of characters and paragraphs with findings of one kind, and the first examples."""

    characters: int = 0
    paragraphs: int = 0
    examples: List[Example] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add what was found in later text; keep the first EXAMPLES examples."""
        self.characters += other.characters
        self.paragraphs += other.paragraphs
        self.examples = (self.examples + other.examples)[:EXAMPLES]


@dataclass(frozen=True)
class Findings:
    """n findings in some paragraphs; all arrays are int64 [n].

    ``kinds``: indices into ``names``; ``at``: offsets in "\\n".join(texts); ``marked``: how many
    characters from there an example shows; ``characters``: how many it counts for.
    """

    names: Sequence[str]
    kinds: np.ndarray
    at: np.ndarray
    marked: np.ndarray
    characters: np.ndarray


def tally(paragraphs: Paragraphs, findings: Findings) -> Dict[str, Tally]:
    """Count findings by the name of their kind, each example from a different paragraph."""
    # Where each of the texts begins in "\n".join(texts), and where one more would.
    firsts = np.cumsum([0, *(len(text) + 1 for text in paragraphs.texts)], dtype=np.int64)
    rows = np.searchsorted(firsts, findings.at, side="right") - 1
    tallies = {}
    for kind in np.unique(findings.kinds).tolist():
        picked = np.flatnonzero(findings.kinds == kind)
        different, first = np.unique(rows[picked], return_index=True)
        examples = []
        for row, number in zip(different.tolist(), picked[first[:EXAMPLES]].tolist()):
            text, column = paragraphs.texts[row], int(findings.at[number] - firsts[row])
            what = text[column : column + int(findings.marked[number])]
            examples.append(Example(str(paragraphs.place(row)), shown(what), quote(text, column)))
        total = int(findings.characters[picked].sum())
        tallies[findings.names[kind]] = Tally(total, len(different), examples)
    return tallies


def shown(text: str) -> str:
    """Return ``text``, or the code point of a single character that is not a letter: U+200B."""
    if len(text) != 1 or (text.isalpha() and compatible(text) == text):
        return quote(text)
    return f"U+{ord(text):04X}"


# name: inclusive ranges; a later kind takes precedence
_RANGES = {
    "emoji": ((0x1F000, 0x1FAFF),),
    "compatibility ideograph": ((0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
    "radical": ((0x2E80, 0x2FDF),),
    "half-width kana": ((0xFF61, 0xFF9F),),
    "variation selector": ((0xFE00, 0xFE0F), (0xE0100, 0xE01EF)),
    "bidi mark": ((0x61C, 0x61C), (0x200E, 0x200F), (0x202A, 0x202E), (0x2066, 0x2069)),
    "zero-width": ((0xAD, 0xAD), (0x180E, 0x180E), (0x200B, 0x200D), (0x2060, 0x2064)),
    "byte-order mark": ((0xFEFF, 0xFEFF),),
    "U+FFFD": ((0xFFFD, 0xFFFD),),
}
_BY_CATEGORY = {
    "odd space": (b"Zs", b"Zl", b"Zp"),
    "other format": (b"Cf",),
    "unassigned": (b"Cn",),
    "private use": (b"Co",),
    "control": (b"Cc",),
}
_USUAL = "\t\n \u3000"
_UNIFIED = (0xFA0E, 0xFA0F, 0xFA11, 0xFA13, 0xFA14, 0xFA1F, 0xFA21, 0xFA23, 0xFA24, 0xFA27, 0xFA28, 0xFA29)
_CHARACTER_KINDS = ("", *_BY_CATEGORY, *_RANGES)

_NEXT = bytes(range(0x80, 0xC0)).decode("latin-1") + bytes(
    byte for byte in range(0x80, 0xA0) if byte not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
).decode("cp1252")
_MOJIBAKE = {
    "UTF-8 as Latin-1": f"(?:[ÂÃÐÑ][{_NEXT}]|[à-ï][{_NEXT}]{{2}}){{2,}}|[ÂÃ][{_NEXT}]|â€[{_NEXT}]?",
    "U+FFFD as GBK": "(?:锟斤拷)+|拷锟",
    "UTF-8 as GBK": "[锛銆鈥]+|涓€",
    "GBK as Latin-1": "(?:[²-¶¸-ÖØ-ö][¡-þ]){3,}",  # without ·, ×, ° and ±, which occur in rows in good text
}
_SIGNS = re.compile("|".join(f"({pattern})" for pattern in _MOJIBAKE.values()))
ODD_KINDS = (*_CHARACTER_KINDS[1:], *_MOJIBAKE)


def odd_characters(paragraphs: Paragraphs) -> Dict[str, Tally]:
    """Count odd characters and runs of mojibake by kind, of ODD_KINDS; a character may count as both."""
    whole = "\n".join(paragraphs.texts)
    kinds = _kind_of_character()[code_points(whole)]
    at = np.flatnonzero(kinds)
    ones = np.ones(len(at), dtype=np.int64)
    single = Findings(_CHARACTER_KINDS, kinds[at].astype(np.int64), at, ones, ones)
    signs = () if whole.isascii() else _SIGNS.finditer(whole)
    runs = [((found.lastindex or 0) - 1, found.start(), found.end() - found.start()) for found in signs]
    kinds_of_runs, starts, lengths = np.array(runs, dtype=np.int64).reshape(-1, 3).T
    several = Findings(tuple(_MOJIBAKE), kinds_of_runs, starts, lengths, lengths)
    return {**tally(paragraphs, single), **tally(paragraphs, several)}


@lru_cache(maxsize=1)
def _kind_of_character() -> np.ndarray:
    """Return the index in _CHARACTER_KINDS of every character, 0 if it is not odd: uint8 [0x110000]."""
    kinds = np.zeros(len(categories()), dtype=np.uint8)
    for name, members in _BY_CATEGORY.items():
        kinds[np.isin(categories(), members)] = _CHARACTER_KINDS.index(name)
    for name, ranges in _RANGES.items():
        for low, high in ranges:
            assigned = categories()[low : high + 1] != b"Cn"
            kinds[low : high + 1][assigned] = _CHARACTER_KINDS.index(name)
    kinds[list(_UNIFIED)] = 0  # unified ideographs within the compatibility block
    kinds[[ord(character) for character in _USUAL]] = 0
    return kinds
