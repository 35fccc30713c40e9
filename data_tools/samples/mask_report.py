"""What the samples of a dataset look like: their masks, lengths, padding and unknown tokens."""

from collections import Counter
from typing import Dict, Iterable, List, NamedTuple, Optional

import numpy as np

from data_tools.dataset_utils import LEVELS, MaskingRule, word_levels, word_spans
from data_tools.ernie_dataset import ErnieDataset, Sample, Text
from data_tools.text.folder_tokenizer import AnyTokenizer
from data_tools.text.ngrams import NgramLexicon
from data_tools.text.wordpiece import CONTINUATION

TOP_WORDS = 20
FEW = 0.5  # of the requested share of masked tokens
MOST_NAMED = 10  # samples with few masks
BARS = 16  # of the length histogram
ORDER_NAMES = {0: "in order", 1: "swapped", -1: "no label"}


class MaskReport(NamedTuple):
    """A report on the samples of a dataset. Serialisable as JSON; shares are from 0 to 1.

    ``mask_rate``: masked tokens of all tokens, [CLS] and [SEP] included. ``ngrams``: {n: how many runs of n
    masked words}. ``shown``: what replaces the masked tokens, as shares of
    [MASK], random and kept. ``levels``: shares of the masked tokens; ``level_rates``: masked tokens of each
    level, of all tokens of that level. ``few_masks``: samples with less than half of the requested share.
    ``lengths``: {shortest length of the bin: samples}. ``padding``: share of a batch padded to max_seq_len.
    """

    samples: int
    tokens: int
    masked: int
    mask_rate: float
    ngrams: Dict[int, int]
    shown: Dict[str, float]
    levels: Dict[str, float]
    level_rates: Dict[str, float]
    top_masked_words: List[tuple]
    samples_with_few_masks: int
    few_masks: List[Dict[str, int]]
    sentence_order: Dict[str, int]
    lengths: Dict[int, int]
    padding: float
    unknown: float
    mask_rates: List[float]


