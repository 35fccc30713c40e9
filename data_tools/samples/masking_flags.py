"""The flags that define a sample: its length, its segments, and what is masked."""

import math
from dataclasses import dataclass
from typing import Any, Dict, Tuple

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option
from data_tools.dataset_utils import LEVELS

SPECIALS_PER_SAMPLE = 3  # [CLS] A [SEP] B [SEP]
SPECIALS_WITHOUT_HEAD = 2  # [CLS] A [SEP]


@dataclass(frozen=True)
class MaskingFlags(Options):
    """The base of every command that makes samples; each field is a flag of it."""

    masked_lm_prob: float = option(0.15, help="share of the tokens to mask", group="data", above=0, below=1)
    short_seq_prob: float = option(
        0.1, help="share of the samples with a shorter target length", group="data", at_least=0, below=1
    )
    favor_longer_ngram: bool = option(
        False, help="mask long n-grams more often than short ones", group="data"
    )
    max_ngrams: int = option(
        3, help="longest n-gram of words masked together", group="data", unit="words", at_least=1
    )
    geometric: bool = option(
        False,
        help="draw n-gram lengths from a geometric distribution with p = 0.2, instead of p(n) ~ 1/n",
        group="data",
    )
    whole_word_mask: bool = option(True, help="mask whole words; false: mask single tokens", group="data")
    level_weights: str = option(
        "1 1 1",
        help="weights of a character, a phrase (any word of several tokens) and an entity when drawing words "
        "to mask; entities are marked by --user_lexicon when the corpus is created; weight 0: drawn only "
        "when no other word is left",
        group="data",
    )
    masking_fn: str = option(
        "", help="your own masking function, package.module:function; empty: the built-in one", group="data"
    )
    binary_head: bool = option(
        True,
        help="two segments per sample, to learn their order too; false: one segment, masked tokens only",
        group="data",
    )

    def __post_init__(self):
        super().__post_init__()
        self._refuse_ngram_laws()
        _weights_of_levels(self.level_weights)

    def _refuse_ngram_laws(self) -> None:
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
        return {
            "masked_lm_prob": self.masked_lm_prob,
            "max_ngrams": self.max_ngrams,
            "favor_longer_ngram": self.favor_longer_ngram,
            "geometric": self.geometric,
            "whole_word_mask": self.whole_word_mask,
            "level_weights": _weights_of_levels(self.level_weights),
        }

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
    if (
        len(weights) != len(LEVELS)
        or not all(0 <= weight < math.inf for weight in weights)
        or not any(weights)
    ):
        raise InputError(
            f"--level_weights {text!r}: not three numbers of 0 or more, one of them above 0 "
            f'({", ".join(LEVELS)}); write it as in --level_weights "1 1 2"'
        )
    return weights
