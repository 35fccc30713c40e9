"""Find characters that pretraining text should not contain, and runs that a wrong encoding left behind.

Mojibake is found by its characters: UTF-8 bytes decoded as Latin-1 or Windows-1252 ("Ã©", "â€œ"), the
characters that the first bytes of Chinese punctuation become in GBK ("锛", "銆", "鈥"), GBK decoded as
Latin-1 ("ÖÐÎÄ"), and U+FFFD decoded as GBK ("锟斤拷"). A match is a sign, not a proof: read the examples.
Which characters are unassigned depends on the Unicode version of this Python.
"""

import re
from functools import lru_cache
from typing import Dict

import numpy as np

from data_tools.audit.paragraphs import Paragraphs, categories, code_points
from data_tools.audit.tally import Findings, Tally, tally

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
    """Count odd characters and runs of mojibake by kind, of ODD_KINDS.

    A character of mojibake may also be odd on its own and is then counted twice.
    """
    whole = "\n".join(paragraphs.texts)
    kinds = _kind_of_character()[code_points(whole)]
    at = np.flatnonzero(kinds)
    ones = np.ones(len(at), dtype=np.int64)
    single = Findings(_CHARACTER_KINDS, kinds[at].astype(np.int64), at, ones, ones)
    runs = [(found.lastindex - 1, found.start(), found.end() - found.start()) for found in _find(whole)]
    signs, starts, lengths = np.array(runs, dtype=np.int64).reshape(-1, 3).T
    several = Findings(tuple(_MOJIBAKE), signs, starts, lengths, lengths)
    return {**tally(paragraphs, single), **tally(paragraphs, several)}


def _find(whole: str):
    return () if whole.isascii() else _SIGNS.finditer(whole)


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
