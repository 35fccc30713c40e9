"""All measurements of a model without classes, for regression or ranking, as one dictionary for JSON."""

import math
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

import numpy as np

from data_tools.options.standard_streams import as_asked
from ernie_pair.inference.scores import scores_of
from ernie_pair.models.labels import RANKING, REGRESSION
from ernie_pair.pair.config.ask_config import EvaluateConfig
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.targets.bootstrap import bootstrap_intervals
from ernie_pair.pair.targets.ranking_metrics import (
    RANKING_METRICS,
    CountedQueries,
    measure_ranking,
    refuse_nothing_to_rank,
)
from ernie_pair.pair.targets.regression_metrics import (
    REGRESSION_METRICS,
    CountedScores,
    error_bins,
    measure_scores,
)

Slice = Tuple[str, str, np.ndarray]  # of what kind, its name, and which rows are of it, bool [N]
RANK_EDGES = (1, 2, 3, 5, 10, 20, 50)  # the last rank of each part of the table


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
