"""All measurements of a model that ranks the candidates of queries, as one dictionary for JSON."""

from typing import Any, Dict, List

import numpy as np

from data_tools.files.standard_streams import as_asked
from ernie_pair.model_files.labels import RANKING
from ernie_pair.pair.config.ask_config import EvaluateConfig
from ernie_pair.pair.evaluation.scores.score_evaluation import ScoreAnswers
from ernie_pair.pair.targets.bootstrap import bootstrap_intervals
from ernie_pair.pair.targets.ranking_metrics import (
    RANKING_METRICS,
    CountedQueries,
    measure_ranking,
    refuse_nothing_to_rank,
)

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
