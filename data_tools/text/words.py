"""Chinese words as the corpus stores them: the second and later characters of a word are '##X'.

    我爱北京，OK!   words 我 爱 北京 ， OK !   ids of   我 爱 北 ##京 ， ok !

Words and pieces are aligned by their offsets in the text, so [UNK], Latin and full-width text in
between cannot shift them. An id whose '##' twin is not in the vocabulary is kept.
"""

import logging
import os
import re
import sys
from functools import cache, lru_cache
from importlib import import_module
from typing import Callable, List, Sequence, Tuple

import numpy as np

from data_tools.files.errors import InputError
from data_tools.text.wordpiece import CJK_RANGES, END_OF_LETTERS, code_points, is_cjk

Segmenter = Callable[[str], List[str]]
SEGMENTERS = ("rjieba", "jieba", "lac")
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
    [vocab_size] is the vocabulary's. A piece is inside a word when the piece before it belongs to the same
    word.
    """
    word_of_piece = np.cumsum(begins, dtype=np.int32)[starts]
    inside = np.zeros(len(ids), dtype=bool)
    inside[1:] = word_of_piece[1:] == word_of_piece[:-1]
    twins = continuation_ids[ids]
    return np.where(inside & (twins >= 0), twins, ids)


def segmenter(name: str) -> Segmenter:
    """Return the segmenter ``name`` (rjieba, jieba, lac): text -> its words, whose concatenation is the text.

    The library is imported here and not before. Raises InputError if it is unknown or not installed.
    """
    if name not in SEGMENTERS:
        raise InputError(f"--cn_seg_func {name} is not known; choose one of {', '.join(SEGMENTERS)}")
    try:
        return _open_segmenter(name)
    except ImportError as error:
        # LAC requires the CPU build of Paddle, which must not be installed beside the present one.
        package = "--no-deps lac" if name == "lac" else name
        raise InputError(
            f"{name} is not installed ({error}); pip install {package}, or choose another --cn_seg_func"
        ) from None


@cache
def _open_segmenter(name: str) -> Segmenter:
    if name == "lac":
        return lac_segmenter()
    library = import_module(name)
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
    letters[:END_OF_LETTERS] = list(map(str.isalnum, map(chr, range(END_OF_LETTERS))))
    for low, high in CJK_RANGES:
        letters[low : high + 1] = False
    return letters


def in_one_word(before: str, after: str) -> bool:
    """Return whether two characters, side by side, would form one word of Latin letters or digits."""
    return after.isalnum() and before.isalnum() and not is_cjk(after) and not is_cjk(before)


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
        # Line by line: given many at once, Paddle 2.6 sometimes cuts them differently, or not at all.
        for segment in _SEGMENT.findall(text):
            words += run(segment) if segment != "\n" else ["\n"]
        if "".join(words) != text:
            raise InputError("lac alters the text that it cuts; choose another --cn_seg_func")
        return words

    return words_of
