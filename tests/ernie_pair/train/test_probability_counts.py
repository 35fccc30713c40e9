"""The probability counts of an evaluation, and the curve derived from them."""

import numpy as np
import pytest
from sklearn.metrics import precision_score, recall_score

from ernie_pair.train.probability_counts import PARTS, count_probabilities, curve_of, parse_counts


@pytest.fixture
def answers():
    rng = np.random.default_rng(3)
    labels = rng.integers(2, size=500)
    return np.clip(rng.normal(0.3 + 0.4 * labels, 0.2), 0, 1), labels


def test_every_row_is_counted_once_by_its_label(answers):
    given, labels = answers
    counts = count_probabilities(given, labels)
    assert [sum(row) for row in counts] == np.bincount(labels).tolist()
    assert counts[1][-1] == np.count_nonzero((given >= 0.99) & (labels == 1))
    assert parse_counts(counts).shape == (2, PARTS)


def test_the_curve_matches_scikit_learn(answers):
    given, labels = answers
    curve = curve_of(np.array(count_probabilities(given, labels)))
    for part in (0, 37, 50, 99):
        predicted = np.floor(given * PARTS).clip(max=PARTS - 1) >= part
        assert curve["precision"][part] == pytest.approx(precision_score(labels, predicted))
        assert curve["recall"][part] == pytest.approx(recall_score(labels, predicted))


def test_nan_probabilities_are_left_out():
    counts = count_probabilities(np.array([np.nan, 0.2, 1.0]), np.array([0, 0, 1]))
    assert [sum(row) for row in counts] == [1, 1] and counts[0][20] == 1 and counts[1][99] == 1


def test_a_missing_class_still_gives_a_curve():
    curve = curve_of(np.array(count_probabilities(np.array([0.2]), np.array([0]))))
    assert set(curve["recall"]) == {0.0} and curve["precision"][0] == 0.0 and curve["precision"][99] == 1.0
