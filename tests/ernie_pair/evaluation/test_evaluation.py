"""Evaluations of models without classes, beside SciPy and a twin, and the charts of all reports."""

from types import SimpleNamespace

import numpy as np
import pytest
from made_up_answers import RNG, answers_of, config_of, ranking_answers, scored
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from sklearn import metrics as sk

from ernie_pair.evaluation import evaluation_report
from ernie_pair.evaluation.evaluation import (
    compare_with_start,
    evaluate_classes,
    evaluate_ranking,
    evaluate_scores,
    find_slices,
)


def first_ranks(outputs, answers):
    """The rank of the first relevant candidate of each query that has both kinds, behind its equals."""
    ranks = []
    for group in np.unique(answers.pairs.groups):
        inside = answers.pairs.groups == group
        scores, relevant = outputs[inside, 0], answers.labels[inside] == 1
        if 0 < relevant.sum() < len(relevant):
            ranks.append(1 + np.sum(scores[~relevant] >= scores[relevant].max()))
    return np.array(ranks)


def test_a_ranking_is_described_as_by_counting():
    answers = ranking_answers()
    found = evaluate_ranking(answers, config_of())
    ranks, turned = first_ranks(answers.outputs, answers), first_ranks(answers.swapped, answers)
    both = first_ranks((answers.outputs + answers.swapped) / 2, answers)
    assert (found["rows"], found["queries"], found["ranked_queries"]) == (len(answers.labels), 60, len(ranks))
    assert found["mrr"] == pytest.approx(np.mean(1 / ranks)) and found["hit_at_1"] == np.mean(ranks == 1)
    assert found["swap"] == {
        "mean_difference": pytest.approx(np.abs(answers.outputs - answers.swapped).mean()),
        "mrr_swapped": pytest.approx(np.mean(1 / turned)),
        "mrr_both_orders": pytest.approx(np.mean(1 / both)),
    }
    assert found["intervals"]["mrr"][0] < found["mrr"] < found["intervals"]["mrr"][1]
    for most in (3, 50, ranks.max()):  # the table ends with the last rank that occurs
        few = answers.outputs.copy()
        first = [group for group, rank in zip(range(1, 60), ranks) if rank > most]
        few[np.isin(answers.pairs.groups, first) & (answers.labels == 1)] = 99
        there = first_ranks(few, answers)
        ends = [end for end in (1, 2, 3, 5, 10, 20, 50) if end <= there.max()]
        parts = evaluate_ranking(answers._replace(outputs=few), config_of())["first_ranks"]
        assert [part["from"] for part in parts] == [1, *(end + 1 for end in ends if end < there.max())]
        inside = [np.sum((part["from"] <= there) & (there <= part["to"])) for part in parts]
        assert [part["queries"] for part in parts] == inside and sum(inside) == len(there)


@pytest.mark.parametrize("limits", [None, (0.0, 5.0)])
def test_scores_are_described_as_by_scipy(limits):
    answers = scored(RNG.integers(0, 11, 80) / 2, limits)

    def wanted(outputs, rows=...):
        shown = outputs[:, 0][rows].astype(np.float64).clip(*(limits or (-np.inf, np.inf)))
        labels = answers.labels[rows]
        return pytest.approx((spearmanr(shown, labels)[0], np.abs(shown - labels).mean()), abs=1e-9)

    found = evaluate_scores(answers, config_of())
    assert (found["spearman"], found["mae"]) == wanted(answers.outputs)
    swap, differences = (
        found["swap"],
        np.abs(answers._replace(outputs=answers.swapped).scores - answers.scores),
    )
    assert swap["mean_difference"] == differences.mean() and swap["largest_difference"] == differences.max()
    assert (swap["spearman_swapped"], swap["mae_swapped"]) == wanted(answers.swapped)
    both = (answers.outputs + answers.swapped) / 2
    assert (swap["spearman_both_orders"], swap["mae_both_orders"]) == wanted(both)
    slices = find_slices(answers.pairs.left, answers.pairs.right)
    assert [(each["by"], each["slice"]) for each in found["slices"]] == [each[:2] for each in slices]
    for each, (_, _, rows) in zip(found["slices"], slices):
        assert (each["spearman"], each["mae"]) == wanted(answers.outputs, rows)
        assert (each["rows"], each["mean_label"]) == (rows.sum(), answers.labels[rows].mean())
    assert sum(each["rows"] for each in found["bins"]) == found["rows"] == 80


