"""The language of a paragraph and, for Chinese, its script.

Paragraphs mostly of Han characters, kana or Hangul are zh, ja or ko by their script: `py3langid` takes 77 of
2000 lines of Lu Xun for Japanese, Vietnamese or English, nearly all of them short ("七月二十八日。"). It
decides for the other paragraphs, among LANGUAGES; one of fewer than SHORTEST letters is only called "short".

The script comes from `hanzidentifier`, which knows the characters of CC-CEDICT: those that are only
traditional (說), only simplified (说) or both (我). A paragraph with both of the first two is mixed.
"""

import unicodedata
from functools import lru_cache
from typing import Dict, NamedTuple, Tuple

import numpy as np

from data_tools.audit.paragraphs import Paragraphs, code_points, starts_of
from data_tools.audit.tally import Findings, Tally, tally
from data_tools.base.optional_import import import_optional

LANGUAGES = (
    *("zh", "ja", "ko"),  # a paragraph may hold them among more Latin letters
    *("en", "de", "fr", "es", "it", "pt", "nl", "pl", "sv", "tr", "vi", "id", "ms", "tl"),
    *("ru", "uk", "kk", "mn", "ar", "fa", "ug", "hi", "th", "el", "he"),
)
SHORTEST = 20  # letters
SCRIPTS = ("simplified", "traditional", "mixed", "either", "no Han")
HANZI = ("traditional only", "simplified only", "both")
_LONGEST = 1000  # characters that are enough to tell the language
_NO_LETTERS, _SHORT = "no letters", "short"
_NAMES = (_NO_LETTERS, _SHORT, *LANGUAGES)

_NO_LETTER, _HAN, _KANA, _HANGUL, _LATIN, _OTHER = range(6)
_WEIGHTS = np.array([0, 3, 3, 3, 1, 2])  # roughly its UTF-8 bytes: how much a letter says
_BEGINNINGS = (
    ("CJK", _HAN),
    ("IDEOGRAPHIC", _HAN),
    ("HIRAGANA", _KANA),
    ("KATAKANA", _KANA),
    ("HANGUL", _HANGUL),
    ("LATIN", _LATIN),
)
_LETTERS_END = 0x33480  # no letters from here on


class Writing(NamedTuple):
    """The languages and scripts of a batch of paragraphs.

    ``hanzi``: counts by HANZI; ``traditional``: counts of the characters that are only traditional.
    """

    languages: Dict[str, Tally]
    scripts: Dict[str, Tally]
    hanzi: Dict[str, int]
    traditional: Dict[str, int]


def writing_of(paragraphs: Paragraphs, is_empty: np.ndarray) -> Writing:
    """Identify the language and the script of each of n paragraphs, and count them.

    ``is_empty``: bool [n], the paragraphs to leave out.
    """
    points = code_points("\n".join([*paragraphs.texts, ""]))
    starts = starts_of(paragraphs.texts)
    rows = np.repeat(np.arange(len(paragraphs.texts)), np.diff(starts))
    hanzi = _hanzi()[points]
    by_hanzi = _count(rows, hanzi, len(paragraphs.texts), len(HANZI) + 1)
    languages = _languages(paragraphs, _count(rows, _letters()[points], len(paragraphs.texts), 6))
    full = np.flatnonzero(~is_empty)
    begins, lengths, nothing = starts[full], np.diff(starts)[full] - 1, np.zeros(len(full), np.int64)
    traditional_at = np.flatnonzero(hanzi == 1)
    shown_at, is_marked = _first_of(traditional_at, rows, starts)
    only = np.unique(points[traditional_at], return_counts=True)
    scripts = Findings(SCRIPTS, _scripts(by_hanzi)[full], shown_at[full], is_marked[full], lengths)
    return Writing(
        tally(paragraphs, Findings(_NAMES, languages[full], begins, nothing, lengths)),
        tally(paragraphs, scripts),
        dict(zip(HANZI, by_hanzi.sum(axis=0).tolist()[1:])),
        {chr(point): count for point, count in zip(*(column.tolist() for column in only))},
    )


