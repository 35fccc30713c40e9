"""The metrics of each target, and the one that chooses the best model where nobody says."""

from functools import partial
from typing import Callable, Dict, NamedTuple, Optional, Tuple

import numpy as np

from data_tools.base.errors import InputError
from ernie_pair.model_files.labels import CLASSIFICATION, RANKING, REGRESSION, Labels
from ernie_pair.pair.metrics import METRICS, measure, refuse_undefined
from ernie_pair.pair.targets.ranking_metrics import RANKING_METRICS, measure_ranking, refuse_nothing_to_rank
from ernie_pair.pair.targets.regression_metrics import (
    REGRESSION_METRICS,
    measure_scores,
    refuse_equal_labels,
)

AUTO = "auto"  # of --best_metric
ALL_METRICS = tuple(dict.fromkeys([*METRICS, *REGRESSION_METRICS, *RANKING_METRICS]))
LOWER_IS_BETTER = ("loss", "mse", "mae")

MeasureFunction = Callable[[np.ndarray, np.ndarray], Dict[str, float]]


class TargetMetrics(NamedTuple):
    """The names of the metrics of a target, and of the one that chooses the best model."""

    names: Tuple[str, ...]
    best: str


OF_TARGET = {
    CLASSIFICATION: TargetMetrics(METRICS, "accuracy"),
    RANKING: TargetMetrics(RANKING_METRICS, "mrr"),
    REGRESSION: TargetMetrics(REGRESSION_METRICS, "mse"),
}


def chosen_metric(asked: str, target: str) -> str:
    """Return the metric that chooses the best model, of which auto is that of ``target``."""
    return OF_TARGET[target].best if asked == AUTO else asked


def refuse_other_metric(metric: str, target: str) -> None:
    """Raise InputError for a metric of another target alone."""
    if metric in ALL_METRICS and metric not in OF_TARGET[target].names:
        raise InputError(
            f"--best_metric {metric} is not a metric of a model for {target}; use one of "
            f"{', '.join(OF_TARGET[target].names)}, or leave it out"
        )


def measure_of(labels: Labels, groups: Optional[np.ndarray] = None) -> MeasureFunction:
    """Return the function that measures outputs float32 [N, C] on labels [N] of a model for these.

    ``groups`` int64 [N]: the query of each row, where candidates are ranked.
    """
    if labels.has_classes:
        return measure
    if labels.target == RANKING:
        return partial(measure_ranking, groups=groups)
    return partial(measure_scores, label_range=labels.label_range)


def refuse_unmeasurable(
    metric: str, found: np.ndarray, labels: Labels, where: str, groups: Optional[np.ndarray] = None
) -> None:
    """Raise InputError when ``metric`` has no value on the labels ``found`` [N], whatever the model says.

    ``groups``: see ``measure_of``.
    """
    if labels.target == RANKING:
        refuse_nothing_to_rank(found, groups, where)
    elif labels.has_classes:
        refuse_undefined(metric, found, len(labels.names), where)
    else:
        refuse_equal_labels(metric, found, where)
