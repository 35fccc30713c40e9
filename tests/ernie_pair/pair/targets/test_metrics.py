"""Metrics, thresholds, calibration and slices against numbers worked out by hand and by scikit-learn."""

import math

import numpy as np
import pytest
from sklearn import metrics as sk

from data_tools.files.errors import InputError
from ernie_pair.inference.scores import probabilities
from ernie_pair.pair.robustness.perturb import is_negated
from ernie_pair.pair.targets.metrics import (
    METRICS,
    cross_entropies,
    describe_single_class,
    find_single_class,
    log_odds,
    measure,
    refuse_undefined,
    resamples,
)
from ernie_pair.score.evaluation.calibration import (
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
    threshold_curve,
    top_label,
)
from ernie_pair.score.evaluation.evaluation import CountedRows, intervals, overlap, slice_table


def drawn(rows, classes, seed=0):
    """Logits with ties that are correlated with the labels, and the labels."""
    rng = np.random.default_rng([seed, classes])
    labels = rng.integers(classes, size=rows)
    logits = rng.normal(size=(rows, classes)).round(1) + np.eye(classes)[labels]
    return logits.astype(np.float32), labels


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
    assert find_single_class(np.eye(2, dtype=np.float32)[predicted], np.array(labels)) == found
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
        refuse_undefined("auc", np.minimum(labels, 1), 3, "dev.tsv")
    refuse_undefined("f1", np.minimum(labels, 1), 3, "dev.tsv")


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
    low, high = intervals(logits, labels, samples=500, seed=1)["accuracy"]
    wide = 1.96 * math.sqrt(0.8 * 0.2 / 400)
    assert low < 0.8 < high and 0.85 < (high - low) / (2 * wide) < 1.15
    assert (
        intervals(logits, labels, 20, 1)
        == intervals(logits, labels, 20, 1)
        != intervals(logits, labels, 20, 2)
    )


SCORES, LABELS = np.array([0.9, 0.8, 0.8, 0.4, 0.3]), np.array([1, 1, 0, 1, 0])


def test_the_threshold_with_the_best_f1_is_found():
    best = best_f1(threshold_curve(SCORES, LABELS))
    assert best["threshold"] == pytest.approx(0.35) and best["rows"] == 4
    assert (best["precision"], best["recall"]) == (0.75, 1.0) and best["f1"] == pytest.approx(6 / 7)


@pytest.mark.parametrize("asked, threshold, precision, recall", [
    (0.6, 0.15, 3 / 5, 1), (0.9, 0.85, 1, 1 / 3), (0.75, 0.35, 3 / 4, 1),
])  # fmt: skip
def test_the_lowest_threshold_reaching_a_precision_is_found(asked, threshold, precision, recall):
    found = at_precision(threshold_curve(SCORES, LABELS), asked)
    assert found["reached"] and found["asked"] == asked
    values = [found[name] for name in ("threshold", "precision", "recall")]
    assert values == pytest.approx([threshold, precision, recall])
    nearest = at_precision(threshold_curve(SCORES, 1 - LABELS), 0.5)
    assert not nearest["reached"] and nearest["precision"] == pytest.approx(0.4) and nearest["rows"] == 5


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


def test_top_label_calibration_error_uses_equal_width_bins():
    """Guo et al. 2017: 15 bins of the confidence, open below and closed above."""
    logits, labels = drawn(500, 2)
    shares = probabilities(logits)
    confidence, is_right = shares.max(axis=1), shares.argmax(axis=1) == labels
    expected = 0.0
    for low, high in zip(np.arange(15) / 15, np.arange(1, 16) / 15):
        inside = (low < confidence) & (confidence <= high)
        if inside.any():
            expected += inside.mean() * abs(confidence[inside].mean() - is_right[inside].mean())
    found = calibration_error(equal_width_bins(*top_label(shares, labels)))
    assert math.isclose(found, expected, rel_tol=1e-9)
    assert abs(found - calibration_error(equal_mass_bins(*confidences_and_hits(shares, labels)))) > 1e-3
    assert equal_width_bins(np.array([0.0, 1.0]), np.array([False, True])) == [Bin(1, 0, 0), Bin(1, 1, 1)]


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_fit_temperature_recovers_the_true_temperature(temperature):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20_000, 3)).astype(np.float32) * 2
    shares = probabilities(logits, temperature)
    labels = (shares.cumsum(axis=1) < rng.random((20_000, 1))).sum(axis=1)
    assert fit_temperature(logits, labels) == pytest.approx(temperature, rel=0.05)


def test_separable_classes_give_a_temperature_at_the_limit():
    logits = np.eye(2, dtype=np.float32)[[0, 1, 0, 1]]
    fitted = fit_temperature(logits, np.array([0, 1, 0, 1]))
    assert 0.04 < fitted < 0.06 and is_at_the_end(fitted) and not is_at_the_end(1.4)


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
    assert is_negated(text) is negated


def test_each_kind_of_slice_covers_every_row_once():
    left = ["２０２４年", "不好", "今天天气", "abc"]
    right = ["2023年", "很好", "天气今天", "abc def"]
    labels, predictions = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 0])
    table = slice_table(left, right, labels, predictions, num_classes=2)
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
    table = slice_table(["一", "二"], ["三", "四"], np.array([0, 2]), np.array([0, 1]), num_classes=3)
    assert {tuple(entry) for entry in table} == {("by", "slice", "rows", "accuracy", "f1")}
