"""Regression, ranking and per-class metrics, compared with SciPy and scikit-learn."""

import math
from functools import partial

import numpy as np
import pytest
from scipy.special import log_softmax
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import average_precision_score, confusion_matrix, ndcg_score
from sklearn.metrics import precision_recall_fscore_support as by_class
from sklearn.utils.class_weight import compute_class_weight

from ernie_pair.core.errors import InputError
from ernie_pair.models.labels import UNLABELLED, Labels
from ernie_pair.pairs.targets.metrics import (
    CountedQueries,
    CountedScores,
    check_measurable,
    check_metric_of_target,
    choose_measure,
    choose_metric,
    class_averages,
    class_table,
    compute_class_weights,
    error_bins,
    measure_ranking,
    measure_scores,
    measure_with,
    number_texts,
    read_own_metrics,
    resamples,
    rows_without_positive,
    training_groups,
)
from ernie_pair.runtime.processes.world import World

RNG = np.random.default_rng(5)
LABELS = RNG.integers(0, 11, 60) / 2.0
OUTPUTS = (LABELS + RNG.normal(size=60)).astype(np.float32)[:, None]


def test_regression_metrics_match_scipy():
    found, scores = measure_scores(OUTPUTS, LABELS), OUTPUTS[:, 0].astype(np.float64)
    assert found["pearson"] == pytest.approx(pearsonr(scores, LABELS)[0], abs=1e-12)
    assert found["spearman"] == pytest.approx(spearmanr(scores, LABELS)[0], abs=1e-12)
    assert found["mse"] == found["loss"] == pytest.approx(np.mean((scores - LABELS) ** 2))
    assert found["mae"] == pytest.approx(np.abs(scores - LABELS).mean())


def test_metrics_use_scores_clipped_to_the_label_range():
    found, clipped = measure_scores(OUTPUTS, LABELS, (0, 5)), OUTPUTS[:, 0].astype(np.float64).clip(0, 5)
    assert found["mse"] == pytest.approx(np.mean((clipped - LABELS) ** 2)) and found["mse"] < found["loss"]
    assert found["spearman"] == pytest.approx(spearmanr(clipped, LABELS)[0], abs=1e-12)


def test_counted_scores_equal_repeated_rows():
    counted = CountedScores(OUTPUTS, LABELS, (0, 5))
    for counts in resamples(len(LABELS), 4, seed=1):
        rows = np.repeat(np.arange(len(LABELS)), counts)
        assert counted.measure(counts) == pytest.approx(measure_scores(OUTPUTS[rows], LABELS[rows], (0, 5)))


def test_correlation_is_0_for_equal_scores_nan_for_equal_labels():
    found = measure_scores(np.full((4, 1), 0.1, np.float32), np.array([0.0, 1.0, 2.0, 3.0]))
    assert found["pearson"] == found["spearman"] == 0.0
    assert np.isnan(measure_scores(OUTPUTS[:4], np.full(4, 0.3))["pearson"])
    of_one_label = np.equal(LABELS, LABELS[0]).astype(np.int64)
    assert np.isnan(CountedScores(OUTPUTS, LABELS, None).measure(of_one_label)["pearson"])
    check_measurable("mse", np.full(4, 0.3), Labels.scores(), "dev.tsv")
    check_measurable("pearson", np.array([0.3, 1.0]), Labels.scores(), "dev.tsv")
    with pytest.raises(InputError, match="dev.tsv has a single label, 0.3, so pearson is undefined"):
        check_measurable("pearson", np.full(4, 0.3), Labels.scores(), "dev.tsv")


def test_label_bins_are_those_of_numpys_histogram():
    scores = OUTPUTS[:, 0]
    counts, edges = np.histogram(LABELS, bins=10)
    bins = error_bins(scores, LABELS)
    assert [each["rows"] for each in bins] == counts[counts > 0].tolist()
    for each, place in zip(bins, np.flatnonzero(counts)):
        inside = (edges[place] <= LABELS) & ((edges[place + 1] > LABELS) | (place == 9))
        error = np.abs(scores - LABELS)[inside].mean()
        wanted = (
            edges[place],
            edges[place + 1],
            inside.sum(),
            LABELS[inside].mean(),
            scores[inside].mean(),
            error,
        )
        assert list(each.values()) == pytest.approx([float(value) for value in wanted])


