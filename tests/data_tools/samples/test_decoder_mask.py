"""What RetroMAE's decoder sees: itself never, [CLS] always, a share of the words, drawn anew in each row."""

from types import SimpleNamespace

import numpy as np
import pytest
from masking_cases import PLAIN_OF, random_case, rule

from data_tools.dataset_utils import word_spans
from data_tools.ernie_dataset import ErnieDataset
from data_tools.samples.masking import seen_by_decoder
from data_tools.samples.split_datasets import collate

CLS, SEP, PAD = 1, 2, 0


@pytest.mark.parametrize("seed", range(40))
def test_a_row_hides_itself_and_whole_words(seed):
    tokens, options, _, _ = random_case(seed)
    tokens = np.array([CLS, *tokens, SEP])
    seen = seen_by_decoder(tokens, options, 0.5, np.random.default_rng(seed))
    special = np.isin(tokens, (CLS, SEP))
    starts, ends, _ = word_spans(tokens, options)
    for row in range(len(tokens)):
        assert seen[row, 0] and not (row and seen[row, row])
        others = np.delete(np.arange(len(tokens)), row)
        assert seen[row, others[special[others]]].all()
        for start, end in zip(starts, ends):
            rest = [at for at in range(start, end) if at != row]
            assert len(set(seen[row, rest])) <= 1


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_share_is_that_of_the_words_and_rows_differ(share):
    tokens = np.array([CLS, *np.tile([10, 11, 111, 12], 50), SEP])
    seen = seen_by_decoder(tokens, rule(), share, np.random.default_rng(3))
    words = seen[1:-1, 1:-1][:, [column for column in range(200) if column % 4 != 2]]
    off = ~np.eye(200, dtype=bool)[:, [column for column in range(200) if column % 4 != 2]]
    assert 1 - words[off].mean() == pytest.approx(share, abs=0.02)
    assert len(np.unique(seen, axis=0)) == len(tokens)


def dataset(**settings):
    ids, starts = np.arange(10, 46), np.array([0, 5, 13, 16, 36])
    corpus = SimpleNamespace(ids=np.where(ids % 3, ids, ids + 100), starts=starts, marks=None)
    rows = np.array([[0, 2, 61], [2, 4, 10], [3, 4, 61], [0, 4, 20]])
    return ErnieDataset(corpus, rows, rule(), seed=4, binary_head=False, **settings)


def test_a_batch_holds_the_texts_and_what_each_position_sees():
    """The encoder's masks are those without a decoder."""
    with_decoder, without = dataset(decoder_masked_prob=0.5), dataset()
    samples = [with_decoder[index] for index in range(4)]
    batch = collate(samples, pad_id=PAD, max_seq_len=64)
    for row, (sample, plain) in enumerate(zip(samples, map(without.__getitem__, range(4)))):
        assert all(np.array_equal(a, b) for a, b in zip(sample[:5], plain[:5]))
        tokens, length = PLAIN_OF[without.text(row).tokens], len(sample.input_ids)
        expected = np.where(np.isin(tokens, (CLS, SEP)), -1, tokens)
        assert batch["decoder_labels"][row, :length].tolist() == expected.tolist()
        assert (batch["decoder_labels"][row, length:] == -1).all()
        assert np.array_equal(batch["decoder_mask"][row, :length, :length], sample.decoder_mask)
        assert batch["decoder_mask"][row, length:, 0].all()  # else float16 gives NaN there
        assert not batch["decoder_mask"][row, length:, 1:].any()
        assert not batch["decoder_mask"][row, :, length:].any()
    assert "decoder_mask" not in collate([without[0]], pad_id=PAD, max_seq_len=64)
