from types import SimpleNamespace

import numpy as np

from data_tools.dataset_utils import MaskedTokens
from data_tools.ernie_dataset import ErnieDataset, Sample, masking_rule
from data_tools.samples.mask_report import MOST_NAMED, marked_text, mask_report, masked_runs
from data_tools.text.wordpiece import WordPiece

TOKENS = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "天", "地", "玄", "##地", "##玄", "ab", "##cd", "ef"]
PIECES = WordPiece(TOKENS)
RULE = masking_rule(PIECES)


def ids(*tokens):
    return np.array([PIECES.vocab[token] for token in tokens])


def hide(*positions, shown=()):
    """A masking function that hides only these positions, the first of which show ``shown``."""

    def masking_fn(tokens, rule, rng, marks):
        plain, where = rule.base_ids[tokens], np.array(positions)
        labels = plain[where]
        plain[where] = rule.mask_id
        plain[where[: len(shown)]] = shown
        return MaskedTokens(plain, where, labels)

    return masking_fn


def dataset(text, *positions, shown=()):
    corpus = SimpleNamespace(ids=text, starts=np.array([0, len(text)]), marks=None)
    return ErnieDataset(
        corpus, np.array([[0, 1, 99]]), RULE, seed=1, masking_fn=hide(*positions, shown=shown)
    )


def test_adjacent_masked_words_form_runs_within_a_segment():
    tokens = ids("[CLS]", "天", "##地", "玄", "天", "玄", "[SEP]", "玄", "[SEP]")
    assert masked_runs(tokens, np.array([1, 2, 3, 5, 7]), RULE) == [[(1, 3), (3, 4)], [(5, 6)], [(7, 8)]]


def test_the_report_counts_words_ngrams_unk_and_padding():
    report = mask_report(dataset(ids("天", "##地", "玄", "[UNK]", "天", "##地"), 1, 2, 5, 6), PIECES, [0], 16)
    assert (report.samples, report.tokens, report.masked, report.mask_rate) == (1, 8, 4, 0.5)
    assert report.top_masked_words == [("天地", 2)] and report.ngrams == {1: 2}
    assert report.shown == {"[MASK]": 1.0, "random": 0.0, "kept": 0.0}
    assert (report.padding, report.unknown, report.lengths[8]) == (0.5, 1 / 8, 1)
    assert report.sentence_order == {"in order": 0, "swapped": 0, "no label": 1}


def test_masked_tokens_are_counted_by_what_is_shown():
    """地 is shown as it is, 玄 as 天; what is not shown is [MASK]."""
    text = ids("天", "地", "玄", "天", "地", "玄", "天")
    report = mask_report(dataset(text, 2, 3, 5, 6, 7, shown=ids("地", "天")), PIECES, [0], 16)
    assert report.shown == {"[MASK]": 0.6, "random": 0.2, "kept": 0.2}
    assert report.mask_rates == [round(5 / 9, 4)] and report.mask_rate == 5 / 9


def test_samples_with_few_masks_are_listed():
    report = mask_report(dataset(np.full(30, 5), 3), PIECES, [0], 32)
    assert report.samples_with_few_masks == 1
    assert report.few_masks == [{"sample": 0, "tokens": 32, "masked": 1}]
    many = mask_report(dataset(np.full(30, 5), 3), PIECES, [0] * (MOST_NAMED + 3), 32)
    assert (many.samples_with_few_masks, len(many.few_masks)) == (MOST_NAMED + 3, MOST_NAMED)


def test_masks_are_marked_in_the_text():
    sample = dataset(ids("天", "##地", "玄", "ab", "##cd", "ef"), 2, 3, 6)[0]
    assert marked_text(PIECES, sample) == "[CLS]天{地玄->__}abcd {ef->_} [SEP]"


def test_random_and_kept_tokens_are_shown_as_they_are():
    sample = Sample(
        ids("[CLS]", "天", "玄", "[SEP]"), np.zeros(4, int), np.array([1, 2]), ids("天", "地"), -1
    )
    assert marked_text(PIECES, sample) == "[CLS]{天地->天玄}[SEP]"
