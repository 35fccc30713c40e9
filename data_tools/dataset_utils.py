"""Masking: the one function to read, or to replace, when the masks should be others.

Ids come as the corpus stores them: inside a word of several characters, the second character and
the ones after it carry their `##` twin. The twins say where words go on; the model never sees them
on Chinese characters, neither in its input nor as a label.
"""

from dataclasses import dataclass
from typing import List, NamedTuple

import numpy as np

REPLACE_BY_MASK, REPLACE_BY_RANDOM = 0.8, 0.1


@dataclass(frozen=True)
class MaskingRule:
    """What masking needs to know of the vocabulary, and how much to mask.

    ``plain_of``: int [V], the id that the model sees for each id (the character of a `##` twin, else
    itself). ``goes_on``: bool [V], whether an id continues the word before it. ``random_ids``: int
    [R], the ids that a random replacement may draw. ``masked_lm_prob``: the share of the tokens to
    mask, [CLS] and [SEP] counted. n-grams of 1..``max_ngrams`` words are drawn with p(n) ~ 1/n,
    reversed by ``favor_longer_ngram``.
    """

    cls_id: int
    sep_id: int
    mask_id: int
    plain_of: np.ndarray
    goes_on: np.ndarray
    random_ids: np.ndarray
    masked_lm_prob: float = 0.15
    max_ngrams: int = 3
    favor_longer_ngram: bool = False


class MaskedTokens(NamedTuple):
    """``ids``: [S] what the model reads; ``positions``: [M] ascending; ``labels``: [M] what stood there."""

    ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray


def create_masked_lm_predictions(
    tokens: np.ndarray, rule: MaskingRule, rng: np.random.Generator
) -> MaskedTokens:
    """Hide whole words until ``rule.masked_lm_prob`` of the tokens are hidden, at least one.

    ``tokens``: [S] corpus ids with [CLS] and [SEP] in place. A hidden token becomes [MASK] 80% of the
    time, a random id 10%, itself 10%, each token on its own. n-grams never cross a [SEP].
    """
    chosen = _choose_positions(tokens, rule, rng)
    plain = rule.plain_of[tokens]
    labels = plain[chosen]
    draw = rng.random(len(chosen))
    random_ids = rule.random_ids[rng.integers(len(rule.random_ids), size=len(chosen))]
    plain[chosen] = np.select(
        [draw < REPLACE_BY_MASK, draw < REPLACE_BY_MASK + REPLACE_BY_RANDOM],
        [rule.mask_id, random_ids],
        labels,
    )
    return MaskedTokens(plain, chosen, labels)


def _choose_positions(tokens: np.ndarray, rule: MaskingRule, rng: np.random.Generator) -> np.ndarray:
    """Where to hide: words in random order, each the head of an n-gram, as long as the budget lasts."""
    starts, ends, last_word = word_spans(tokens, rule)
    if not len(starts):
        return np.empty(0, np.int64)
    budget = max(1, round(rule.masked_lm_prob * len(tokens)))
    order = rng.permutation(len(starts)).tolist()
    sizes = _draw_ngrams(rule, len(starts), rng).tolist()
    chosen = choose_words(starts.tolist(), ends.tolist(), last_word.tolist(), order, sizes, budget)
    return np.concatenate([np.arange(starts[word], ends[word]) for word in sorted(chosen)])


def word_spans(tokens: np.ndarray, rule: MaskingRule) -> tuple:
    """Words as (starts [W], ends [W], last word of the segment [W]); [CLS] and [SEP] are in none.

    A continuation that stands first in its segment, its word cut away, begins a word.
    """
    special = (tokens == rule.cls_id) | (tokens == rule.sep_id)
    inside = ~special
    after_special = np.concatenate([[True], special[:-1]])
    begins = inside & (~rule.goes_on[tokens] | after_special)
    starts = np.flatnonzero(begins)
    stops = np.flatnonzero(begins | special)
    ends = np.append(stops, len(tokens))[np.searchsorted(stops, starts, side="right")]
    segment = np.cumsum(special)[starts]
    last_word = np.searchsorted(segment, segment, side="right") - 1
    return starts, ends, last_word


def choose_words(
    starts: List[int], ends: List[int], last_word: List[int], order: List[int], sizes: List[int], budget: int
) -> List[int]:
    """Walk the words in ``order``; take each with the ``sizes`` - 1 words after it that fit.

    An n-gram stops at its segment's ``last_word``, at a word already taken, and where the budget
    of tokens ends. When not even one word fits, the shortest in ``order`` is taken.
    """
    taken = [False] * len(starts)
    chosen: List[int] = []
    left = budget
    for word, size in zip(order, sizes):
        for inner in range(word, min(word + size - 1, last_word[word]) + 1):
            length = ends[inner] - starts[inner]
            if taken[inner] or length > left:
                break
            taken[inner] = True
            chosen.append(inner)
            left -= length
        if left == 0:
            break
    return chosen or [min(order, key=lambda word: ends[word] - starts[word])]


def _draw_ngrams(rule: MaskingRule, count: int, rng: np.random.Generator) -> np.ndarray:
    chances = 1.0 / np.arange(1, rule.max_ngrams + 1)
    if rule.favor_longer_ngram:
        chances = chances[::-1]
    borders = np.cumsum(chances / chances.sum())[:-1]
    return 1 + np.searchsorted(borders, rng.random(count), side="right")
