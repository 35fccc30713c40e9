"""Masking: the one function to read or to replace for a different masking.

Ids come as the corpus stores them: in a word of several characters, the second and later ones are
the ids of their `##` twins. The twins mark where words continue; the model never sees those of
Chinese characters, neither in its input nor as a label.

Words are of ERNIE's three levels (Sun et al., "ERNIE: Enhanced representation through knowledge
integration", 2019): character, phrase, entity. A lexicon's marks give the level and the weight of a
word; without a lexicon a word of one token is a character, a longer one a phrase.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import List, NamedTuple, Optional, Tuple

import numpy as np

from ernie_pair.core.installation import raise_interrupt

try:
    from data_tools._helpers import hide_words as compiled_hide_words  # from helpers.cpp, by setup.py
except ImportError as error:
    raise_interrupt(error)
    compiled_hide_words = None  # type: ignore[assignment]  # not compiled: its Python twin is used

MASK_BELOW, RANDOM_BELOW = 0.8, 0.8 + 0.1  # of a uniform draw; above both the token is kept
GEOMETRIC_STOP = 0.2
LEVELS = ("character", "phrase", "entity")
CHARACTER, PHRASE = 0, 1
MAX_MARKS = 255  # of a lexicon: a mark is a byte


@dataclass(frozen=True)
class MaskingRule:
    """The vocabulary as masking sees it, and how much to mask.

    ``base_ids``: int64 [V], the base id that the model sees for each id (the character of a `##` twin, else
    itself). ``goes_on``: bool [V], whether an id continues the word before it. ``random_ids``: int64 [R],
    the ids that a random replacement may draw. ``masked_lm_prob``: the share of the tokens to mask, [CLS]
    and [SEP] included. n-grams of 1..``max_ngrams`` words are drawn with p(n) ~ 1/n, reversed by
    ``favor_longer_ngram``; with ``geometric`` an n-gram continues after each word with p = 0.8. Without
    ``whole_word_mask`` each token is a word. The probability of drawing a word depends on its weight:
    ``level_weights`` of its level, multiplied, if its first token has a mark k > 0, by ``mark_weights[k]``;
    its level is then ``mark_levels[k]`` (int64 and float64 [marks + 1]).
    """

    cls_id: int
    sep_id: int
    mask_id: int
    base_ids: np.ndarray
    goes_on: np.ndarray
    random_ids: np.ndarray
    masked_lm_prob: float = 0.15
    max_ngrams: int = 3
    favor_longer_ngram: bool = False
    geometric: bool = False
    whole_word_mask: bool = True
    level_weights: Tuple[float, ...] = (1.0, 1.0, 1.0)
    mark_levels: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    mark_weights: np.ndarray = field(default_factory=lambda: np.ones(1))

    @cached_property
    def ngram_borders(self) -> np.ndarray:
        """Return float64 [max_ngrams - 1], the cumulative probabilities of the n-gram lengths.

        A uniform draw gives an n-gram of 1 + the number of borders that are not above it.
        """
        lengths = np.arange(1, self.max_ngrams + 1)
        if self.geometric:
            return 1 - (1 - GEOMETRIC_STOP) ** lengths[:-1]
        chances = 1.0 / (lengths[::-1] if self.favor_longer_ngram else lengths)
        return np.cumsum(chances / chances.sum())[:-1]


class MaskedTokens(NamedTuple):
    """A masked sample of S tokens, M of them hidden; int64 arrays.

    ``ids``: [S], what the model reads; ``positions``: [M], ascending; ``labels``: [M], the hidden tokens.
    """

    ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray


class Draws(NamedTuple):
    """All random draws of a sample's masks, for each of S tokens whether they are used or not.

    ``order``: int64 [S], the tokens shuffled: the order in which words are considered. ``uniform``:
    float64 [3, S]: the length of the n-gram that begins with a word, then for each token what is
    shown in its place, and which random id.
    """

    order: np.ndarray
    uniform: np.ndarray


def create_masked_lm_predictions(
    tokens: np.ndarray, rule: MaskingRule, rng: np.random.Generator, marks: Optional[np.ndarray] = None
) -> MaskedTokens:
    """Hide whole words until ``rule.masked_lm_prob`` of the tokens are hidden, at least one.

    ``tokens``: int64 [S], corpus ids with [CLS] and [SEP] in place. ``marks``: uint8 [S], the lexicon's, or
    None. A hidden token becomes [MASK] 80% of the time, a random id 10%, itself 10%, independently of
    the others (Devlin et al., "BERT", 2019, section 3.1). n-grams never cross a [SEP].
    """
    draws = Draws(draw_order(tokens, rule, rng, marks), rng.random((3, len(tokens))))
    budget = max(1, round(rule.masked_lm_prob * len(tokens)))
    hide = hide_words if compiled_hide_words is None else hide_words_fast
    return hide(tokens, rule, draws, budget)


def draw_order(
    tokens: np.ndarray, rule: MaskingRule, rng: np.random.Generator, marks: Optional[np.ndarray]
) -> np.ndarray:
    """Draw the order in which words are considered: int64 [S], the tokens at which they begin.

    A heavier word tends to come earlier: a random order without replacement in which each next word is
    drawn with probability proportional to its weight (Efraimidis and Spirakis, "Weighted random sampling with
    a reservoir", 2006: ascending -log(u) / w). Words of weight 0 come after all the others.
    """
    levels_alike = len(set(rule.level_weights)) == 1
    if levels_alike and (marks is None or (rule.mark_weights == 1).all()):
        return rng.permutation(len(tokens))
    waits = rng.standard_exponential(len(tokens))  # distributed as -log(u)
    turns = np.full(len(tokens), np.inf)
    with np.errstate(over="ignore"):
        weights = word_weights(tokens, rule, marks)
        np.divide(waits, weights, out=turns, where=weights > 0)
    return np.lexsort((waits, turns))


def word_weights(tokens: np.ndarray, rule: MaskingRule, marks: Optional[np.ndarray]) -> np.ndarray:
    """Return float64 [S]: the weight of a word at its first token, 0 at others; ``marks``: uint8 [S]."""
    starts, _, levels, own = word_levels(tokens, rule, marks)
    weights = np.zeros(len(tokens))
    weights[starts] = np.array(rule.level_weights)[levels] * own
    return weights


def word_levels(tokens: np.ndarray, rule: MaskingRule, marks: Optional[np.ndarray]) -> tuple:
    """Return (starts, ends, levels, weights) of the W words in ``tokens``: three int64 [W], float64 [W].

    ``tokens``: int64 [S]; ``marks``: uint8 [S] or None. A level is an index into LEVELS; a weight is the
    word's own, without that of its level.
    """
    starts, ends, _ = word_spans(tokens, rule)
    levels = np.where(ends - starts > 1, PHRASE, CHARACTER)
    if marks is None:
        return starts, ends, levels, np.ones(len(starts))
    mark = marks[starts]
    return starts, ends, np.where(mark > 0, rule.mark_levels[mark], levels), rule.mark_weights[mark]


def hide_words(tokens: np.ndarray, rule: MaskingRule, draws: Draws, budget: int) -> MaskedTokens:
    """Hide words of at most ``budget`` tokens of int64 [S], or one; the specification of the C++ twin."""
    starts, ends, last_word = word_spans(tokens, rule)
    positions = np.empty(0, np.int64)
    if len(starts):  # words in the drawn order, each the first of an n-gram, as long as the budget lasts
        word_at = np.full(len(tokens), -1)
        word_at[starts] = np.arange(len(starts))
        order = word_at[draws.order]
        order = order[order >= 0]
        sizes = 1 + np.searchsorted(rule.ngram_borders, draws.uniform[0, starts[order]], side="right")
        chosen = choose_words(
            starts.tolist(), ends.tolist(), last_word.tolist(), order.tolist(), sizes.tolist(), budget
        )
        positions = np.concatenate([np.arange(starts[word], ends[word]) for word in sorted(chosen)])
    plain = rule.base_ids[tokens]
    labels = plain[positions]
    plain[positions] = shown_ids(labels, rule, *draws.uniform[1:, positions])
    return MaskedTokens(plain, positions, labels)


def shown_ids(labels: np.ndarray, rule: MaskingRule, kinds: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return what replaces the hidden ids ``labels``, int64 [M]: [MASK], a random id, or the id itself.

    ``kinds``, ``others``: float64 [M], uniform draws of which of the three it is, and of the random id.
    """
    random_ids = rule.random_ids[(others * len(rule.random_ids)).astype(np.int64)]
    return np.where(kinds < MASK_BELOW, rule.mask_id, np.where(kinds < RANDOM_BELOW, random_ids, labels))


def hide_words_fast(tokens: np.ndarray, rule: MaskingRule, draws: Draws, budget: int) -> MaskedTokens:
    """Hide words as ``hide_words`` does, compiled: the same arrays, twenty times faster."""
    ids, vocabulary = np.ascontiguousarray(tokens, np.int64), (rule.base_ids, rule.goes_on, rule.random_ids)
    special, draw = (rule.cls_id, rule.sep_id, rule.mask_id), (draws.order, draws.uniform)
    hidden = compiled_hide_words(
        ids, *draw, *vocabulary, rule.ngram_borders, *special, rule.whole_word_mask, budget
    )
    return MaskedTokens(*hidden)


def word_spans(tokens: np.ndarray, rule: MaskingRule) -> tuple:
    """Return (starts, ends, last word of the segment) of the W words in ``tokens``, each int64 [W].

    ``tokens``: int64 [S]; [CLS] and [SEP] are in no word. A continuation id that is the first of its
    segment, because its word was cut, begins a word.
    """
    special = (tokens == rule.cls_id) | (tokens == rule.sep_id)
    inside = ~special
    after_special = np.concatenate([[True], special[:-1]])
    goes_on = rule.goes_on[tokens] & rule.whole_word_mask
    begins = inside & (~goes_on | after_special)
    starts = np.flatnonzero(begins)
    stops = np.flatnonzero(begins | special)
    ends = np.append(stops, len(tokens))[np.searchsorted(stops, starts, side="right")]
    segment = np.cumsum(special)[starts]
    last_word = np.searchsorted(segment, segment, side="right") - 1
    return starts, ends, last_word


def choose_words(
    starts: List[int], ends: List[int], last_word: List[int], order: List[int], sizes: List[int], budget: int
) -> List[int]:
    """Choose words in ``order``, each with the ``sizes`` - 1 words after it that fit; return their indices.

    ``sizes`` is aligned with ``order``; the others are indexed by word. An n-gram stops at its segment's
    ``last_word``, at a word already taken, and where the budget of tokens ends. When not even one word
    fits, the shortest in ``order`` is taken.
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
