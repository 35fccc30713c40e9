"""dataset[i] -> one masked sample: a pure function of (corpus, seed, i)."""

from dataclasses import replace
from typing import NamedTuple, Optional, Tuple

import numpy as np

from data_tools.corpus.format import Corpus
from data_tools.dataset_utils import LEVELS, MaskingRule, create_masked_lm_predictions
from data_tools.samples.masking import NO_LABEL, MaskingFunction, hide_ngrams, seen_by_decoder
from data_tools.text.folder_tokenizer import AnyTokenizer
from data_tools.text.ngrams import NgramLexicon
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.keyed_cache import keyed_rng


class Sample(NamedTuple):
    """One sample without padding: S tokens, M of them masked.

    ``input_ids``, ``token_type_ids``: int64 [S]; ``masked_positions``, ``masked_labels``: int64 [M];
    ``sop_label``: 0 in order, 1 swapped, -1 no label. ``ngram_labels``: int64 [M], the numbers of the n-grams
    that are masked by one symbol, -1 where ``masked_labels`` has a token (which is -1 elsewhere); None
    without a lexicon of n-grams. For RetroMAE's decoder, otherwise None: ``decoder_labels``: int64 [S], the
    tokens before masking, -1 for [CLS] and [SEP]; ``decoder_mask``: bool [S, S], see `seen_by_decoder`.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    masked_positions: np.ndarray
    masked_labels: np.ndarray
    sop_label: int
    ngram_labels: Optional[np.ndarray] = None
    decoder_labels: Optional[np.ndarray] = None
    decoder_mask: Optional[np.ndarray] = None


class Text(NamedTuple):
    """One sample before masking: corpus ids with [CLS] and [SEP], token types, the sentence order.

    ``tokens``, ``token_type_ids``: int64 [S]; ``marks``: uint8 [S], the lexicon's, or None.
    """

    tokens: np.ndarray
    token_type_ids: np.ndarray
    sop_label: int
    marks: Optional[np.ndarray]


class ErnieDataset:
    """Masked samples over the rows of a sample map; any rank or worker may ask for any of them.

    With ``ngrams`` those of the lexicon are masked by one symbol each, and ``masking_fn`` is not called.
    ``decoder_masked_prob``: the share that each position of RetroMAE's decoder does not see; 0: it has none.
    """

    def __init__(
        self,
        corpus: Corpus,
        sample_map: np.ndarray,
        rule: MaskingRule,
        *,
        seed: int,
        binary_head: bool = True,
        masking_fn: MaskingFunction = create_masked_lm_predictions,
        ngrams: Optional[NgramLexicon] = None,
        decoder_masked_prob: float = 0.0,
    ):
        self.corpus, self.sample_map, self.rule = corpus, sample_map, rule
        if corpus.marks is not None:  # whose meanings differ between the corpora of a blend
            levels = [LEVELS.index(mark["kind"]) for mark in corpus.lexicon_marks]
            weights = [mark["weight"] for mark in corpus.lexicon_marks]
            mark_levels, mark_weights = np.array([0, *levels]), np.array([1.0, *weights])
            self.rule = replace(rule, mark_levels=mark_levels, mark_weights=mark_weights)
        self.seed, self.binary_head, self.masking_fn, self.ngrams = seed, binary_head, masking_fn, ngrams
        self.decoder_masked_prob = decoder_masked_prob
        self._ids, self._rows = np.asarray(corpus.ids), np.asarray(sample_map)  # plain views: memmap is slow
        self._marks = None if corpus.marks is None else np.asarray(corpus.marks)

    def __len__(self) -> int:
        return len(self.sample_map)

    def __getitem__(self, index: int) -> Sample:
        rng = keyed_rng(self.seed, index)
        text = self._text(index, rng)
        if self.ngrams is not None:
            hidden = hide_ngrams(text.tokens, self.rule, self.ngrams, rng)
            types = text.token_type_ids[hidden.kept]
            return Sample(
                hidden.ids, types, hidden.positions, hidden.labels, text.sop_label, hidden.ngram_labels
            )
        masked = self.masking_fn(text.tokens, self.rule, rng, text.marks)
        sample = Sample(masked.ids, text.token_type_ids, masked.positions, masked.labels, text.sop_label)
        if not self.decoder_masked_prob:
            return sample
        special = (text.tokens == self.rule.cls_id) | (text.tokens == self.rule.sep_id)
        return sample._replace(
            decoder_labels=np.where(special, NO_LABEL, self.rule.base_ids[text.tokens]),
            decoder_mask=seen_by_decoder(text.tokens, self.rule, self.decoder_masked_prob, rng),
        )

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """Return the token counts of the samples ``indices`` [N], control tokens included: int64 [N]."""
        first, end, target = np.asarray(self._rows[indices], np.int64).T
        tokens = np.minimum(self.corpus.starts[end] - self.corpus.starts[first], target)
        has_two = (end - first > 1) & self.binary_head
        return tokens + np.where(has_two, 3, 2)  # [CLS] A [SEP], and B [SEP]

    def text(self, index: int) -> Text:
        """Return sample ``index`` before its tokens are masked."""
        return self._text(index, keyed_rng(self.seed, index))

    def _text(self, index: int, rng: np.random.Generator) -> Text:
        first, end, target = self._rows[index].tolist()
        starts = self.corpus.starts[first : end + 1]
        segments = make_segments(starts, target, rng, binary_head=self.binary_head)
        tokens, types = join_segments(*segments.of(self._ids), self.rule.cls_id, self.rule.sep_id)
        marks = None
        if self._marks is not None:
            marks = join_segments(*segments.of(self._marks), 0, 0)[0].astype(np.uint8)
        return Text(tokens, types, segments.label, marks)


def join_segments(a: np.ndarray, b: Optional[np.ndarray], cls_id: int, sep_id: int) -> tuple:
    """Join [CLS] ``a`` [SEP], then ``b`` [SEP] when there is a ``b``, to S token ids and token types.

    ``a``, ``b``: integers [any length]. Returns two int64 [S]; the type is 0 up to the first [SEP], then 1.
    """
    border = len(a) + 2
    length = border if b is None else border + len(b) + 1
    tokens, types = np.empty(length, np.int64), np.zeros(length, np.int64)
    tokens[0], tokens[1 : border - 1], tokens[border - 1] = cls_id, a, sep_id
    if b is not None:
        tokens[border:-1], tokens[-1] = b, sep_id
        types[border:] = 1
    return tokens, types


def masking_rule(tokenizer: AnyTokenizer, **settings) -> MaskingRule:
    """Return the masking rule for a vocabulary; ``settings``: other fields of MaskingRule.

    Random replacements never draw special, unused or `##` tokens: none of them occurs in real input. Raises
    InputError when no other token is left.
    """
    ordinary = [
        index
        for index, token in enumerate(tokenizer.tokens)
        if not tokenizer.is_continuation[index]
        and not (token.startswith("[") and token.endswith("]") and len(token) > 2)
    ]
    if not ordinary:
        raise InputError("the vocabulary has no ordinary token; give the vocab.txt of a model")
    return MaskingRule(
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        mask_id=tokenizer.mask_id,
        base_ids=np.asarray(tokenizer.base_ids, dtype=np.int64),
        goes_on=tokenizer.is_continuation,
        random_ids=np.array(ordinary, dtype=np.int64),
        **settings,
    )


IN_ORDER, SWAPPED = 0, 1


class Segments(NamedTuple):
    """The places of the segments in the corpus, as slices of its tokens.

    ``b`` is None when the text has one sentence only, or no sentence order is requested.
    """

    a: slice
    b: Optional[slice]
    label: int

    def of(self, values: np.ndarray) -> Tuple[np.ndarray, Optional[np.ndarray]]:
        """Return A and B of ``values`` [tokens of the corpus], as views; B may be None."""
        return values[self.a], None if self.b is None else values[self.b]


def make_segments(
    starts: np.ndarray, max_tokens: int, rng: np.random.Generator, *, binary_head: bool = True
) -> Segments:
    """Split n sentences at a random boundary and swap the parts half of the time.

    Sentence s is the tokens starts[s] to starts[s + 1]; ``starts``: int64 [n + 1]. ``label``: IN_ORDER,
    SWAPPED, or NO_LABEL where there is only one segment. Both segments together hold at most ``max_tokens``
    tokens and each keeps at least one.
    """
    sentences = len(starts) - 1
    begin, end = int(starts[0]), int(starts[-1])
    if sentences < 2 or not binary_head:
        return Segments(_cut(begin, end, max(0, end - begin - max_tokens), rng), None, NO_LABEL)
    border = int(starts[1 + int(rng.random() * (sentences - 1))])
    a, b = (begin, border), (border, end)
    swapped = rng.random() < 0.5
    if swapped:
        a, b = b, a
    cut_a, cut_b = _cuts(a[1] - a[0], b[1] - b[0], max_tokens)
    return Segments(_cut(*a, cut_a, rng), _cut(*b, cut_b, rng), SWAPPED if swapped else IN_ORDER)


def _cuts(length_a: int, length_b: int, max_tokens: int) -> tuple:
    """Return how many tokens each segment loses if each one is taken from the longer (A on a tie)."""
    excess = max(0, length_a + length_b - max_tokens)
    level = min(excess, abs(length_a - length_b))
    rest = excess - level
    from_a, from_b = rest - rest // 2, rest // 2
    return (from_a + level, from_b) if length_a > length_b else (from_a, from_b + level)


def _cut(begin: int, end: int, count: int, rng: np.random.Generator) -> slice:
    """Drop ``count`` tokens, each from the front or the back with equal chance."""
    if not count:
        return slice(begin, end)
    front = int(rng.binomial(count, 0.5))
    return slice(begin + front, end - (count - front))
