"""The charts of the report on scores."""

from typing import Any, Dict, List

import numpy as np

from ernie_pair.pair.evaluation.scores.score_evaluation import ScoreAnswers
from ernie_pair.report.chart import BLUE, GREY, ORANGE, Chart, draw_chart, few_of

HISTOGRAM_BINS = 40


def charts_of(answers: ScoreAnswers, evaluation: Dict[str, Any]) -> List[Chart]:
    """Draw scores against labels, their means by label, and the errors."""
    return [_scatter(answers, evaluation), _by_label(answers, evaluation), _errors(answers, evaluation)]


def _scatter(answers: ScoreAnswers, evaluation: Dict[str, Any]) -> Chart:
    labels, scores = answers.labels, answers.scores
    few = np.argsort(labels, kind="stable")[few_of(len(labels))]
    ends = [float(min(labels.min(), scores.min())), float(max(labels.max(), scores.max()))]

    def draw(axes) -> None:
        axes.plot(ends, ends, color=GREY, linestyle=":", linewidth=1)
        axes.plot(labels[few], scores[few], "o", color=BLUE, alpha=0.35, ms=3.5)
        axes.set(xlabel="label", ylabel="score")

    shown = "all" if len(few) == len(labels) else f"{len(few)} of the {len(labels)}"
    found = evaluation["pearson"]
    pearson = "Pearson undefined" if found is None else f"Pearson {found:.4f}"
    told = f"{pearson}; on the dotted line, score equals label; {shown} rows."
    return draw_chart("Scores and labels", draw, told)


def _by_label(answers: ScoreAnswers, evaluation: Dict[str, Any]) -> Chart:
    bins = evaluation["bins"]
    means = [each["mean_label"] for each in bins]

    def draw(axes) -> None:
        axes.plot([means[0], means[-1]], [means[0], means[-1]], color=GREY, linestyle=":", linewidth=1)
        axes.plot(means, [each["mean_score"] for each in bins], "o-", color=BLUE, label="mean score", ms=3.5)
        axes.plot(means, [each["mae"] for each in bins], "s-", color=ORANGE, label="mean error", ms=3.5)
        axes.set(xlabel="label")

    return draw_chart(
        "By label", draw, "The range of the labels in bins; a perfect model lies on the dotted line."
    )


def _errors(answers: ScoreAnswers, evaluation: Dict[str, Any]) -> Chart:
    errors = answers.scores - answers.labels

    def draw(axes) -> None:
        axes.hist(errors, HISTOGRAM_BINS, color=BLUE, alpha=0.7)
        axes.axvline(0.0, color=GREY, linestyle=":", linewidth=1)
        axes.set(xlabel="score - label", ylabel="rows")

    return draw_chart("Errors", draw, f"mean error {errors.mean():+.4f}; above 0, the scores are too high.")
