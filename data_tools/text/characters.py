"""The classes of characters and their other forms, of one version of Unicode on every Python.

The module unicodedata of Python 3.10 knows Unicode 13, that of 3.13 knows 15.1; what it does not know has no
class, no lower case and no parts there. Here the classes are a table, written by scripts/character_table.py.
The lower case and the parts of an assigned character never change, as Unicode promises: Python says them, and
the table those of what came after Unicode 13. No other module asks Python for classes or forms.
"""

import gzip
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict
from unicodedata import normalize

import numpy as np

TABLE = Path(__file__).with_name("characters.json.gz")


@lru_cache(maxsize=1)
def _table() -> Dict[str, Any]:
    return json.loads(gzip.decompress(TABLE.read_bytes()))


def unicode_version() -> str:
    """Return the version of Unicode that the classes are of."""
    return _table()["unicode"]


@lru_cache(maxsize=1)
def categories() -> np.ndarray:
    """Return the category of every character, b"Lu" for example: S2 [0x110000]."""
    return np.repeat(np.array(_table()["categories"].split(), dtype="S2"), _table()["lengths"])


def category(character: str) -> str:
    """Return the category of a character, "Lu" for example."""
    return categories()[ord(character)].decode()


def is_letter_or_digit(character: str) -> bool:
    """Return whether a character is a letter or a number."""
    return category(character)[0] in "LN"


def lowered(text: str) -> str:
    """Return ``text`` in lower case, as `str.lower` of the newest Python: a last sigma of a word is ς."""
    return _known("lower", text).lower()


def decomposed(text: str) -> str:
    """Return ``text`` with each character in its canonical parts, é as e and an accent: NFD."""
    return normalize("NFD", _known("canonical", text))


def compatible(text: str) -> str:
    """Return ``text`` with full-width letters, ligatures and their like as plain characters: NFKC."""
    return _known("compatible", normalize("NFKC", _known("compatible", text)))  # which composes later ones


def in_canonical_order(text: str) -> str:
    """Return decomposed ``text`` without accents (Mn) with the other marks in the order of Unicode."""
    marks = _table()["marks"]
    if text.isascii() or marks.keys().isdisjoint(text):
        return text
    ordered, run = [], []
    for character in f"{text}\n":
        if character in marks:
            run.append(character)
            continue
        ordered += [*sorted(run, key=marks.__getitem__), character]
        run = []
    return "".join(ordered[:-1])


def _known(form: str, text: str) -> str:
    """Return ``text`` with the characters later than the oldest Python's in another form."""
    if text.isascii():
        return text
    return _later(form).sub(lambda found: _table()[form][found[0]], text)


@lru_cache(maxsize=3)
def _later(form: str) -> "re.Pattern[str]":
    return re.compile(f"[{''.join(_table()[form])}]")