def _first_of(places: np.ndarray, rows: np.ndarray, starts: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Return for each row the first of ``places`` in it and 1, or the row's beginning and 0; int64."""
    row, index = np.unique(rows[places], return_index=True)
    first, found = starts[:-1].copy(), np.zeros(len(starts) - 1, dtype=np.int64)
    first[row], found[row] = places[index], 1
    return first, found


def _count(rows: np.ndarray, kinds: np.ndarray, num_rows: int, num_kinds: int) -> np.ndarray:
    """Count each kind in each row: int64 [rows, kinds]."""
    counts = np.bincount(rows * num_kinds + kinds, minlength=num_rows * num_kinds)
    return counts.reshape(num_rows, num_kinds)


def _scripts(by_hanzi: np.ndarray) -> np.ndarray:
    """Return `hanzidentifier.identify` of each paragraph: int64 [rows], indices into SCRIPTS."""
    traditional, simplified, both = (by_hanzi[:, column] > 0 for column in (1, 2, 3))
    cases = [traditional & simplified, traditional, simplified, both]
    return np.select(cases, [2, 1, 0, 3], default=4)


def _languages(paragraphs: Paragraphs, by_letter: np.ndarray) -> np.ndarray:
    """Identify the language of each paragraph: int64 [rows], indices into _NAMES."""
    han, kana, hangul = by_letter[:, _HAN], by_letter[:, _KANA], by_letter[:, _HANGUL]
    num_letters = by_letter[:, 1:].sum(axis=1)
    weights = by_letter * _WEIGHTS
    is_eastern = 2 * weights[:, _HAN : _HANGUL + 1].sum(axis=1) >= weights.sum(axis=1)
    names = np.select(
        [num_letters == 0, is_eastern & (hangul > han + kana), is_eastern & (3 * kana > han), is_eastern],
        [_NAMES.index(name) for name in (_NO_LETTERS, "ko", "ja", "zh")],
        default=_NAMES.index(_SHORT),
    )
    for row in np.flatnonzero(~is_eastern & (num_letters >= SHORTEST)).tolist():
        text = unicodedata.normalize("NFKC", paragraphs.texts[row][:_LONGEST])
        name, _ = _identifier().classify(text)
        names[row] = _NAMES.index(name)
    return names


@lru_cache(maxsize=1)
def _identifier():
    langid = import_optional("py3langid.langid", "audit")
    identifier = langid.LanguageIdentifier.from_pickled_model(langid.MODEL_FILE)
    identifier.set_languages(LANGUAGES)
    return identifier


@lru_cache(maxsize=1)
def _letters() -> np.ndarray:
    """Return the kind of letter of each character: uint8 [0x110000]."""
    letters = np.zeros(0x110000, dtype=np.uint8)
    for point in range(_LETTERS_END):
        if unicodedata.category(chr(point))[0] == "L":
            letters[point] = _letter(unicodedata.name(chr(point), ""))
    return letters


def _letter(name: str) -> int:
    for width in ("FULLWIDTH ", "HALFWIDTH "):
        name = name[len(width) :] if name.startswith(width) else name
    return next((letter for beginning, letter in _BEGINNINGS if name.startswith(beginning)), _OTHER)


@lru_cache(maxsize=1)
def _hanzi() -> np.ndarray:
    """Return 1 + the index in HANZI of each Han character, 0 for any other: uint8 [0x110000]."""
    library = import_optional("hanzidentifier", "audit")
    places = {library.TRADITIONAL: 1, library.SIMPLIFIED: 2, library.BOTH: 3}
    hanzi = np.zeros(0x110000, dtype=np.uint8)
    for point in np.flatnonzero(_letters() == _HAN).tolist():
        hanzi[point] = places.get(library.identify(chr(point)), 0)
    return hanzi