def mask_report(
    dataset: ErnieDataset, tokenizer: AnyTokenizer, numbers: Iterable[int], max_seq_len: int
) -> MaskReport:
    """Measure the samples ``numbers`` of ``dataset``."""
    ngrams: Counter = Counter()
    words: Counter = Counter()
    shown: Counter = Counter()
    order: Counter = Counter()
    lengths, masked, few, unknown = [], [], [], 0
    level_counts = np.zeros((2, len(LEVELS)), np.int64)  # of the masked tokens, of all of them
    for number in numbers:
        text, sample = dataset.text(number), dataset[number]
        for run in masked_runs(text.tokens, sample.masked_positions, dataset.rule):
            ngrams[len(run)] += 1
            for start, end in run:
                pieces = [tokenizer.tokens[index] for index in text.tokens[start:end].tolist()]
                words["".join(piece.replace(CONTINUATION, "") for piece in pieces)] += 1
        at = sample.input_ids[sample.masked_positions]
        shown.update(np.where(at == tokenizer.mask_id, 0, 2 - (at != sample.masked_labels)).tolist())
        level_counts += count_levels(text, sample.masked_positions, dataset.rule)
        order[ORDER_NAMES[sample.sop_label]] += 1
        lengths.append(len(text.tokens))
        masked.append(len(at))
        unknown += int((text.tokens == tokenizer.unk_id).sum())
        if len(at) < FEW * dataset.rule.masked_lm_prob * len(text.tokens):
            few.append({"sample": number, "tokens": len(text.tokens), "masked": len(at)})
    tokens, hidden = sum(lengths), sum(masked)
    width = max(1, -(-max_seq_len // BARS))
    bars = np.bincount((np.array(lengths) - 1) // width).tolist()
    return MaskReport(
        samples=len(lengths),
        tokens=tokens,
        masked=hidden,
        mask_rate=hidden / tokens,
        ngrams=dict(sorted(ngrams.items())),
        shown={name: shown[kind] / max(1, hidden) for kind, name in enumerate(("[MASK]", "random", "kept"))},
        levels=dict(zip(LEVELS, (level_counts[0] / max(hidden, 1)).tolist())),
        level_rates=dict(zip(LEVELS, (level_counts[0] / np.maximum(level_counts[1], 1)).tolist())),
        top_masked_words=words.most_common(TOP_WORDS),
        samples_with_few_masks=len(few),
        few_masks=few[:MOST_NAMED],
        sentence_order={name: order[name] for name in ORDER_NAMES.values()},
        lengths={bar * width + 1: count for bar, count in enumerate(bars)},
        padding=1 - tokens / (max_seq_len * len(lengths)),
        unknown=unknown / tokens,
        mask_rates=(np.array(masked) / lengths).round(4).tolist(),
    )


def count_levels(text: Text, positions: np.ndarray, rule: MaskingRule) -> np.ndarray:
    """Count the tokens of each level, int64 [2, levels]: those at ``positions``, int64 [M], and all."""
    starts, ends, levels, _ = word_levels(text.tokens, rule, text.marks)
    level_of_token = np.full(len(text.tokens), len(LEVELS))  # [CLS] and [SEP] have none
    for start, end, level in zip(starts.tolist(), ends.tolist(), levels.tolist()):
        level_of_token[start:end] = level
    counted = (level_of_token[positions], level_of_token)
    return np.array([np.bincount(of, minlength=len(LEVELS) + 1)[:-1] for of in counted])


def masked_runs(tokens: np.ndarray, positions: np.ndarray, rule: MaskingRule) -> List[List[tuple]]:
    """Return the runs of neighbouring words with a masked token, each word as (start, end).

    ``tokens``: int64 [S]; ``positions``: int64 [M].
    """
    starts, ends, last_word = word_spans(tokens, rule)
    hidden = np.zeros(len(tokens) + 1, np.int64)
    hidden[1:] = np.cumsum(np.bincount(positions, minlength=len(tokens)))
    runs: List[List[tuple]] = []
    goes_on = False
    for word in range(len(starts)):
        start, end = int(starts[word]), int(ends[word])
        if hidden[end] == hidden[start]:
            goes_on = False
            continue
        if not goes_on:
            runs.append([])
        runs[-1].append((start, end))
        goes_on = word != last_word[word]
    return runs


def marked_text(tokenizer: AnyTokenizer, sample: Sample, ngrams: Optional[NgramLexicon] = None) -> str:
    """Return a sample as text, its masked spans as {original -> what is shown}, _ for [MASK].

    天地{玄黄->__}宇宙 hides two characters; {玄->荒} shows a random one, {玄->玄} the true one. An n-gram of
    the lexicon ``ngrams`` is replaced by one symbol: {玄黄->_}.
    """
    hidden = set(sample.masked_positions.tolist())
    shown = [tokenizer.tokens[index] for index in sample.input_ids.tolist()]
    tokens = list(shown)
    for place, label in zip(sample.masked_positions.tolist(), sample.masked_labels.tolist()):
        tokens[place] = tokenizer.tokens[label]
    if ngrams is not None and sample.ngram_labels is not None:
        for place, label in zip(sample.masked_positions.tolist(), sample.ngram_labels.tolist()):
            if label >= 0:
                tokens[place] = _joined([tokenizer.tokens[index] for index in ngrams.ngrams[label]])
    whole, at = "", 0
    while at < len(tokens):
        end = at + 1
        while at in hidden and end in hidden:
            end += 1
        part = _joined(tokens[at:end])
        if at in hidden:
            there = _joined(["_" if token == "[MASK]" else token for token in shown[at:end]])
            part = f"{{{part}->{there.replace('_ _', '__').replace('_ _', '__')}}}"
        whole += " " + part if at and _apart(tokens[at - 1], tokens[at]) else part
        at = end
    return whole


def _joined(tokens: List[str]) -> str:
    """Join tokens to text: Chinese without spaces, Latin words apart, `##` pieces after the previous one."""
    text = ""
    for before, token in zip(["", *tokens], tokens):
        text += " " * _apart(before, token) + token.replace(CONTINUATION, "")
    return text


def _apart(before: str, after: str) -> bool:
    is_latin = before[-1:].isascii() and after[0].isascii()
    return is_latin and bool(before) and not after.startswith(CONTINUATION)
