"""The flags that define a sample: its length, its segments, and what is masked."""

import math
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import numpy as np

from data_tools.dataset_utils import (
    LEVELS,
    MaskedTokens,
    MaskingRule,
    choose_words,
    create_masked_lm_predictions,
    shown_ids,
    word_spans,
)
from data_tools.text.ngrams import NgramLexicon
from ernie_pair.core.cli.options import Options, data_option, import_named, kept_data_option
from ernie_pair.core.errors import InputError

SPECIALS_PER_SAMPLE = 3  # [CLS] A [SEP] B [SEP]
SPECIALS_WITHOUT_HEAD = 2  # [CLS] A [SEP]
words_option = partial(kept_data_option, affects="words")


@dataclass(frozen=True, kw_only=True)
class MaskingFlags(Options):
    """The base of every command that makes samples; each field is a flag of it."""

    masked_lm_prob: float = kept_data_option(0.15, help="share of the tokens to mask", above=0, below=1)
    short_seq_prob: float = kept_data_option(
        0.1, help="share of the samples with a shorter target length", at_least=0, below=1
    )
    favor_longer_ngram: bool = words_option(False, help="mask long n-grams more often than short ones")
    max_ngrams: int = words_option(
        3, help="longest n-gram of words masked together", unit="words", at_least=1
    )
    geometric: bool = words_option(
        False, help="draw n-gram lengths from a geometric distribution with p = 0.2, instead of p(n) ~ 1/n"
    )
    whole_word_mask: bool = kept_data_option(True, help="mask whole words; false: mask single tokens")
    level_weights: str = words_option(
        "1 1 1",
        help="weights of a character, a phrase (any word of several tokens) and an entity when drawing words "
        "to mask; entities are marked by --user_lexicon when the corpus is created; weight 0: drawn only "
        "when no other word is left",
    )
    masking_fn: str = words_option(
        "", help="your own masking function, package.module:function; empty: the built-in one"
    )
    binary_head: bool = data_option(
        True,
        help="two segments per sample, to learn their order too; false: one segment, masked tokens only",
        resume="fixed",
    )

    def __post_init__(self):
        super().__post_init__()
        _weights_of_levels(self.level_weights)
        if self.geometric and self.favor_longer_ngram:
            raise InputError(
                "--geometric and --favor_longer_ngram are two distributions of n-gram lengths; "
                "pass one of them"
            )
        for name in ("geometric", "favor_longer_ngram"):
            if getattr(self, name) and self.max_ngrams == 1:
                raise InputError(f"--{name} needs n-grams of several words; raise --max_ngrams above 1")

    @property
    def has_order(self) -> bool:
        """Return whether samples have two segments, whose order is a label: unless --binary_head is false."""
        return self.binary_head is not False

    def rule_settings(self) -> Dict[str, Any]:
        """Return what `ernie_dataset.masking_rule` takes besides the vocabulary."""
        names = ("masked_lm_prob", "max_ngrams", "favor_longer_ngram", "geometric", "whole_word_mask")
        settings = {name: getattr(self, name) for name in names}
        return {**settings, "level_weights": _weights_of_levels(self.level_weights)}

    def map_settings(self, max_seq_len: int) -> Dict[str, Any]:
        """Return what `sample_map.build_sample_map` takes of these flags, for samples of that many tokens."""
        specials = SPECIALS_PER_SAMPLE if self.has_order else SPECIALS_WITHOUT_HEAD
        return {
            "target_length": max_seq_len - specials,
            "short_seq_prob": self.short_seq_prob,
            "min_sentences": 2 if self.has_order else 1,
        }


def _weights_of_levels(text: str) -> Tuple[float, ...]:
    """Parse '1 2.5 4' to (1.0, 2.5, 4.0)."""
    try:
        weights = tuple(map(float, text.split()))
    except ValueError:
        weights = ()
    are_weights = all(0 <= weight < math.inf for weight in weights) and any(weights)
    if len(weights) != len(LEVELS) or not are_weights:
        raise InputError(
            f"--level_weights {text!r}: not three numbers of 0 or more, one of them above 0 "
            f'({", ".join(LEVELS)}); write it as in --level_weights "1 1 2"'
        )
    return weights


MaskingFunction = Callable[[np.ndarray, MaskingRule, np.random.Generator, Optional[np.ndarray]], MaskedTokens]


def load_masking_fn(name: str) -> MaskingFunction:
    """Return the function called ``name``, its results checked; '' is create_masked_lm_predictions.

    It is called like that one: (tokens, rule, rng, marks), marks None if the corpus has none. Modules are
    found as Python finds them, then in the working folder. Raises InputError if there is no such function,
    and later if one of its results cannot be a masked sample.
    """
    if not name:
        return create_masked_lm_predictions
    function = import_named(name, "--masking_fn", "function")
    try:
        signature(function).bind(*range(4))
    except TypeError:
        cure = "does not take (tokens, rule, rng, marks); give it these four"
        raise InputError(f"--masking_fn {name} {cure}") from None
    except ValueError:  # a compiled function without a signature
        pass
    return CheckedMasking(name, function)


class CheckedMasking:
    """A masking function whose results are checked against the contract of the built-in one."""

    def __init__(self, name: str, function: MaskingFunction):
        self.name, self.function = name, function

    def __call__(
        self,
        tokens: np.ndarray,
        rule: MaskingRule,
        rng: np.random.Generator,
        marks: Optional[np.ndarray] = None,
    ) -> MaskedTokens:
        """Mask ``tokens``, int64 [S]. Raises InputError if the result cannot be a masked sample."""
        answer = self.function(tokens.copy(), rule, rng, marks)
        fault = _fault_of(answer, tokens, len(rule.base_ids))
        if fault:
            raise InputError(
                f"--masking_fn {self.name}: {fault}; return (ids, positions, labels) as "
                "data_tools/dataset_utils.py says"
            )
        return MaskedTokens(*(np.asarray(part, dtype=np.int64) for part in answer))