def queries(count, seed=0, best=1):
    """Scores with ties, labels up to ``best`` and queries; the rows of a query are not adjacent."""
    rng = np.random.default_rng(seed)
    groups = number_texts([str(number) for number in rng.permutation(np.repeat(np.arange(count), 6))])
    return (
        rng.integers(0, 4, len(groups)).astype(np.float32)[:, None],
        (rng.random(len(groups)) < 0.3) * rng.integers(1, best + 1, len(groups)),
        groups,
    )


@pytest.mark.parametrize("best", [1, 3])
def test_ranking_metrics_match_scikit_learn_with_ties(best):
    """Of equal scores the lowest label stands first, which scikit-learn is told by other scores."""
    outputs, labels, groups = queries(30, best=best)
    found, wanted = measure_ranking(outputs, labels, groups), []
    for query in range(30):
        mine, scores = labels[groups == query], outputs[groups == query, 0]
        if mine.min() < mine.max():
            order = np.lexsort((mine, -scores))
            untied = -np.argsort(order).astype(float)
            loss, first = -log_softmax(scores) @ mine / mine.sum(), 1 + np.argmax(mine[order] > 0)
            precision, ndcg = average_precision_score(mine > 0, untied), ndcg_score([mine], [untied])
            wanted.append((loss, 1 / first, precision, ndcg, first == 1))
    assert list(found.values()) == pytest.approx(np.mean(wanted, axis=0).tolist(), rel=1e-6)


def test_counted_queries_equal_repeated_queries():
    outputs, labels, groups = queries(8)
    counted = CountedQueries(outputs, labels, groups)
    counts = next(resamples(counted.size, 1, seed=2))
    rows, names, kept = [], [], [query.rows for query in counted.queries]
    for number, (mine, times) in enumerate(zip(kept, counts)):
        for time in range(times):
            rows += mine.tolist()
            names += [f"{number} {time}"] * len(mine)
    again = measure_ranking(outputs[rows], labels[rows], number_texts(names))
    assert counted.measure(counts) == pytest.approx(again)


def test_ranking_metrics_need_a_query_with_two_labels():
    for labels in ([1, 0], [3, 1]):
        check_measurable("mrr", np.array(labels), Labels.of_candidates(), "dev.tsv", np.array([0, 0]))
    with pytest.raises(InputError, match="dev.tsv has no query whose candidates have different labels"):
        check_measurable("mrr", np.array([2, 2]), Labels.of_candidates(), "dev.tsv", np.array([0, 0]))
    assert rows_without_positive(np.array([0, 1, 0, 1]), np.array([0, 0, 2, 0])).tolist() == [1, 3]


def test_per_class_metrics_match_scikit_learn():
    labels, predictions = RNG.integers(0, 3, 50), RNG.integers(0, 4, 50)
    confusion = confusion_matrix(labels, predictions, labels=range(5))
    table = class_table(confusion, list("abcde"))
    values = by_class(labels, predictions, labels=range(5), zero_division=0)
    for name, wanted in zip(("precision", "recall", "f1", "rows"), values):
        assert [row[name] for row in table] == pytest.approx(wanted.tolist())
    assert [row["predicted"] for row in table] == np.bincount(predictions, minlength=5).tolist()
    for average, found in class_averages(confusion).items():
        wanted = by_class(labels, predictions, average=average, zero_division=0)[:3]
        assert [found[name] for name in ("precision", "recall", "f1")] == pytest.approx(wanted)


