import numpy as np
import pytest

from data_tools.dataset_utils import MaskingRule, choose_words, create_masked_lm_predictions, word_spans
from data_tools.ernie_dataset import join_segments, masking_rule, sample_rng
from data_tools.wordpiece import WordPiece

# 100 plain characters, ids 10..109, each with its continuation twin 100 higher.
PLAIN_OF = np.concatenate([np.arange(110), np.arange(10, 110)])
GOES_ON = np.arange(210) >= 110


def rule(**changes):
    settings = {"cls_id": 1, "sep_id": 2, "mask_id": 3, "random_ids": np.arange(10, 110), **changes}
    return MaskingRule(plain_of=PLAIN_OF, goes_on=GOES_ON, **settings)


def sentence(seed, words=30):
    """[CLS] A [SEP] B [SEP] with words of one to three characters."""
    rng = np.random.default_rng(seed)

    def segment(count):
        heads = rng.integers(10, 110, size=count)
        return np.concatenate(
            [[head, *(110 + rng.integers(0, 100, size=rng.integers(0, 3)))] for head in heads]
        )

    return join_segments(segment(words), segment(words // 2), 1, 2)[0]


def mask(seed=0, index=0, **changes):
    tokens = sentence(seed)
    return tokens, create_masked_lm_predictions(tokens, rule(**changes), sample_rng(7, index))


def test_masking_is_the_same_whenever_the_sample_is_read_again():
    first, again = mask(index=5)[1], mask(index=5)[1]
    assert all(np.array_equal(a, b) for a, b in zip(first, again))


def test_masking_differs_between_samples():
    assert not np.array_equal(mask(index=5)[1].positions, mask(index=6)[1].positions)


@pytest.mark.parametrize("index", range(30))
def test_whole_words_within_the_budget(index):
    tokens, masked = mask(seed=index, index=index)
    assert 1 <= len(masked.positions) <= max(1, round(0.15 * len(tokens)))
    starts, ends, _ = word_spans(tokens, rule())
    for start, end in zip(starts, ends):
        hidden = np.isin(np.arange(start, end), masked.positions)
        assert hidden.all() or not hidden.any()


@pytest.mark.parametrize("index", range(30))
def test_special_tokens_are_never_touched(index):
    tokens, masked = mask(seed=index, index=index)
    special = np.flatnonzero((tokens == 1) | (tokens == 2))
    assert not set(special) & set(masked.positions)
    assert np.array_equal(masked.ids[special], tokens[special])


@pytest.mark.parametrize("index", range(30))
def test_the_model_sees_and_predicts_characters_never_twins(index):
    tokens, masked = mask(seed=index, index=index)
    untouched = np.setdiff1d(np.arange(len(tokens)), masked.positions)
    assert np.array_equal(masked.labels, PLAIN_OF[tokens[masked.positions]])
    assert np.array_equal(masked.ids[untouched], PLAIN_OF[tokens[untouched]])
    assert masked.ids.max() < 110 and masked.labels.max() < 110


def test_eighty_ten_ten():
    kinds = np.zeros(3)
    for index in range(400):
        _, masked = mask(index=index)
        shown = masked.ids[masked.positions]
        kinds += [(shown == 3).sum(), (shown == masked.labels).sum(), 0]
        kinds[2] += len(shown)
    assert abs(kinds[0] / kinds[2] - 0.8) < 0.02
    assert abs(kinds[1] / kinds[2] - 0.1) < 0.02


def test_the_share_is_the_asked_one():
    masked, tokens = 0, 0
    for index in range(200):
        text, result = mask(seed=index, index=index, masked_lm_prob=0.3)
        masked, tokens = masked + len(result.positions), tokens + len(text)
    assert abs(masked / tokens - 0.3) < 0.01


def test_every_sample_has_a_masked_token_however_short():
    tokens = np.array([1, 10, 111, 112, 2])  # one word longer than the budget of one token
    masked = create_masked_lm_predictions(tokens, rule(), sample_rng(0, 0))
    assert masked.positions.tolist() == [1, 2, 3]


def test_an_ngram_stops_at_the_end_of_its_segment():
    starts, ends, last = [1, 2, 4, 5], [2, 3, 5, 6], [1, 1, 3, 3]
    assert choose_words(starts, ends, last, [1, 0, 2, 3], [3, 1, 1, 1], budget=10) == [1, 0, 2, 3]
    assert choose_words(starts, ends, last, [1], [3], budget=10) == [1]


def test_a_continuation_whose_word_was_cut_away_begins_a_word():
    starts, _, _ = word_spans(np.array([1, 10, 111, 2, 112, 113, 2]), rule())
    assert starts.tolist() == [1, 4]


def test_long_ngrams_can_be_favoured():
    def mean_run(**changes):
        runs = []
        for index in range(200):
            tokens = join_segments(np.arange(10, 110), None, 1, 2)[0]
            positions = create_masked_lm_predictions(tokens, rule(**changes), sample_rng(1, index)).positions
            runs.append(len(positions) / (1 + (np.diff(positions) > 1).sum()))
        return np.mean(runs)

    assert mean_run(max_ngrams=1) < mean_run() < mean_run(favor_longer_ngram=True)


def test_random_replacements_are_ordinary_tokens():
    pieces = WordPiece(["[PAD]", "[CLS]", "[SEP]", "[MASK]", "中", "##中", "ab", "##b", "[unused1]", "[UNK]"])
    made = masking_rule(pieces)
    assert [pieces.tokens[index] for index in made.random_ids] == ["中", "ab"]
    assert made.plain_of[5] == 4 and made.plain_of[7] == 7
