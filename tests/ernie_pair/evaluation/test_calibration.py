"""Thresholds, calibration, slices and counted rows, against scikit-learn and numbers worked out by hand."""

import math

import numpy as np
import pytest
from reference_loss import drawn
from sklearn import metrics as sk

from ernie_pair.evaluation.calibration import (
    BINS,
    Bin,
    at_precision,
    best_f1,
    calibration_error,
    confidences_and_hits,
    equal_mass_bins,
    equal_width_bins,
    fit_temperature,
    is_at_the_end,
    measure_at,
    threshold_curve,
    top_label,
)
from ernie_pair.evaluation.evaluation import measure_slices
from ernie_pair.inference.scores import probabilities
from ernie_pair.pairs.data.label_checks import overlap
from ernie_pair.pairs.robustness.perturb import count_negations
from ernie_pair.pairs.targets.metrics import CountedRows, measure, resamples


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_counted_rows_equal_repeated_rows(classes, seed):
    logits, labels = drawn(60, classes, seed)
    counts = next(resamples(60, 1, seed))
    assert counts.sum() == 60 and (counts == 0).any()
    whole, repeated = np.ones(60, dtype=int), np.repeat(np.arange(60), counts)
    rows = CountedRows(logits, labels)
    for found, wanted in (
        (rows.measure(whole), measure(logits, labels)),
        (rows.measure(counts), measure(logits[repeated], labels[repeated])),
    ):
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_the_bootstrap_interval_matches_the_binomial_width():
    labels = np.arange(400) % 2
    logits = np.eye(2, dtype=np.float32)[np.where(np.arange(400) < 320, labels, 1 - labels)]
    rows = CountedRows(logits, labels)
    low, high = rows.intervals(samples=500, seed=1)["accuracy"]
    wide = 1.96 * math.sqrt(0.8 * 0.2 / 400)
    assert low < 0.8 < high and 0.85 < (high - low) / (2 * wide) < 1.15
    assert rows.intervals(20, 1) == rows.intervals(20, 1) != rows.intervals(20, 2)


