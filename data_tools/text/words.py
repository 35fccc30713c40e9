"""Chinese words as the corpus stores them: the second and later characters of a word are '##X'.

    我爱北京，OK!   words 我 爱 北京 ， OK !   ids of   我 爱 北 ##京 ， ok !

Words and pieces are aligned by their offsets in the text, so [UNK], Latin and full-width text in
between cannot shift them. An id whose '##' twin is not in the vocabulary is kept.

A `Lexicon` has the user's own words, which no segmenter splits; neither case nor full or half width makes a
difference. In its file a word or phrase per line, then, if wanted, TAB and its kind, TAB and its weight:

    北京大学<TAB>entity<TAB>2.5       one word
    自然语言处理                       one word: a phrase, which is the kind of a bare line
    甲乙<TAB>character                 two words of one character each
"""

import logging
import math
import os
import re
import sys
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple, Union

import numpy as np

from data_tools.dataset_utils import LEVELS, MAX_MARKS
from data_tools.text.characters import categories, is_letter_or_digit
from data_tools.text.text_files import decoded, read_lines, say_once
from data_tools.text.wordpiece import CJK_RANGES, END_OF_LETTERS, code_points, is_cjk
from ernie_pair.core.errors import InputError
from ernie_pair.core.installation import raise_interrupt

Segmenter = Callable[[str], List[str]]
GivenWords = Callable[[str], Tuple[str, np.ndarray]]


def word_begins(words: Sequence[str]) -> np.ndarray:
    """Return where in the concatenation of ``words`` one begins or the last ends: bool [characters + 1]."""
    ends = np.cumsum(np.fromiter(map(len, words), dtype=np.int64, count=len(words)))
    begins = np.zeros(ends[-1] + 1 if len(ends) else 1, dtype=bool)
    begins[0] = begins[ends] = True
    return begins


def mark_words(
    begins: np.ndarray, ids: np.ndarray, starts: np.ndarray, continuation_ids: np.ndarray
) -> np.ndarray:
    """Replace ids inside the words of a text with continuation ids ('##' twins): int32 [n].

    ``begins`` bool [characters + 1]: where words begin (`word_begins`). ``ids`` int32 [n] and ``starts``
    int32 [n] are the pieces of that text in order (`WordPiece.tokenize`), ``continuation_ids`` int32
    [vocab_size] is the vocabulary's. A piece is inside a word that the piece before it belongs to.
    """
    word_of_piece = np.cumsum(begins, dtype=np.int32)[starts]
    inside = np.zeros(len(ids), dtype=bool)
    inside[1:] = word_of_piece[1:] == word_of_piece[:-1]
    twins = continuation_ids[ids]
    return np.where(inside & (twins >= 0), twins, ids)


@cache
def segmenter(name: str) -> Segmenter:
    """Return the segmenter ``name`` (rjieba, jieba, lac): text -> its words, whose concatenation is the text.

    The library is imported here and not before. Raises InputError if it is not installed.
    """
    try:
        if name == "lac":
            return lac_segmenter()
        library = import_module(name)
    except ImportError as error:
        raise_interrupt(error)
        # LAC requires the CPU build of Paddle, which must not be installed beside the present one.
        package = "--no-deps lac" if name == "lac" else name
        raise InputError(
            f"{name} is not installed ({error}); pip install {package}, or choose another --cn_seg_func"
        ) from None

    if name == "rjieba":
        return library.cut
    library.setLogLevel(logging.WARNING)
    return library.lcut


def presegmented(separator: str) -> GivenWords:
    """Return a reader of text whose words are separated by ``separator``.

    It returns the plain text, and where its words begin, bool [characters + 1]. '我 爱 deep learning' ->
    '我爱deep learning', with the words 我, 爱, deep, a space, learning: Chinese is written without spaces,
    two words of Latin letters or digits on a line keep one between them. A line end is a word.
    """

    def split(text: str) -> Tuple[str, np.ndarray]:
        mark = separator  # a single character in place of each separator
        if len(separator) > 1 or separator == "\n":
            mark = next(c for c in map(chr, range(0xE000, 0xF900)) if c not in text)
            text = text if "\n" in separator else text.replace(separator, mark)
        points = code_points(text)
        kept = np.flatnonzero(points != ord(mark))
        points = points[kept]
        line_ends, letters = points == ord("\n"), _letters()[points]
        begins = np.diff(kept, prepend=-1) > 1  # a separator precedes it
        spaced = np.zeros(len(points), dtype=bool)
        spaced[1:] = begins[1:] & letters[1:] & letters[:-1]
        begins |= line_ends
        begins[1:] |= line_ends[:-1]
        begins[:1] = True
        places = np.flatnonzero(spaced)
        plain = np.insert(points, places, ord(" ")).tobytes().decode("utf-32-le", "surrogatepass")
        return plain, np.append(np.insert(begins, places, True), True)

    return split