def test_each_target_has_its_own_metrics():
    chosen = [choose_metric("auto", target) for target in ("classification", "regression", "ranking")]
    assert chosen == ["accuracy", "mse", "mrr"] and choose_metric("f1", "regression") == "f1"
    with pytest.raises(InputError, match="best_metric accuracy is not a metric of a model for regression"):
        check_metric_of_target("accuracy", "regression")
    for metric in ("mse", "one_of_the_users"):
        check_metric_of_target(metric, "regression")
    with pytest.raises(InputError, match="dev.tsv has no pair of class 2, so auc is undefined on it"):
        check_measurable("auc", np.array([0, 1]), Labels.numbered(3), "dev.tsv")
    assert "accuracy" in choose_measure(Labels.numbered(2))(np.eye(2, dtype=np.float32), np.array([0, 1]))


def test_balanced_weights_are_those_of_scikit_learn():
    labels = np.array([0] * 6 + [1] * 2 + [2] * 4)
    weights = compute_class_weights("balanced", 3, labels, "train.tsv")
    wanted = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    np.testing.assert_allclose(weights, wanted, rtol=1e-6)
    unknown = np.append(labels, [UNLABELLED] * 5)
    np.testing.assert_array_equal(compute_class_weights("balanced", 3, unknown, "train.tsv"), weights)
    assert compute_class_weights("", 3, labels, "train.tsv") is None
    assert compute_class_weights("1, 2.5,0", 3, None, "train.tsv").tolist() == [1, 2.5, 0]


def test_balanced_weights_need_every_class_to_occur():
    with pytest.raises(InputError, match=r"^train\.tsv has no pair of class 1, so class_weights balanced"):
        compute_class_weights("balanced", 3, np.array([0, 2]), "train.tsv")


@pytest.mark.parametrize("found", [None, 0.5, {"accuracy": "high"}, {"accuracy": None}, [("accuracy", 1.0)]])
def test_what_is_no_dictionary_of_numbers_is_refused(found):
    with pytest.raises(InputError, match="mine returned .*; return a dictionary of numbers"):
        read_own_metrics(found, "accuracy", "mine")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_metric_that_chooses_the_best_is_finite(value):
    assert read_own_metrics({"a": 1, "other": value}, "a", "mine") == pytest.approx(
        {"a": 1, "other": value}, nan_ok=True
    )
    with pytest.raises(InputError, match="mine returned a .*, which can choose no best model"):
        read_own_metrics({"a": value}, "a", "mine")


def test_the_users_metrics_are_added_and_the_best_one_is_known():
    measured = partial(
        measure_with, measure_scores, world=World(), all_reduce=None, logits=OUTPUTS, labels=LABELS
    )
    own = measured(lambda prediction: {"mse": 7, "rows": len(prediction.label_ids)}, "rows")
    assert own == {**measure_scores(OUTPUTS, LABELS), "mse": 7.0, "rows": 60.0}
    assert measured(None, "mse") == measure_scores(OUTPUTS, LABELS)
    with pytest.raises(InputError, match="best_metric rows is not one of loss, pearson"):
        measured(None, "rows")


@pytest.mark.parametrize("seed", range(30))
def test_groups_of_grades_have_an_order_and_lose_no_candidate(seed):
    """For any ``most``: each part has two labels, and no row of a query with an order is left out."""
    rng = np.random.default_rng(seed)
    groups = number_texts(list(map(str, rng.integers(0, 12, 200))))
    labels, most = rng.integers(0, 4, 200), int(rng.choice([0, 2, 5, 16]))
    labels[groups == 0] = 2  # without an order
    labels[groups == 1] = rng.integers(1, 3, int((groups == 1).sum()))  # the lowest is not 0
    found = training_groups(groups, labels, most)
    for rows in found:
        assert np.ptp(labels[rows]) and len(rows) <= (most or 200) and len(set(groups[rows])) == 1
        assert len(set(rows.tolist())) == len(rows)
    with_order = [group for group in range(12) if np.ptp(labels[groups == group])]
    assert set(np.concatenate(found).tolist()) == set(np.flatnonzero(np.isin(groups, with_order)).tolist())
    if not most:
        assert len(found) == len(with_order)
