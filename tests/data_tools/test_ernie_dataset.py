from types import SimpleNamespace

import numpy as np
import pytest
from masking_cases import rule

from data_tools.dataset_utils import MaskedTokens
from data_tools.ernie_dataset import ErnieDataset, make_segments

SENTENCES = [np.arange(10, 15), np.arange(20, 28), np.arange(30, 33), np.arange(40, 60)]
CORPUS = SimpleNamespace(ids=np.concatenate(SENTENCES), starts=np.array([0, 5, 13, 16, 36]), marks=None)
ROWS = np.array([[0, 2, 61], [2, 4, 10], [3, 4, 61], [0, 4, 20]])


def dataset(seed=1, **settings):
    return ErnieDataset(CORPUS, ROWS, rule(), seed=seed, **settings)


def test_a_sample_is_a_pure_function_of_its_index():
    forward = [dataset()[index] for index in range(4)]
    backward = [dataset()[index] for index in reversed(range(4))][::-1]
    for one, other in zip(forward, backward):
        assert all(np.array_equal(a, b) for a, b in zip(one, other))


def test_a_sample_is_cls_a_sep_b_sep_within_its_target():
    sample = dataset()[3]
    assert sample.input_ids[0] == 1 and sample.input_ids[-1] == 2
    assert len(sample.input_ids) == 20 + 3
    border = np.flatnonzero(sample.input_ids == 2)[0]
    assert sample.token_type_ids.tolist() == [0] * (border + 1) + [1] * (len(sample.input_ids) - border - 1)


def test_one_sentence_is_one_segment_without_a_label():
    sample = dataset()[2]
    assert sample.sop_label == -1 and not sample.token_type_ids.any()


def test_the_sentence_order_head_can_be_off():
    assert {dataset(binary_head=False)[index].sop_label for index in range(4)} == {-1}


@pytest.mark.parametrize("seed", range(50))
def test_swapped_segments_are_labelled_and_hold_the_same_text(seed):
    segments = make_segments(CORPUS.starts, 100, np.random.default_rng(seed))
    a, b = segments.of(CORPUS.ids)[:: -1 if segments.label else 1]
    assert np.array_equal(np.concatenate([a, b]), np.concatenate(SENTENCES))


def test_any_sentence_but_the_first_may_begin_segment_two():
    borders = []
    for seed in range(300):
        segments = make_segments(CORPUS.starts, 100, np.random.default_rng(seed))
        borders.append(max(segments.a.start, segments.b.start))
    places, counts = np.unique(borders, return_counts=True)
    assert places.tolist() == [5, 13, 16] and counts.min() > 70


def test_half_of_the_samples_are_swapped():
    labels = [make_segments(CORPUS.starts, 100, np.random.default_rng(seed)).label for seed in range(400)]
    assert 0.42 < np.mean(labels) < 0.58


@pytest.mark.parametrize("target", [2, 3, 7, 12, 35, 36])
def test_truncation_leaves_no_segment_empty(target):
    for seed in range(20):
        a, b = make_segments(CORPUS.starts, target, np.random.default_rng(seed)).of(CORPUS.ids)
        assert len(a) and len(b)
        assert len(a) + len(b) == min(target, 36)


def test_each_token_that_is_cut_off_is_from_either_end():
    bounds, cuts = np.array([0, 40]), []
    for seed in range(400):
        segments = make_segments(bounds, 20, np.random.default_rng(seed), binary_head=False)
        cuts.append(segments.a.start)
    assert np.mean(cuts) == pytest.approx(10, abs=0.4) and np.var(cuts) == pytest.approx(5, abs=1.5)


def test_the_labels_of_a_sample_restore_its_text():
    for number in range(4):
        text, sample = dataset().text(number), dataset()[number]
        shown = sample.input_ids.copy()
        shown[sample.masked_positions] = sample.masked_labels
        assert np.array_equal(shown, text.tokens) and sample.sop_label == text.sop_label


def test_a_custom_masking_function_replaces_the_default():
    def hide_first(tokens, rule, rng, marks):
        return MaskedTokens(tokens, np.array([1]), tokens[1:2])

    assert dataset(masking_fn=hide_first)[0].masked_positions.tolist() == [1]