@lru_cache(maxsize=1)
def _letters() -> np.ndarray:
    """Return which characters Latin words and numbers are made of: bool [0x110000]."""
    letters = np.zeros(0x110000, dtype=bool)
    letters[:END_OF_LETTERS] = np.isin(categories()[:END_OF_LETTERS].astype("S1"), (b"L", b"N"))
    for low, high in CJK_RANGES:
        letters[low : high + 1] = False
    return letters


def in_one_word(before: str, after: str) -> bool:
    """Return whether two characters, side by side, would form one word of Latin letters or digits."""
    return (
        is_letter_or_digit(after) and is_letter_or_digit(before) and not is_cjk(after) and not is_cjk(before)
    )


_SEGMENT = re.compile(r"[^\n]{1,10000}|\n")  # memory: 1 KB a character


def lac_segmenter() -> Callable[[str], List[str]]:
    """Return the segmenter of LAC: text -> its words, whose concatenation is the text.

    A line end is a word, a very long line is cut. Raises ImportError if LAC or Paddle is missing.
    The segmenter raises InputError if LAC alters the text.
    """
    os.environ.update(GLOG_minloglevel="2")  # Paddle's C++ warns of the deprecated way in which LAC starts it
    # LAC imports paddle.base under its older name paddle.fluid.
    base = import_module("paddle.base")
    names = {"paddle.fluid": base, "paddle.fluid.core": base.core}
    sys.modules.update(names)
    try:
        from LAC import LAC
    finally:
        for name in names:
            del sys.modules[name]
    run = LAC(mode="seg").run

    def words_of(text: str) -> List[str]:
        words: List[str] = []
        # Line by line: given many at once, Paddle sometimes cuts them differently, or not at all.
        for segment in _SEGMENT.findall(text):
            words += run(segment) if segment != "\n" else ["\n"]
        if "".join(words) != text:
            raise InputError("lac alters the text that it cuts; choose another --cn_seg_func")
        return words

    return words_of


_FULL_WIDTH = re.compile("[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a]")
_BEGIN = 3  # leading characters by which a word is looked up
_SPREAD = np.uint32(0x9E3779B1)


class LexiconEntry(NamedTuple):
    """The kind and weight of a word; the weight is its relative probability of being masked."""

    kind: str = "phrase"
    weight: float = 1.0


# What follows a word in jieba's form: a frequency, perhaps with a tag, or a tag behind a Chinese word.
_OF_JIEBA = re.compile(r" +[0-9]+(?: +[a-z]+)? *$|(?<=[^\x00-\x7f]) +[a-z]{1,4} *$")
_FREQUENCY = re.compile(r"[^\x00-\x7f] +[0-9]+(?: +[a-z]+)? *$")


class Found(NamedTuple):
    """A word of the lexicon in a text: text[start:end]."""

    start: int
    end: int
    entry: LexiconEntry


