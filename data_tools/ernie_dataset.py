"""dataset[i] -> one masked sample: a pure function of (corpus, seed, i)."""

from typing import NamedTuple

import numpy as np

from data_tools.corpus import Corpus
from data_tools.dataset_utils import MaskingRule, create_masked_lm_predictions
from data_tools.segments import make_segments
from data_tools.wordpiece import WordPiece

SPECIALS_PER_SAMPLE = 3  # [CLS] A [SEP] B [SEP]


class Sample(NamedTuple):
    """One sample without padding. ``sop_label``: 0 in order, 1 swapped, -1 no label."""

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    masked_positions: np.ndarray
    masked_labels: np.ndarray
    sop_label: int


class ErnieDataset:
    """Masked samples over the rows of a sample map; any rank or worker may ask for any of them."""

    def __init__(
        self,
        corpus: Corpus,
        sample_map: np.ndarray,
        rule: MaskingRule,
        *,
        seed: int,
        binary_head: bool = True,
    ):
        self.corpus, self.sample_map, self.rule = corpus, sample_map, rule
        self.seed, self.binary_head = seed, binary_head

    def __len__(self) -> int:
        return len(self.sample_map)

    def __getitem__(self, index: int) -> Sample:
        first, end, target = (int(value) for value in self.sample_map[index])
        rng = sample_rng(self.seed, index)
        sentences = [self.corpus[sentence] for sentence in range(first, end)]
        segments = make_segments(sentences, target, rng, binary_head=self.binary_head)
        tokens, types = join_segments(segments.a, segments.b, self.rule.cls_id, self.rule.sep_id)
        return Sample(*_masked(tokens, types, self.rule, rng), segments.label)


def sample_rng(seed: int, index: int) -> np.random.Generator:
    """The generator of sample ``index``: the same on every rank and after every resume."""
    return np.random.default_rng([seed, index])


def join_segments(a: np.ndarray, b, cls_id: int, sep_id: int) -> tuple:
    """[CLS] a [SEP], then b [SEP] when there is a ``b``: token ids and token types, both int64 [S]."""
    parts = [[cls_id], a, [sep_id]] if b is None else [[cls_id], a, [sep_id], b, [sep_id]]
    tokens = np.concatenate(parts).astype(np.int64)
    types = np.zeros(len(tokens), np.int64)
    types[len(a) + 2 :] = 1
    return tokens, types


def masking_rule(pieces: WordPiece, **settings) -> MaskingRule:
    """The rule for a vocabulary; ``settings`` are the choices of MaskingRule.

    Random replacements never draw special, unused or `##` tokens: none of them stands in real input.
    """
    ordinary = [
        index
        for index, token in enumerate(pieces.tokens)
        if not token.startswith("##")
        and not (token.startswith("[") and token.endswith("]") and len(token) > 2)
    ]
    return MaskingRule(
        cls_id=pieces.cls_id,
        sep_id=pieces.sep_id,
        mask_id=pieces.mask_id,
        plain_of=np.asarray(pieces.plain_of, dtype=np.int64),
        goes_on=np.array([token.startswith("##") for token in pieces.tokens]),
        random_ids=np.array(ordinary, dtype=np.int64),
        **settings,
    )


def _masked(tokens: np.ndarray, types: np.ndarray, rule: MaskingRule, rng: np.random.Generator) -> tuple:
    masked = create_masked_lm_predictions(tokens, rule, rng)
    return masked.ids, types, masked.positions, masked.labels
