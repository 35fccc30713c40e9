"""Rules and random cases for the tests of masking."""

import numpy as np
import pytest

from data_tools import dataset_utils
from data_tools.dataset_utils import Draws, MaskingRule

compiled = pytest.mark.skipif(
    dataset_utils.compiled_hide_words is None, reason="helper not compiled; run: pip install -e ."
)

# 100 plain characters, ids 10..109, each with its continuation twin 100 higher.
PLAIN_OF = np.concatenate([np.arange(110), np.arange(10, 110)])
GOES_ON = np.arange(210) >= 110


def rule(**changes):
    settings = {"cls_id": 1, "sep_id": 2, "mask_id": 3, "random_ids": np.arange(10, 110), **changes}
    return MaskingRule(base_ids=PLAIN_OF, goes_on=GOES_ON, **settings)


def random_case(seed):
    """Any tokens, specials anywhere, over every combination of the options."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(10, 210, size=rng.integers(0, 80))
    tokens[rng.random(len(tokens)) < rng.choice([0, 0.05, 0.5, 1])] = rng.choice([1, 2])
    law = seed % 3
    options = rule(
        masked_lm_prob=rng.choice([0.01, 0.15, 0.5, 0.99]),
        max_ngrams=int(rng.integers(1, 6)),
        favor_longer_ngram=law == 1,
        geometric=law == 2,
        whole_word_mask=seed % 5 > 0,
        random_ids=np.arange(10, 10 + rng.integers(1, 100)),
    )
    draws = Draws(rng.permutation(len(tokens)), rng.random((3, len(tokens))))
    return tokens, options, draws, max(1, round(options.masked_lm_prob * len(tokens)))
