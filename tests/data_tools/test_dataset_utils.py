import numpy as np
import pytest
from masking_cases import PLAIN_OF, compiled, random_case, rule

from data_tools import dataset_utils
from data_tools.dataset_utils import (
    Draws,
    choose_words,
    create_masked_lm_predictions,
    hide_words,
    hide_words_fast,
    word_spans,
)
from data_tools.ernie_dataset import join_segments, masking_rule
from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.keyed_cache import keyed_rng


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
    return tokens, create_masked_lm_predictions(tokens, rule(**changes), keyed_rng(7, index))


def test_masking_a_sample_again_gives_the_same_result():
    first, again = mask(index=5)[1], mask(index=5)[1]
    assert all(np.array_equal(a, b) for a, b in zip(first, again))


def test_masking_differs_between_samples():
    assert not np.array_equal(mask(index=5)[1].positions, mask(index=6)[1].positions)


@pytest.mark.parametrize("index", range(30))
def test_masking_covers_whole_words_within_the_budget(index):
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


def test_masked_tokens_are_split_80_10_10():
    kinds = np.zeros(3)
    for index in range(400):
        _, masked = mask(index=index)
        shown = masked.ids[masked.positions]
        kinds += [(shown == 3).sum(), (shown == masked.labels).sum(), 0]
        kinds[2] += len(shown)
    assert abs(kinds[0] / kinds[2] - 0.8) < 0.02
    assert abs(kinds[1] / kinds[2] - 0.1) < 0.02


@pytest.mark.parametrize("share", [0.15, 0.3, 0.5])
def test_the_rounded_share_of_single_characters_is_masked(share):
    for length in range(1, 60):
        tokens = join_segments(np.arange(10, 10 + length), None, 1, 2)[0]
        masked = create_masked_lm_predictions(tokens, rule(masked_lm_prob=share), keyed_rng(1, length))
        assert len(masked.positions) == min(length, max(1, round(share * (length + 2))))


def test_every_sample_has_a_masked_token_however_short():
    tokens = np.array([1, 10, 111, 112, 2])  # one word longer than the budget of one token
    masked = create_masked_lm_predictions(tokens, rule(), keyed_rng(0, 0))
    assert masked.positions.tolist() == [1, 2, 3]


def test_an_ngram_stops_at_the_end_of_its_segment():
    starts, ends, last = [1, 2, 4, 5], [2, 3, 5, 6], [1, 1, 3, 3]
    assert choose_words(starts, ends, last, [1, 0, 2, 3], [3, 1, 1, 1], budget=10) == [1, 0, 2, 3]
    assert choose_words(starts, ends, last, [1], [3], budget=10) == [1]


def test_a_continuation_without_its_first_piece_begins_a_word():
    starts, _, _ = word_spans(np.array([1, 10, 111, 2, 112, 113, 2]), rule())
    assert starts.tolist() == [1, 4]


def test_long_ngrams_can_be_favoured():
    def mean_run(**changes):
        runs = []
        for index in range(200):
            tokens = join_segments(np.arange(10, 110), None, 1, 2)[0]
            positions = create_masked_lm_predictions(tokens, rule(**changes), keyed_rng(1, index)).positions
            runs.append(len(positions) / (1 + (np.diff(positions) > 1).sum()))
        return np.mean(runs)

    assert mean_run(max_ngrams=1) < mean_run() < mean_run(favor_longer_ngram=True)


def test_random_replacements_are_ordinary_tokens():
    tokenizer = WordPiece(
        ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "中", "##中", "ab", "##b", "[unused1]", "[UNK]"]
    )
    made = masking_rule(tokenizer)
    assert [tokenizer.tokens[index] for index in made.random_ids] == ["中", "ab"]
    assert made.base_ids[5] == 4 and made.base_ids[7] == 7


def test_a_vocabulary_without_ordinary_tokens_is_refused():
    with pytest.raises(InputError, match="no ordinary token"):
        masking_rule(WordPiece(["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "##a"]))


@compiled
@pytest.mark.parametrize("first", range(0, 600, 100))
def test_compiled_masks_equal_python_masks_for_every_option(first):
    for seed in range(first, first + 100):
        case = random_case(seed)
        for one, other in zip(hide_words_fast(*case), hide_words(*case)):
            assert one.dtype == other.dtype == np.int64 and np.array_equal(one, other), seed


@compiled
def test_compiled_masks_equal_python_masks_at_boundary_draws():
    tokens, options, draws, budget = random_case(4)
    edges = [0.0, *options.ngram_borders, 0.8, 0.9, 0.8 + 0.1, np.nextafter(1, 0)]
    for edge in edges:
        case = (tokens, options, draws._replace(uniform=np.full_like(draws.uniform, edge)), budget)
        assert all(map(np.array_equal, hide_words_fast(*case), hide_words(*case)))


@compiled
@pytest.mark.parametrize("bad", [-1, 210])
def test_the_compiled_masks_refuse_ids_outside_the_vocabulary(bad):
    draws = Draws(np.arange(3), np.zeros((3, 3)))
    with pytest.raises(IndexError, match="vocabulary"):
        hide_words_fast(np.array([1, bad, 2]), rule(), draws, 1)


def test_the_masks_are_the_same_without_the_compiled_helper(monkeypatch):
    fast = [mask(seed=index, index=index)[1] for index in range(20)]
    monkeypatch.setattr(dataset_utils, "compiled_hide_words", None)
    for index, one in enumerate(fast):
        assert all(map(np.array_equal, one, mask(seed=index, index=index)[1]))


def test_without_whole_words_each_token_is_a_word():
    tokens = sentence(0)
    starts, ends, _ = word_spans(tokens, rule(whole_word_mask=False))
    assert len(starts) == len(tokens) - 3 and set(ends - starts) == {1}


def test_geometric_lengths_are_clipped_at_max_ngrams():
    sizes = 1 + np.searchsorted(
        rule(geometric=True, max_ngrams=3).ngram_borders, np.arange(0, 1, 1e-4), "right"
    )
    assert np.allclose(np.bincount(sizes)[1:] / len(sizes), [0.2, 0.16, 0.64], atol=1e-3)


def test_ngram_probabilities_fall_as_1_over_n_or_favour_long():
    assert np.allclose(rule().ngram_borders, [6 / 11, 9 / 11])
    assert np.allclose(rule(favor_longer_ngram=True).ngram_borders, [2 / 11, 5 / 11])
    assert not len(rule(max_ngrams=1).ngram_borders)
