"""ERNIE-Gram's explicit masking: an n-gram of the lexicon is replaced by one [MASK], and is one label.

The text gets shorter: what follows moves up, so neither the symbol nor a position reveals how long the n-gram
was. Tokens outside of n-grams are masked as `create_masked_lm_predictions` masks them, word by word.
Xiao et al., "ERNIE-Gram: Pre-Training with Explicitly N-Gram Masked Language Modeling", 2021, section 3.2.
Not implemented: the tokens of a hidden n-gram as further labels (comprehensive prediction, 3.3), and the
n-grams that a generator puts in their place (3.4), for which a second model would have to be trained.
"""

from typing import NamedTuple

import numpy as np

from data_tools.dataset_utils import MASK_BELOW, RANDOM_BELOW, MaskingRule, choose_words
from data_tools.ngrams.ngram_lexicon import NgramLexicon

NO_LABEL = -1


class MaskedNgrams(NamedTuple):
    """A masked sample: S tokens before masking, T after it, M symbols to predict; int64 arrays.

    ``ids``: [T], what the model reads; ``kept``: [T], the index of each among the S tokens, the first of a
    hidden n-gram; ``positions``: [M], in ``ids``, ascending; ``labels``: [M], the hidden token or -1;
    ``ngram_labels``: [M], the number of the hidden n-gram or -1. Exactly one of the two is a label.
    """

    ids: np.ndarray
    kept: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    ngram_labels: np.ndarray


class _Units(NamedTuple):
    """Units that are masked as a whole, in text order: int64 [U] each; ``ngrams``: a number, or -1."""

    starts: np.ndarray
    ends: np.ndarray
    ngrams: np.ndarray


def hide_ngrams(
    tokens: np.ndarray, rule: MaskingRule, lexicon: NgramLexicon, rng: np.random.Generator
) -> MaskedNgrams:
    """Hide n-grams and words in a random order until ``rule.masked_lm_prob`` of the tokens are hidden.

    ``tokens``: int64 [S], corpus ids with [CLS] and [SEP], which no n-gram contains. A hidden n-gram is
    always one [MASK]; a hidden token is [MASK] 80% of the time, a random id 10%, itself 10%.
    """
    units = _units_of(tokens, rule, lexicon)
    order, uniform = rng.permutation(len(units.starts)), rng.random((2, len(tokens)))
    hidden = _choose(units, order, max(1, round(rule.masked_lm_prob * len(tokens))))
    ids = rule.base_ids[tokens]
    ngram_at, (masked, dropped) = np.full(len(ids), NO_LABEL), np.zeros((2, len(ids)), bool)
    for start, end, ngram in zip(*(part[hidden].tolist() for part in units)):
        masked[start:end] = True
        if ngram != NO_LABEL:
            ngram_at[start] = ngram
            masked[start + 1 : end], dropped[start + 1 : end] = False, True
    at = np.flatnonzero(masked)
    ngram_labels = ngram_at[at]
    labels = np.where(ngram_labels == NO_LABEL, ids[at], NO_LABEL)
    ids[at] = _shown(ids[at], uniform[:, at], rule, ngram_labels != NO_LABEL)
    kept = np.flatnonzero(~dropped)
    return MaskedNgrams(ids[kept], kept, np.searchsorted(kept, at), labels, ngram_labels)


def _units_of(tokens: np.ndarray, rule: MaskingRule, lexicon: NgramLexicon) -> _Units:
    """Cut ``tokens`` into the n-grams of the lexicon and, between them, the words of the corpus."""
    found = lexicon.find(tokens)
    special = (tokens == rule.cls_id) | (tokens == rule.sep_id)
    edges = np.zeros(len(tokens) + 1, np.int64)
    edges[found.starts] += 1
    edges[found.ends] -= 1
    covered = np.cumsum(edges[:-1]) > 0
    after_border = np.append([True], (special | covered)[:-1])
    begins = ~special & ~covered & (~(rule.goes_on[tokens] & rule.whole_word_mask) | after_border)
    begins[found.starts] = True
    starts = np.flatnonzero(begins)
    stops = np.flatnonzero(begins | special)
    ends = np.append(stops, len(tokens))[np.searchsorted(stops, starts, side="right")]
    ngrams = np.full(len(starts), NO_LABEL)
    ngrams[np.searchsorted(starts, found.starts)] = found.numbers
    return _Units(starts, ends, ngrams)


def _choose(units: _Units, order: np.ndarray, budget: int) -> np.ndarray:
    """Return which units are hidden, int64 ascending: in ``order``, while the budget of tokens lasts."""
    count = len(units.starts)
    if not count:
        return np.empty(0, np.int64)
    alone = list(range(count))
    chosen = choose_words(
        units.starts.tolist(), units.ends.tolist(), alone, order.tolist(), [1] * count, budget
    )
    return np.array(sorted(chosen), np.int64)


def _shown(true: np.ndarray, uniform: np.ndarray, rule: MaskingRule, is_ngram: np.ndarray) -> np.ndarray:
    """Return what replaces the hidden ids ``true`` [M]; ``uniform``: float64 [2, M]."""
    kinds, others = uniform
    random_ids = rule.random_ids[(others * len(rule.random_ids)).astype(np.int64)]
    token = np.where(kinds < MASK_BELOW, rule.mask_id, np.where(kinds < RANDOM_BELOW, random_ids, true))
    return np.where(is_ngram, rule.mask_id, token)
