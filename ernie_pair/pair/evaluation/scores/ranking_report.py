"""The folder of a report on an order: report.json and errors.tsv for programs, report.html for a reader."""

from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence

import numpy as np

from data_tools.files.json_file import write_json
from ernie_pair.pair.evaluation.scores.score_charts import HISTOGRAM_BINS
from ernie_pair.pair.evaluation.scores.score_evaluation import ScoreAnswers
from ernie_pair.pair.targets.ranking_metrics import ranked_queries
from ernie_pair.report.chart import BLUE, ORANGE, Chart, draw_chart
from ernie_pair.report.page import NOT_SAID, ON_THE_PAGE, Made, metric_cards, render_page
from ernie_pair.report.table import table_line

TEMPLATE = Path(__file__).with_name("ranking_report.html")
COLUMNS = ("line", "rank", "candidates", "score", "first_score", "query", "relevant", "first")
NAMES = {"mrr": "MRR", "map": "MAP", "ndcg": "nDCG", "hit_at_1": "First is relevant", "loss": "Listwise loss"}


def write_ranking_report(
    files: Sequence[Path],
    evaluation: Dict[str, Any],
    answers: ScoreAnswers,
    most_rows: int,
    made: Made = NOT_SAID,
) -> None:
    """Write the report to ``files``: numbers, worst queries, page.

    Equal answers give equal bytes but for the date on the page. Raises OSError.
    """
    worst = worst_queries(answers, most_rows)
    numbers, errors, page = files
    write_json(numbers, evaluation)
    errors.write_bytes("".join(_lines(worst)).encode("utf-8"))
    rendered = render_page(
        TEMPLATE,
        evaluation=evaluation,
        cards=metric_cards(evaluation, NAMES),
        charts=[_ranks(evaluation), _scores(answers)],
        worst=worst[:ON_THE_PAGE],
        made=made,
    )
    page.write_bytes(rendered.encode("utf-8"))


def worst_queries(answers: ScoreAnswers, most: int) -> List[Dict[str, Any]]:
    """Return at most ``most`` queries whose first candidate is not relevant, COLUMNS of each.

    They come by the falling rank of the first relevant candidate, which ``line`` is of; ``first`` is the
    candidate that stands first.
    """
    pairs, scores = answers.pairs, answers.scores
    names = pairs.left if pairs.queries is None else pairs.queries
    found: List[Dict[str, Any]] = []
    for query in ranked_queries(scores, answers.labels, answers.known_groups):
        rank = int(query.ranks[0])
        if rank > 1:
            relevant, first = int(query.rows[rank - 1]), int(query.rows[0])
            values = (pairs.number(relevant), rank, len(query.rows), float(scores[relevant]))
            texts = (names[relevant], pairs.right[relevant], pairs.right[first])
            found.append(dict(zip(COLUMNS, (*values, float(scores[first]), *texts))))
    return sorted(found, key=lambda row: (-row["rank"], row["line"]))[:most]


def _lines(rows: List[Dict[str, Any]]) -> Iterator[str]:
    yield table_line(COLUMNS)
    for row in rows:
        shown = {**row, **{name: f"{row[name]:.6g}" for name in ("score", "first_score")}}
        yield table_line(str(shown[name]) for name in COLUMNS)


def _ranks(evaluation: Dict[str, Any]) -> Chart:
    parts = evaluation["first_ranks"]
    names = [
        f"{part['from']}" if part["from"] == part["to"] else f"{part['from']}–{part['to']}" for part in parts
    ]

    def draw(axes) -> None:
        axes.bar(names, [part["queries"] for part in parts], color=BLUE, alpha=0.8)
        axes.set(xlabel="rank of the first relevant candidate", ylabel="queries")

    return draw_chart("Where the answer stands", draw, f"MRR {evaluation['mrr']:.4f}; 1 is best.")


def _scores(answers: ScoreAnswers) -> Chart:
    relevant = answers.labels == 1
    edges = np.linspace(answers.scores.min(), answers.scores.max() + 1e-9, HISTOGRAM_BINS + 1)

    def draw(axes) -> None:
        for inside, color, name in ((~relevant, ORANGE, "label 0"), (relevant, BLUE, "label 1")):
            axes.hist(answers.scores[inside], edges, color=color, alpha=0.55, label=name)
        axes.set(xlabel="score", ylabel="rows")

    note = "Of all queries together: only the order within a query counts."
    return draw_chart("Scores by label", draw, note)