class Lexicon:
    """The words of ``entries``, to be found in texts; ``marks``: the distinct entries, in their order."""

    def __init__(self, entries: Dict[str, LexiconEntry]):
        self.entries = {_folded(word): entry for word, entry in entries.items()}
        self.marks = list(dict.fromkeys(self.entries.values()))
        lengths: Dict[str, set] = {}
        for word in self.entries:
            lengths.setdefault(word[:2], set()).add(len(word))
        self._lengths = {begin: sorted(known, reverse=True) for begin, known in lengths.items()}
        self._shift = 32 - min(26, max(16, (16 * len(self.entries)).bit_length()))
        # {length: bool, by code: whether words of that length (_BEGIN: or of more) begin with it}.
        self._may_begin = {}
        for length in {min(len(word), _BEGIN) for word in self.entries}:
            begins = {w[:length] for w in self.entries if len(w) == length or len(w) > length == _BEGIN}
            points = np.array([code_points(begin) for begin in begins])
            table = self._may_begin[length] = np.zeros(1 << (32 - self._shift), dtype=bool)
            table[_codes(list(points.T)) >> self._shift] = True

    @classmethod
    def from_file(cls, path: Union[str, Path]) -> "Lexicon":
        """Read a lexicon; see this module. Raises InputError with file:line for a wrong entry."""
        path = Path(path)
        if not path.is_file():
            raise InputError(f"{path}: no such file; fix --user_lexicon")
        entries: Dict[str, LexiconEntry] = {}
        lines: Dict[str, int] = {}
        texts = [decoded(str(path), number, line) for number, line in enumerate(read_lines(path), start=1)]
        of_jieba = _is_of_jieba(texts)
        if of_jieba:
            say_once(
                f"{path}: a lexicon in jieba's form: its words are used, and frequencies and tags are not"
            )
        for number, text in enumerate(texts, start=1):
            if not text.strip():
                continue
            word, entry = _parsed(text, f"{path}:{number}", of_jieba)
            if entries.setdefault(word, entry) != entry:
                raise InputError(
                    f"{path}:{number}: {word} has another kind or weight in line {lines[word]}; keep one"
                )
            lines.setdefault(word, number)
        if not entries:
            raise InputError(f"{path}: no words; write one per line, or leave --user_lexicon out")
        lexicon = cls(entries)
        if len(lexicon.marks) > MAX_MARKS:
            raise InputError(
                f"{path}: {len(lexicon.marks)} different pairs of kind and weight, above {MAX_MARKS}; "
                "round the weights"
            )
        return lexicon

    def find(self, text: str) -> List[Found]:
        """Return the words in ``text``: from the left, the longest at each position, without overlap.

        A word of letters or digits is found only as a whole, not inside a longer one.
        """
        folded, found, free = _folded(text), [], 0
        for start in self._candidates(folded).tolist():
            end = self._longest_end(folded, start) if start >= free else 0
            if end:
                found.append(Found(start, end, self.entries[folded[start:end]]))
                free = end
        return found

    def keep_whole(self, begins: np.ndarray, found: Sequence[Found]) -> None:
        """Make each of ``found`` one word: ``begins`` (`word_begins`), bool [S + 1], is changed in place."""
        for start, end, entry in found:
            begins[start] = begins[end] = True
            begins[start + 1 : end] = entry.kind == "character"

    def find_marks(self, starts: np.ndarray, found: Sequence[Found]) -> np.ndarray:
        """Return the mark of each piece of a text: uint8 [pieces].

        It is k if the piece belongs to a word whose entry is ``self.marks[k - 1]``, otherwise 0. ``starts``
        int32 [pieces]: where in the text each begins.
        """
        numbers = {entry: number for number, entry in enumerate(self.marks, start=1)}
        columns = [(start, end, numbers[entry]) for start, end, entry in found]
        firsts, ends, marks = np.array([(-1, -1, 0), *columns]).T
        last = np.searchsorted(firsts, starts, side="right") - 1
        return np.where(starts < ends[last], marks[last], 0).astype(np.uint8)

    def _candidates(self, folded: str) -> np.ndarray:
        """Return where a word may begin, ascending; some are false, because words share codes."""
        points = code_points(folded)
        fits = np.zeros(len(points), dtype=bool)
        for length, table in self._may_begin.items():
            count = max(0, len(points) - length + 1)
            codes = _codes([points[place : place + count] for place in range(length)])
            fits[:count] |= table[codes >> self._shift]
        return np.flatnonzero(fits)

    def _longest_end(self, folded: str, start: int) -> int:
        """Return where the longest word at ``start`` ends, 0 when none begins there."""
        begin = folded[start : start + 2]
        for length in (*self._lengths.get(begin, ()), *self._lengths.get(begin[0], ())):
            end = start + length
            if end <= len(folded) and folded[start:end] in self.entries:
                before = start > 0 and in_one_word(folded[start - 1], folded[start])
                after = end < len(folded) and in_one_word(folded[end - 1], folded[end])
                if not before and not after:
                    return end
        return 0


def _is_of_jieba(lines: Sequence[str]) -> bool:
    """Return whether lines are WORD FREQUENCY TAG, with blanks, as jieba's user dictionaries are."""
    filled = [line for line in lines if line.strip()]
    marked = [line for line in filled if _OF_JIEBA.search(line)]
    has_frequency = any(map(_FREQUENCY.search, filled))
    return has_frequency and not any("\t" in line for line in filled) and 2 * len(marked) >= len(filled)


def _parsed(text: str, where: str, of_jieba: bool = False) -> Tuple[str, LexiconEntry]:
    text = _OF_JIEBA.sub("", text) if of_jieba else text
    word, *rest = (column.strip() for column in text.split("\t"))
    if not word or len(rest) > 2:
        raise InputError(f"{where}: not a word, TAB kind, TAB weight; fix the line")
    last = word.split()[-1]
    if not rest and last != word and last in LEVELS:  # "machine learning" is a word; "网点 entity" is none
        raise InputError(f"{where}: a blank before '{last}'; put a TAB between a word and its kind")
    kind = rest[0] if rest and rest[0] else LexiconEntry().kind
    if kind not in LEVELS:
        raise InputError(f"{where}: the kind '{kind[:60]}' is not known; write {', '.join(LEVELS)}")
    weight = LexiconEntry().weight
    if len(rest) == 2:
        try:
            weight = float(rest[1])
        except ValueError:
            weight = math.nan
        if not 0 <= weight < math.inf:
            raise InputError(f"{where}: the weight '{rest[1][:60]}' is not a number of 0 or more; fix it")
    return _folded(word), LexiconEntry(kind, weight)


def _folded(text: str) -> str:
    """Fold case and width of ``text``, character by character, so that all offsets are kept."""
    # str.lower makes two characters of \u0130, and depends on whether a sigma ends its word.
    parts = text.replace("\u03a3", "\u03c3").replace("\u03c2", "\u03c3").split("\u0130")
    lower = "\u0130".join(map(str.lower, parts))
    return _FULL_WIDTH.sub(lambda match: chr(ord(match.group()) - 0xFEE0), lower)


def _codes(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return a number for the characters in each row of ``columns``: uint32 [n]."""
    codes = np.zeros(len(columns[0]), dtype=np.uint32)
    for points in columns:
        codes = (codes + points) * _SPREAD
    return codes
