"""The metrics of classes and their intervals, against scikit-learn, scipy and numbers worked out by hand."""

import math

import numpy as np
import pytest
from reference_loss import drawn
from scipy import stats
from sklearn import metrics as sk

from ernie_pair.core.errors import InputError
from ernie_pair.inference.scores import probabilities
from ernie_pair.pairs.targets.metrics import (
    METRICS,
    bootstrap_intervals,
    check_defined,
    cross_entropies,
    describe_single_class,
    find_single_class,
    log_odds,
    measure,
    percentile_interval,
    resamples,
)

NEAR, FAR = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))
MARGINS = np.array([0.9, 0.8, 0.7, 0.6, 0.5])


@pytest.mark.parametrize("logits, labels, expected", [
    ([[2, 0], [0, 2], [0, 2], [2, 0]], [0, 1, 0, 1], {"loss": (NEAR + FAR) / 2, "mcc": 0.0, **dict.fromkeys(
        ("accuracy", "f1", "precision", "recall"), 0.5)}),
    (np.eye(2)[[1, 1, 1, 0]], [1, 1, 0, 0],
     {"f1": 0.8, "recall": 1, "precision": 2 / 3, "mcc": 1 / math.sqrt(3)}),  # f1 is that of class 1
    (np.eye(3)[[0, 1, 1]], [0, 1, 2],  # the mean over the classes
     {"f1": (1 + 2 / 3) / 3, "precision": (1 + 1 / 2) / 3, "auc": (1 + 3 / 4 + 1 / 2) / 3}),
    (np.stack([0 * MARGINS, MARGINS], axis=1), [1, 0, 1, 1, 0],  # of 3 x 2 pairs of a positive and a negative
     {"auc": 4 / 6, "average_precision": (1 / 1 + 2 / 3 + 3 / 4) / 3}),
])  # fmt: skip
def test_metrics_equal_those_worked_out_by_hand(logits, labels, expected):
    metrics = measure(np.array(logits, dtype=np.float32), np.array(labels))
    assert tuple(metrics) == METRICS
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_match_scikit_learn(classes):
    logits, labels = drawn(300, classes)
    shares, metrics = probabilities(logits), measure(logits, labels)
    predictions, only = shares.argmax(axis=1), shares[:, 1] if classes == 2 else shares
    more = {} if classes == 2 else {"average": "macro"}
    assert math.isclose(metrics["loss"], sk.log_loss(labels, shares), rel_tol=1e-6)
    assert metrics["mcc"] == sk.matthews_corrcoef(labels, predictions)
    assert metrics["precision"] == sk.precision_score(labels, predictions, **more)
    assert math.isclose(metrics["auc"], sk.roc_auc_score(labels, only, multi_class="ovr"), rel_tol=1e-9)
    assert math.isclose(metrics["average_precision"], sk.average_precision_score(labels, only), rel_tol=1e-9)


@pytest.mark.parametrize(
    "predicted, labels, found",
    [
        ([1, 1, 1], [0, 1, 1], 1),
        ([0, 0, 0], [0, 1, 1], 0),
        ([0, 1, 1], [0, 1, 1], None),
        ([1, 1], [1, 1], None),
    ],
)
def test_a_classifier_predicting_a_single_class_is_detected(predicted, labels, found):
    """If the labels are all of one class too, that is not reported."""
    assert find_single_class(np.array(predicted), np.array(labels)) == found
    assert "predicts 相同 for all 3 rows" in describe_single_class("相同", 3)


def test_large_logits_do_not_overflow_and_keep_their_order():
    logits = np.array([[3e4, -3e4], [2e4, -3e4]], dtype=np.float32)
    assert cross_entropies(logits, np.array([1, 1])).tolist() == [6e4, 5e4]
    assert log_odds(logits)[:, 1].tolist() == [-6e4, -5e4]


def test_auc_is_undefined_if_a_class_does_not_occur():
    logits, labels = drawn(20, 3)
    metrics = measure(logits, np.minimum(labels, 1))
    assert math.isnan(metrics["auc"]) and math.isnan(metrics["average_precision"]) and metrics["f1"] > 0
    with pytest.raises(InputError, match="dev.tsv has no pair of class 2, so auc is undefined on it"):
        check_defined("auc", np.minimum(labels, 1), 3, "dev.tsv")
    check_defined("f1", np.minimum(labels, 1), 3, "dev.tsv")
    with pytest.raises(InputError, match="no pair of class 1, so mcc is undefined"):
        check_defined("mcc", np.zeros(4, dtype=int), 2, "dev.tsv")
    check_defined("mcc", np.minimum(labels, 1), 3, "dev.tsv")


def test_every_row_is_drawn_as_often_as_any_other():
    drawn = list(resamples(7, 1000, seed=3))
    assert len({tuple(counts) for counts in drawn}) > 500
    assert {counts.sum() for counts in drawn} == {7}
    assert np.sum(drawn, axis=0) == pytest.approx(np.full(7, 1000), abs=150)
    assert not np.array_equal(drawn[0], next(resamples(7, 1, seed=4)))


def test_bootstrap_intervals_match_scipy():
    """The middle 95 % of the resamples; a metric without a value on any has no interval."""
    values = np.random.default_rng(0).exponential(size=80)
    found = bootstrap_intervals(
        lambda counts: {"mean": counts @ values / counts.sum(), "auc": math.nan}, ("mean", "auc"), 80, 2000, 1
    )
    low, high = stats.bootstrap((values,), np.mean, n_resamples=2000, method="percentile").confidence_interval
    assert found == {"mean": pytest.approx([low, high], abs=(high - low) / 7)}
    assert percentile_interval(np.append(np.arange(1001.0), math.nan)) == pytest.approx([25, 975])