def drawn_charts(monkeypatch, answers, evaluation):
    """{title: axes} of the charts of a report."""
    charts = {}

    def draw_chart(title, draw, note):
        draw(charts.setdefault(title, Figure().subplots()))
        return SimpleNamespace(title=title)

    monkeypatch.setattr(evaluation_report, "draw_chart", draw_chart)
    evaluation_report.KINDS[evaluation.get("target", "classification")].values(answers, evaluation)
    return charts


def test_charts_show_the_figures_and_what_their_axes_are(monkeypatch):
    two, three, ranks = answers_of(2), answers_of(3), ranking_answers()
    scores = scored(RNG.integers(0, 11, 80) / 2)
    of_two = drawn_charts(monkeypatch, two, evaluate_classes(two, config_of()))
    made = {
        "two": of_two,
        "three": drawn_charts(monkeypatch, three, evaluate_classes(three, config_of())),
        "scores": drawn_charts(monkeypatch, scores, evaluate_scores(scores, config_of())),
        "ranks": drawn_charts(monkeypatch, ranks, evaluate_ranking(ranks, config_of())),
    }
    for axes in (axes for charts in made.values() for axes in charts.values()):
        assert axes.get_xlabel() and (axes.get_ylabel() or len(axes.get_legend_handles_labels()[1]) > 1)
    diagonal, roc = (line.get_xydata().T for line in of_two["ROC"].lines)
    assert sk.auc(*roc) == pytest.approx(sk.roc_auc_score(two.labels, two.shown[:, 1]))
    assert np.array_equal(*diagonal)
    recall, precision = of_two["Precision and recall"].lines[0].get_xydata().T
    average = sk.average_precision_score(two.labels, two.shown[:, 1])
    assert -np.diff(recall) @ precision[:-1] == pytest.approx(average)
    for chart, rows in (("Scores by label", two), ("Scores", three), ("Error", scores)):
        charts = next(each for each in made.values() if chart in each)
        assert sum(bar.get_height() for bar in charts[chart].patches) == len(rows.labels)
    relevant = ranks.labels == 1
    by_label = [bar.get_height() for bar in made["ranks"]["Scores by label"].patches]
    half = len(by_label) // 2
    assert [sum(by_label[:half]), sum(by_label[half:])] == [(~relevant).sum(), relevant.sum()]
    (ends, _), every = made["scores"]["Scores and labels"].lines, [*scores.labels, *scores.scores]
    assert ends.get_xydata().ravel().tolist() == [min(every)] * 2 + [max(every)] * 2
    shown = [made[name]["Reliability"].get_xlabel() for name in ("two", "three")]
    assert shown == ["probability of <1>", "probability of the predicted class"]
    bars = made["ranks"]["Where the answer stands"].patches
    assert sum(bar.get_height() for bar in bars) == len(first_ranks(ranks.outputs, ranks))


def test_what_training_cost_is_a_paired_difference():
    answers = answers_of(rows=80)
    before = RNG.normal(size=(80, 2))
    found = compare_with_start(before, answers, config_of(bootstrap=200))
    wanted = [sk.roc_auc_score(answers.labels, both[:, 1] - both[:, 0]) for both in (before, answers.logits)]
    assert [found["before"], found["after"]] == pytest.approx(wanted)
    low, high = found["interval"]
    assert found["difference"] == pytest.approx(wanted[1] - wanted[0]) and low < found["difference"] < high
    assert found["line"].endswith(
        f"({found['difference']:+.4f}, 95 %: {low:+.4f} to {high:+.4f}), on 80 pairs"
    )
    same = compare_with_start(answers.logits, answers, config_of())
    assert same["interval"] == [0, 0]  # of equal models none of the resamples differs
