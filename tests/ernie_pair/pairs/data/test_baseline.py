"""What counting the characters that two texts share reaches."""

import json

import numpy as np
import pytest

from ernie_pair.evaluation import evaluate_pair
from ernie_pair.models.labels import RANKING, REGRESSION, Labels
from ernie_pair.pairs.data import label_checks
from ernie_pair.pairs.data.label_checks import (
    ABOVE_ALL,
    best_thresholds,
    describe_baseline,
    measure_shared_characters,
    metrics_of_thresholds,
)
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.targets.metrics import OF_TARGET, measure


def pairs_of(rows, groups=None):
    left, right, labels = zip(*rows)
    return Pairs(list(left), list(right), np.array(labels), "", groups=groups)


def test_each_threshold_is_measured_as_any_model_is():
    rng = np.random.default_rng(0)
    shares, is_positive = rng.integers(0, 6, 50) / 5, rng.random(50) < 0.4
    thresholds, metrics = metrics_of_thresholds(shares, is_positive)
    assert thresholds.tolist() == [np.inf, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]
    for number, threshold in enumerate(thresholds):
        logits = np.stack([np.full(50, 0.5), shares >= threshold], axis=1).astype(np.float32)
        found = measure(logits, is_positive.astype(int))
        assert all(np.isclose(metrics[name][number], found[name]) for name in ("accuracy", "f1"))


def test_the_best_threshold_separates_what_characters_separate():
    rows = [
        ("\u6211\u7231\u4f60", "\u6211\u7231\u4ed6", 1),
        ("\u6211\u7231\u4f60", "\u5929\u5b89\u95e8", 0),
    ] * 3
    found = measure_shared_characters(pairs_of(rows), Labels.numbered(2))
    assert found == {"accuracy": 1.0, "f1": 1.0, "auc": 1.0}
    turned = [(a, b, 1 - label) for a, b, label in rows]
    found = measure_shared_characters(pairs_of(turned), Labels.numbered(2))
    assert (found["accuracy"], found["auc"]) == (0.5, 0.0) and found["f1"] == pytest.approx(2 / 3)
    assert measure_shared_characters(pairs_of(rows), Labels.numbered(3)) == {}


@pytest.mark.parametrize("names", [("duplicate", "not_duplicate"), ("同义", "不同义")])
def test_if_class_0_matches_few_shared_characters_are_class_1(names):
    labels = Labels.named(dict(zip(names, (0, 1))))
    rows = [("一二", "一二", 0), ("一二", "三", 1), ("一二", "一", 0), ("一二", "四", 1)]
    thresholds = best_thresholds(pairs_of(rows), labels)
    found = describe_baseline(pairs_of(rows), labels, thresholds)
    assert (found["accuracy"], found["f1"], found["auc"]) == (1.0, 1.0, 1.0)


def test_candidates_and_scores_are_ranked_by_what_they_share():
    rows = [("ab cd", "ab cd", 1), ("ab cd", "ef", 0), ("gh", "ij", 0), ("gh", "gh kl", 1)]
    ranked = measure_shared_characters(
        pairs_of(rows, np.array([0, 0, 1, 1])), Labels(("score",), {}, target=RANKING)
    )
    assert ranked == dict.fromkeys(("mrr", "map", "ndcg", "hit_at_1"), 1.0)
    scored = measure_shared_characters(pairs_of(rows), Labels(("score",), {}, target=REGRESSION))
    assert set(scored) == {"pearson", "spearman"} and scored["spearman"] > 0.8


def test_the_thresholds_of_training_rows_are_taken_elsewhere():
    """Overlaps of 0, 0.5 and 1; in training from 1 on a pair is a match, in the others from 0.5 on."""
    texts = [("一二", "三四"), ("一二", "一"), ("一二", "一二")]
    train = pairs_of([(*texts[0], 0), (*texts[1], 0), (*texts[2], 1)])
    other = pairs_of([(*texts[0], 0), (*texts[1], 1), (*texts[2], 1)])
    labels = Labels.numbered(2)
    thresholds = best_thresholds(train, labels)
    assert thresholds == {"accuracy": 1.0, "f1": 1.0}
    there, here = (describe_baseline(other, labels, chosen) for chosen in (thresholds, {}))
    assert (there["accuracy"], there["thresholds_of"]) == (
        pytest.approx(2 / 3),
        "the best of the training pairs",
    )
    assert here["accuracy"] == 1.0 and "of these rows" in here["thresholds_of"]
    never = best_thresholds(pairs_of([(*text, 0) for text in texts]), labels)
    assert never["accuracy"] == ABOVE_ALL and json.dumps(never, allow_nan=False)
    assert best_thresholds(train, Labels.numbered(3)) == {}


def test_of_many_rows_some_from_all_over_choose(monkeypatch):
    monkeypatch.setattr(label_checks, "MAX_ROWS", 10)
    rows = [("一二", "一二" if row % 2 else "三", row % 2) for row in range(75)]
    for given in (rows, sorted(rows, key=lambda row: row[2])):
        assert best_thresholds(pairs_of(given), Labels.numbered(2)) == {"accuracy": 1.0, "f1": 1.0}


@pytest.mark.parametrize("auc, rows, warns", [(0.2, 200, True), (0.2, 199, False), (0.36, 200, False)])
def test_an_evaluation_says_that_labels_may_be_turned(caplog, auc, rows, warns):
    found = {"accuracy": 0.1, "auc": auc, "thresholds": {"accuracy": 0.5}, "thresholds_of": "the best"}
    evaluate_pair._print_metrics(
        {"shared_characters": found, "rows": rows, **dict.fromkeys(OF_TARGET["classification"].names, 0.5)}
    )
    assert ("so are these figures" in caplog.text) == warns
