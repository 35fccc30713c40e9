"""All measurements of a model that ranks the candidates of queries, as one dictionary for JSON."""

from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence

import numpy as np

from data_tools.files.json_file import write_json
from data_tools.options.standard_streams import as_asked
from ernie_pair.models.labels import RANKING
from ernie_pair.pair.config.ask_config import EvaluateConfig
from ernie_pair.pair.targets.bootstrap import bootstrap_intervals
from ernie_pair.pair.targets.ranking_metrics import (
    RANKING_METRICS,
    CountedQueries,
    measure_ranking,
    ranked_queries,
    refuse_nothing_to_rank,
)
from ernie_pair.report.chart import BLUE, ORANGE, Chart, draw_chart
from ernie_pair.report.page import NOT_SAID, ON_THE_PAGE, Made, metric_cards, render_page, table_line
from ernie_pair.score.evaluation.scores.regression import HISTOGRAM_BINS, ScoreAnswers

RANK_EDGES = (1, 2, 3, 5, 10, 20, 50)  # the last rank of each part of the table


def ranking_evaluation_of(answers: ScoreAnswers, config: EvaluateConfig) -> Dict[str, Any]:
    """Return the metrics, facts about the queries, and a section for each further question.

    Raises InputError for a file in which there is no order to measure.
    """
    refuse_nothing_to_rank(answers.labels, answers.pairs.groups, config.input_file)
    groups = answers.known_groups
    counted = CountedQueries(answers.outputs, answers.labels, groups)
    sections: Dict[str, Any] = {
        "target": RANKING,
        "rows": len(answers.labels),
        "queries": int(groups.max()) + 1,
        "ranked_queries": counted.num_queries,
        "model": config.model_path,
        "input_file": as_asked(config.input_file),
        "input_sha256": answers.pairs.sha256,
        "symmetric": answers.symmetric,
        "first_ranks": _first_ranks(counted),
    }
    if config.bootstrap:
        sections["intervals"] = bootstrap_intervals(
            counted.measure, RANKING_METRICS, counted.num_queries, config.bootstrap, config.seed
        )
    if answers.swapped is not None:
        sections["swap"] = {
            "mean_difference": float(np.abs(answers.outputs - answers.swapped).mean()),
            "mrr_swapped": measure_ranking(answers.swapped, answers.labels, groups)["mrr"],
            "mrr_both_orders": measure_ranking(
                (answers.outputs + answers.swapped) / 2, answers.labels, groups
            )["mrr"],
        }
    return {**measure_ranking(answers.outputs, answers.labels, groups), **sections}


def _first_ranks(counted: CountedQueries) -> List[Dict[str, Any]]:
    """Return how many queries have their first relevant candidate at which ranks: from, to, queries."""
    ranks = np.array([query.ranks[0] for query in counted.queries])
    edges = [*RANK_EDGES, max(int(ranks.max()), RANK_EDGES[-1] + 1)]
    parts = [(low + 1, high) for low, high in zip([0, *edges], edges)]
    found = [
        {"from": low, "to": high, "queries": int(np.sum((low <= ranks) & (ranks <= high)))}
        for low, high in parts
    ]
    return found[: max(place for place, part in enumerate(found) if part["queries"]) + 1]


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
