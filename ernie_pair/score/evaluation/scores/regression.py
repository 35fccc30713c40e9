"""All measurements of the scores of a model for regression on one file, as one dictionary for JSON."""

import math
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from data_tools.files.json_file import write_json
from data_tools.options.standard_streams import as_asked
from ernie_pair.inference.scores import scores_of
from ernie_pair.models.labels import REGRESSION
from ernie_pair.pair.config.ask_config import EvaluateConfig
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.targets.bootstrap import bootstrap_intervals
from ernie_pair.pair.targets.regression_metrics import (
    REGRESSION_METRICS,
    CountedScores,
    error_bins,
    measure_scores,
)
from ernie_pair.report.chart import BLUE, GREY, ORANGE, Chart, draw_chart, few_of
from ernie_pair.report.page import (
    NOT_SAID,
    ON_THE_PAGE,
    Made,
    metric_cards,
    render_page,
    shown_number,
    table_line,
)

Slice = Tuple[str, str, np.ndarray]  # of what kind, its name, and which rows are of it, bool [N]


class ScoreAnswers(NamedTuple):
    """The rows of a file and what a model without classes says of them.

    ``outputs`` float32 [N, 1], ``swapped`` those of (B, A) where they were asked for. ``symmetric`` says how
    pairs were scored.
    """

    pairs: Pairs
    label_range: Optional[Tuple[float, float]]
    outputs: np.ndarray
    swapped: Optional[np.ndarray]
    symmetric: str = "none"

    @property
    def labels(self) -> np.ndarray:
        """Return the labels of the rows: scores float64 [N], or the relevance of candidates int64 [N]."""
        return self.pairs.known_labels

    @property
    def known_groups(self) -> np.ndarray:
        """Return the query of each row, int64 [N], of candidates that are ranked."""
        assert self.pairs.groups is not None  # they are read with it
        return self.pairs.groups

    @property
    def scores(self) -> np.ndarray:
        """Return the scores that a prediction would show, float64 [N]."""
        return scores_of(self.outputs, self.label_range)


def score_evaluation_of(
    answers: ScoreAnswers, config: EvaluateConfig, slices: Iterable[Slice]
) -> Dict[str, Any]:
    """Return the metrics, facts about the rows, and a section for each further question.

    The dictionary can be written as JSON; what is undefined is None.
    """
    labels, limits = answers.labels, answers.label_range
    metrics = measure_scores(answers.outputs, labels, limits)
    sections: Dict[str, Any] = {
        "target": REGRESSION,
        "rows": len(labels),
        "model": config.model_path,
        "input_file": as_asked(config.input_file),
        "input_sha256": answers.pairs.sha256,
        "label_range": None if limits is None else list(limits),
        "symmetric": answers.symmetric,
        "bins": error_bins(answers.scores, labels),
        "slices": [_measured(answers, *each) for each in slices],
    }
    if config.bootstrap:
        measure = CountedScores(answers.outputs, labels, limits).measure
        sections["intervals"] = bootstrap_intervals(
            measure, REGRESSION_METRICS, len(labels), config.bootstrap, config.seed
        )
    if answers.swapped is not None:
        sections["swap"] = _swap(answers, answers.swapped)
    return {**{name: _known(value) for name, value in metrics.items()}, **sections}


def _measured(answers: ScoreAnswers, kind: str, name: str, inside: np.ndarray) -> Dict[str, object]:
    found = measure_scores(answers.outputs[inside], answers.labels[inside], answers.label_range)
    told = {metric: _known(found[metric]) for metric in ("spearman", "mae")}
    mean_label = float(answers.labels[inside].mean())
    return {"by": kind, "slice": name, "rows": int(inside.sum()), **told, "mean_label": mean_label}


def _swap(answers: ScoreAnswers, swapped: np.ndarray) -> Dict[str, Optional[float]]:
    """Return what changes when the two texts change places.

    ``*_both_orders`` are of the mean of the outputs, as --symmetric average takes it.
    """
    found = scores_of(swapped, answers.label_range)
    differences = np.abs(found - answers.scores)
    alone, both = (
        measure_scores(outputs, answers.labels, answers.label_range)
        for outputs in (swapped, (answers.outputs + swapped) / 2)
    )
    return {
        "mean_difference": float(differences.mean()),
        "largest_difference": float(differences.max()),
        "spearman_swapped": _known(alone["spearman"]),
        "mae_swapped": alone["mae"],
        "spearman_both_orders": _known(both["spearman"]),
        "mae_both_orders": both["mae"],
    }


def _known(value: float) -> Optional[float]:
    return value if math.isfinite(value) else None


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


TEMPLATE = Path(__file__).with_name("score_report.html")
COLUMNS = ("line", "error", "score", "label", "text_a", "text_b")
NAMES = {"pearson": "Pearson", "spearman": "Spearman", "mae": "Mean absolute error", "mse": "MSE"}


def write_score_report(
    files: Sequence[Path],
    evaluation: Dict[str, Any],
    answers: ScoreAnswers,
    most_rows: int,
    made: Made = NOT_SAID,
) -> None:
    """Write the report to ``files``: numbers, worst rows, page.

    Equal answers give equal bytes but for the date on the page. Raises OSError.
    """
    worst = worst_scores(answers, most_rows)
    numbers, errors, page = files
    write_json(numbers, evaluation)
    errors.write_bytes("".join(_lines(worst)).encode("utf-8"))
    page.write_bytes(page_of(evaluation, answers, worst, made).encode("utf-8"))


def worst_scores(answers: ScoreAnswers, most: int) -> List[Dict[str, Any]]:
    """Return at most ``most`` rows, COLUMNS of each, by falling distance of the score from the label."""
    errors = answers.scores - answers.labels
    order = np.argsort(-np.abs(errors), kind="stable")[:most]
    return [
        {
            "line": answers.pairs.number(row),
            "error": float(errors[row]),
            "score": float(answers.scores[row]),
            "label": float(answers.labels[row]),
            "text_a": answers.pairs.left[row],
            "text_b": answers.pairs.right[row],
        }
        for row in order.tolist()
    ]


def _lines(rows: List[Dict[str, Any]]) -> Iterator[str]:
    yield table_line(COLUMNS)
    for row in rows:
        numbers = [f"{row[name]:.6g}" for name in ("error", "score", "label")]
        yield table_line([str(row["line"]), *numbers, row["text_a"], row["text_b"]])


def page_of(
    evaluation: Dict[str, Any], answers: ScoreAnswers, worst: List[Dict[str, Any]], made: Made = NOT_SAID
) -> str:
    """Return the report as one HTML page that needs no other file."""
    kinds: Dict[str, List[Dict[str, Any]]] = {}
    for entry in evaluation["slices"]:
        share = entry["rows"] / evaluation["rows"]
        kinds.setdefault(entry["by"], []).append({**entry, "share": share})
    return render_page(
        TEMPLATE,
        evaluation=evaluation,
        cards=_cards(evaluation),
        charts=charts_of(answers, evaluation),
        slices=kinds,
        worst=worst[:ON_THE_PAGE],
        made=made,
    )


def _cards(evaluation: Dict[str, Any]) -> List[Dict[str, str]]:
    """Return the numbers at the top of the page: name, value, and what stands below it."""
    cards = metric_cards(evaluation, NAMES)
    if "swap" in evaluation:
        swap = evaluation["swap"]
        below = f"at most {shown_number(swap['largest_difference'])}"
        value = shown_number(swap["mean_difference"])
        cards.append({"name": "Moved by swapping", "value": value, "below": below})
    return cards