@pytest.mark.parametrize("seed", range(6))
def test_thresholds_equal_those_of_a_search_by_scikit_learn(seed):
    """Scores of few values: of equal F1 the highest threshold is taken, of enough precision the lowest."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(1, 8, 30) / 8
    labels = np.append([0, 1], rng.integers(2, size=28))
    values, rows = np.unique(scores), []
    for value in values:
        called, ask = scores >= value, {"zero_division": 0}
        found = [score(labels, called, **ask) for score in (sk.precision_score, sk.recall_score, sk.f1_score)]
        rows.append([called.sum(), *found, sk.accuracy_score(labels, called)])
    names, curve = ("rows", "precision", "recall", "f1", "accuracy"), threshold_curve(scores, labels)
    precisions, f1 = np.array(rows)[:, 1], np.array(rows)[:, 3].round(12)
    nearest = (int(precisions.argmax()), 1.1)
    reached = [(int(np.flatnonzero(precisions >= asked)[0]), asked) for asked in precisions]
    chosen = [(at_precision(curve, asked), at) for at, asked in [*reached, nearest]]
    assert [found["reached"] for found, _ in chosen] == [True] * len(values) + [False]
    for found, at in [*chosen, (best_f1(curve), np.flatnonzero(f1 == f1.max())[-1])]:
        assert found["threshold"] == pytest.approx((values[at] + (values[at - 1] if at else 0)) / 2)
        assert [found[name] for name in names[:4]] == pytest.approx(rows[at][:4])
        measured = measure_at(found["threshold"], scores, labels)
        assert [measured[name] for name in names] == pytest.approx(rows[at])
    tied = threshold_curve(np.array([0.8, 0.6, 0.4, 0.2]), np.array([1, 0, 0, 1]))
    assert best_f1(tied)["threshold"] == pytest.approx(0.7)


def test_a_threshold_separates_adjacent_floats():
    high = np.nextafter(0.5, 1)
    best = best_f1(threshold_curve(np.array([0.5, high]), np.array([0, 1])))
    assert best["threshold"] == high


def test_the_calibration_error_of_two_bins():
    assert calibration_error([Bin(30, 0.9, 0.8), Bin(10, 0.2, 0.4)]) == pytest.approx(0.125)


def test_equal_mass_bins_have_equal_size_and_keep_ties_together():
    said = np.linspace(0, 1, 10 * BINS)
    assert [b.rows for b in equal_mass_bins(said, said > 0.5)] == [10] * BINS
    constant = equal_mass_bins(np.full(100, 0.5), np.arange(100) < 50)
    assert constant == [Bin(100, 0.5, 0.5)] and calibration_error(constant) == 0


def test_multiclass_confidence_is_that_of_the_predicted_class():
    shares = np.array([[0.2, 0.5, 0.3], [0.7, 0.1, 0.2]])
    said, true = confidences_and_hits(shares, np.array([1, 2]))
    assert said.tolist() == [0.5, 0.7] and true.tolist() == [True, False]


def test_bins_of_equal_width_are_those_of_numpy():
    """Guo et al. 2017: 15 bins of the confidence, open below and closed above, as 0.6 and 0.8 show."""
    logits, labels = drawn(500, 2)
    confidence, is_right = top_label(probabilities(logits).round(2), labels)
    places = np.digitize(confidence, np.arange(BINS + 1) / BINS, right=True)
    bins = [(confidence[places == place], is_right[places == place]) for place in np.unique(places)]
    found = equal_width_bins(confidence, is_right)
    assert found == [Bin(len(said), said.mean(), true.mean()) for said, true in bins]
    error = sum(len(said) * abs(said.mean() - true.mean()) for said, true in bins) / 500
    assert BINS == 15 and calibration_error(found) == pytest.approx(error, rel=1e-12)
    assert equal_width_bins(np.array([0.0, 1.0]), np.array([False, True])) == [Bin(1, 0, 0), Bin(1, 1, 1)]


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_fit_temperature_recovers_the_true_temperature(temperature):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20_000, 3)).astype(np.float32) * 2
    shares = probabilities(logits, temperature)
    labels = (shares.cumsum(axis=1) < rng.random((20_000, 1))).sum(axis=1)
    assert fit_temperature(logits, labels) == pytest.approx(temperature, rel=0.05)


@pytest.mark.parametrize("labels, limit", [((0, 1, 0, 1), 0.05), ((1, 0, 1, 0), 20.0)])
def test_a_model_always_right_or_wrong_is_at_a_limit(labels, limit):
    fitted = fit_temperature(np.eye(2, dtype=np.float32)[[0, 1, 0, 1]], np.array(labels))
    assert fitted == pytest.approx(limit, rel=1e-3) and is_at_the_end(fitted) and not is_at_the_end(1.4)


@pytest.mark.parametrize(
    "a, b, share",
    [("怎么开户", "如何开户", 2 / 6), ("open an account", "open account", 2 / 3), ("？", "！", 1)],
)
def test_overlap_counts_chinese_characters_and_english_words(a, b, share):
    assert overlap(a, b) == pytest.approx(share)


@pytest.mark.parametrize(
    "text, negated",
    [
        *(
            (text, True)
            for text in ("不能开户", "还没有到", "请勿打扰", "it is not here", "he doesn 't", "i can't")
        ),
        *((text, False) for text in ("能不能开户", "有没有", "非常好", "特别快", "note", "knot", "未来")),
    ],
)
def test_negation_is_not_detected_by_single_characters_alone(text, negated):
    assert (count_negations(text) > 0) is negated


def test_each_kind_of_slice_covers_every_row_once():
    left = ["２０２４年", "不好", "今天天气", "abc"]
    right = ["2023年", "很好", "天气今天", "abc def"]
    labels, predictions = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 0])
    table = measure_slices(left, right, labels, predictions, num_classes=2)
    for kind in ("length", "overlap", "negation", "digits"):
        assert sum(entry["rows"] for entry in table if entry["by"] == kind) == 4
    named = {(entry["by"], entry["slice"]): entry for entry in table}
    assert named["digits", "different numbers"] == {
        "by": "digits", "slice": "different numbers", "rows": 1,
        "accuracy": 1.0, "f1": 0.0, "share_positive": 0.0,
    }  # fmt: skip
    assert named["negation", "in one text only"]["accuracy"] == 0
    assert named["overlap", "the same words"]["rows"] == 1
    assert named["overlap", "50% to 75% of the words shared"]["rows"] == 1


def test_slices_of_three_classes_have_no_share_positive():
    table = measure_slices(["一", "二"], ["三", "四"], np.array([0, 2]), np.array([0, 1]), num_classes=3)
    assert {tuple(entry) for entry in table} == {("by", "slice", "rows", "accuracy", "f1")}
