"""Which tokens n-grams consist of, and an n-gram as one number."""

from typing import NamedTuple

import numpy as np

from data_tools.text.folder_tokenizer import AnyTokenizer

KEY_BITS = 63  # of an int64


class NgramTokens(NamedTuple):
    """A vocabulary of V tokens as n-grams see it.

    ``base_ids``: int64 [V], the id that the model reads for each id: X for the `##X` of a Chinese character.
    ``continues``: bool [V], the ids that continue a word of several pieces, which no n-gram cuts.
    ``countable``: bool [V], the ids that n-grams may contain: no control tokens, no punctuation.
    """

    base_ids: np.ndarray
    continues: np.ndarray
    countable: np.ndarray

    @property
    def size(self) -> int:
        """Return V."""
        return len(self.base_ids)


def ngram_tokens(tokenizer: AnyTokenizer) -> NgramTokens:
    """Return the vocabulary of ``tokenizer`` as n-grams see it."""
    base_ids = np.asarray(tokenizer.base_ids, np.int64)
    continues = tokenizer.is_continuation & (base_ids == np.arange(len(base_ids)))
    countable = np.array([_is_countable(token) for token in tokenizer.tokens], bool)
    return NgramTokens(base_ids, continues, countable)


def _is_countable(token: str) -> bool:
    is_control = len(token) > 2 and token.startswith("[") and token.endswith("]")
    return not is_control and any(character.isalnum() for character in token)


def longest_countable(vocab_size: int) -> int:
    """Return the maximum tokens of an n-gram for its key to fit an int64."""
    return int(KEY_BITS // np.log2(max(2, vocab_size)))


def window_keys(plain: np.ndarray, length: int, vocab_size: int) -> np.ndarray:
    """Return the keys of the windows of ``length`` ids in ``plain``, int64 [S]: int64 [S - length + 1].

    The ids are the digits of a number of base ``vocab_size``.
    """
    windows = max(0, len(plain) - length + 1)
    keys = np.zeros(windows, np.int64)
    for place in range(length):
        keys = keys * vocab_size + plain[place : place + windows]
    return keys


def uncut_windows(continues: np.ndarray, length: int) -> np.ndarray:
    """Return which windows of ``length`` tokens begin and end with words: bool [S - length + 1].

    ``continues``: bool [S], of the tokens.
    """
    windows = max(0, len(continues) - length + 1)
    cut_after = np.append(continues[length:], False)[:windows]
    return ~continues[:windows] & ~cut_after


def ids_of_key(key: int, length: int, vocab_size: int) -> tuple:
    """Return the ids that ``key`` was made of."""
    ids = []
    for _ in range(length):
        key, last = divmod(key, vocab_size)
        ids.append(last)
    return tuple(reversed(ids))
