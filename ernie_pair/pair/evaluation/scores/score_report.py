"""The folder of a report on scores: report.json and errors.tsv for programs, report.html for a reader."""

from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence

import numpy as np

from data_tools.files.json_file import write_json
from ernie_pair.pair.evaluation.scores.score_charts import charts_of
from ernie_pair.pair.evaluation.scores.score_evaluation import ScoreAnswers
from ernie_pair.report.page import NOT_SAID, ON_THE_PAGE, Made, metric_cards, render_page, shown_number
from ernie_pair.report.table import table_line

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
