"""Chinese words as the corpus stores them: the second and later characters of a word are '##X'.

    我爱北京，OK!   words 我 爱 北京 ， OK !   ids of   我 爱 北 ##京 ， ok !

Words and pieces meet by their places in the text, so [UNK], Latin and full-width text in between
cannot shift them. An id whose '##' twin is not in the vocabulary stays as it is.
"""

from functools import lru_cache
from typing import Callable, List, Sequence

import numpy as np

from data_tools.errors import InputError
from data_tools.wordpiece import is_cjk

Segmenter = Callable[[str], List[str]]


def mark_words(words: Sequence[str], ids: np.ndarray, starts: np.ndarray, twin_of: np.ndarray) -> np.ndarray:
    """int32[n]: ``ids`` with '##' twins inside the words, whose concatenation is the text.

    ``ids`` int32[n] and ``starts`` int32[n] are the pieces of that text in order (`WordPiece.pieces`),
    ``twin_of`` int32[vocab_size] is the vocabulary's. A piece is inside a word when the piece before
    it belongs to the same word.
    """
    word_of_character = np.repeat(np.arange(len(words)), np.fromiter(map(len, words), dtype=np.int64))
    word_of_piece = word_of_character[starts]
    inside = np.zeros(len(ids), dtype=bool)
    inside[1:] = word_of_piece[1:] == word_of_piece[:-1]
    twins = twin_of[ids]
    return np.where(inside & (twins >= 0), twins, ids)


def segmenter(name: str) -> Segmenter:
    """text -> its words, whose concatenation is the text. ``name`` is rjieba or jieba.

    The library is imported here and not before. Raises InputError: unknown name, not installed.
    """
    makers = {"rjieba": _rjieba, "jieba": _jieba}
    if name not in makers:
        raise InputError(f"--cn_seg_func {name} is not known; choose one of {', '.join(makers)}")
    try:
        return makers[name]()
    except ImportError:
        raise InputError(f"{name} is not installed; pip install {name}, or choose another") from None


@lru_cache(maxsize=1)
def _rjieba() -> Segmenter:
    import rjieba

    return rjieba.cut


@lru_cache(maxsize=1)
def _jieba() -> Segmenter:
    import logging

    import jieba

    jieba.setLogLevel(logging.WARNING)
    return jieba.lcut


def presegmented(separator: str) -> Segmenter:
    """Text whose words stand apart by ``separator`` -> words whose concatenation is plain text.

    '我 爱 deep learning' -> ['我', '爱', 'deep', ' ', 'learning']: Chinese is written without spaces,
    two words of Latin letters or digits keep one between them.
    """

    def split(text: str) -> List[str]:
        words: List[str] = []
        # The comparison answers for nearly every word, and quicker than a call would.
        for word in filter(None, text.split(separator)):
            if words and not "\u4e00" <= word[0] <= "\u9fff" and in_one_word(words[-1][-1], word[0]):
                words.append(" ")
            words.append(word)
        return words

    return split


def in_one_word(before: str, after: str) -> bool:
    """Would the two characters, side by side, be of one word of Latin letters or digits?"""
    return not is_cjk(after) and after.isalnum() and before.isalnum() and not is_cjk(before)