def _fault_of(answer, tokens: np.ndarray, vocab_size: int) -> str:
    if not (isinstance(answer, (tuple, list)) and len(answer) == 3):
        return "does not return three arrays"
    ids, positions, labels = map(np.asarray, answer)
    if any(array.dtype.kind not in "iu" for array in (ids, positions, labels)):
        return "returns something other than whole numbers"
    if ids.shape != tokens.shape:
        return f"turned {tokens.shape} tokens into {ids.shape} ids"
    if positions.ndim != 1 or positions.shape != labels.shape:
        return f"returns positions {positions.shape} but labels {labels.shape}"
    if not len(positions):
        return "masked nothing"
    if (np.diff(positions.astype(np.int64)) <= 0).any() or not 0 <= positions[0] <= positions[-1] < len(ids):
        return "returns positions that do not ascend within the sample"
    if min(ids.min(), labels.min()) < 0 or max(ids.max(), labels.max()) >= vocab_size:
        return f"returns an id outside 0..{vocab_size - 1}"
    return ""


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


def hide_ngrams(
    tokens: np.ndarray, rule: MaskingRule, lexicon: NgramLexicon, rng: np.random.Generator
) -> MaskedNgrams:
    """Hide n-grams and words in a random order until ``rule.masked_lm_prob`` of the tokens are hidden.

    ``tokens``: int64 [S], corpus ids with [CLS] and [SEP], which no n-gram contains. A hidden n-gram is
    always one [MASK]; a hidden token is [MASK] 80% of the time, a random id 10%, itself 10%.
    """
    starts, ends, ngrams = _units_of(tokens, rule, lexicon)
    order, uniform = rng.permutation(len(starts)), rng.random((2, len(tokens)))
    budget, alone = max(1, round(rule.masked_lm_prob * len(tokens))), list(range(len(starts)))
    hidden = []
    if alone:
        words = starts.tolist(), ends.tolist(), alone, order.tolist(), [1] * len(alone)
        hidden = sorted(choose_words(*words, budget))
    ids = rule.base_ids[tokens]
    ngram_at, (masked, dropped) = np.full(len(ids), NO_LABEL), np.zeros((2, len(ids)), bool)
    for start, end, ngram in zip(starts[hidden].tolist(), ends[hidden].tolist(), ngrams[hidden].tolist()):
        masked[start:end] = True
        if ngram != NO_LABEL:
            ngram_at[start] = ngram
            masked[start + 1 : end], dropped[start + 1 : end] = False, True
    at = np.flatnonzero(masked)
    ngram_labels = ngram_at[at]
    labels = np.where(ngram_labels == NO_LABEL, ids[at], NO_LABEL)
    shown = shown_ids(ids[at], rule, *uniform[:, at])
    ids[at] = np.where(ngram_labels == NO_LABEL, shown, rule.mask_id)
    kept = np.flatnonzero(~dropped)
    return MaskedNgrams(ids[kept], kept, np.searchsorted(kept, at), labels, ngram_labels)


def seen_by_decoder(
    tokens: np.ndarray, rule: MaskingRule, masked_prob: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw which tokens each position of RetroMAE's decoder sees: bool [S, S], a row for each position.

    ``tokens``: int64 [S], corpus ids with [CLS] and [SEP]. A row does not see itself, nor a share
    ``masked_prob`` of the words, drawn for it alone; all see [CLS], where the vector of the text stands (Xiao
    et al. 2022, "RetroMAE", arXiv:2205.12035, enhanced decoding).
    """
    starts, ends, _ = word_spans(tokens, rule)
    seen = np.ones((len(tokens), len(tokens)), bool)
    hidden = rng.random((len(tokens), len(starts))) < masked_prob
    inside = (tokens != rule.cls_id) & (tokens != rule.sep_id)
    seen[:, inside] = ~hidden.repeat(ends - starts, axis=1)
    np.fill_diagonal(seen, False)
    seen[:, 0] = True
    return seen


def _units_of(
    tokens: np.ndarray, rule: MaskingRule, lexicon: NgramLexicon
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut ``tokens`` into the n-grams of the lexicon and, between them, the words of the corpus.

    Returns their starts, ends and numbers of n-grams, NO_LABEL for a word, each int64 [units].
    """
    firsts, stops_of_ngrams, numbers = lexicon.find(tokens)
    special = (tokens == rule.cls_id) | (tokens == rule.sep_id)
    edges = np.zeros(len(tokens) + 1, np.int64)
    edges[firsts] += 1
    edges[stops_of_ngrams] -= 1
    covered = np.cumsum(edges[:-1]) > 0
    after_border = np.append([True], (special | covered)[:-1])
    begins = ~special & ~covered & (~(rule.goes_on[tokens] & rule.whole_word_mask) | after_border)
    begins[firsts] = True
    starts = np.flatnonzero(begins)
    stops = np.flatnonzero(begins | special)
    ends = np.append(stops, len(tokens))[np.searchsorted(stops, starts, side="right")]
    ngrams = np.full(len(starts), NO_LABEL)
    ngrams[np.searchsorted(starts, firsts)] = numbers
    return starts, ends, ngrams
