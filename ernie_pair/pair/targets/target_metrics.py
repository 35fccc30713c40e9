"""The metrics of each target, and the one that chooses the best model where nobody says."""

import math
from functools import partial
from typing import Any, Callable, Dict, Iterable, NamedTuple, Optional, Tuple

import numpy as np

from data_tools.files.errors import InputError
from ernie_pair.models.labels import CLASSIFICATION, RANKING, REGRESSION, Labels
from ernie_pair.pair.targets.metrics import METRICS, measure, refuse_undefined
from ernie_pair.pair.targets.ranking_metrics import RANKING_METRICS, measure_ranking, refuse_nothing_to_rank
from ernie_pair.pair.targets.regression_metrics import REGRESSION_METRICS, measure_scores, refuse_equal_labels
from ernie_pair.runtime.processes.collectives import AllReduce, gather_results
from ernie_pair.runtime.processes.world import World

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


class EvalPrediction(NamedTuple):
    """The argument of compute_metrics; unpack it with `logits, labels = prediction`."""

    predictions: np.ndarray  # the logits, float32 [N, C]
    label_ids: np.ndarray  # classes int64 [N], or scores float64 [N]


ComputeMetrics = Callable[[EvalPrediction], Dict[str, float]]


class UserMetrics:
    """The metrics of ``measure`` and those that ``compute_metrics`` adds, or puts in place of one of them.

    With several ranks rank 0 calls ``compute_metrics``, and all get its answer. Raises InputError if that is
    no dictionary of numbers, or ``best_metric`` is not in it, or is not finite.
    """

    def __init__(
        self,
        measure: MeasureFunction,
        compute_metrics: Optional[ComputeMetrics],
        best_metric: str,
        world: World,
        all_reduce: AllReduce,
    ):
        self.measure, self.compute_metrics, self.best_metric = measure, compute_metrics, best_metric
        self.world, self.all_reduce = world, all_reduce

    def __call__(self, logits: np.ndarray, labels: np.ndarray) -> Dict[str, float]:
        """Return the metrics of logits float32 [N, C] on labels [N]."""
        metrics = self.measure(logits, labels)
        if self.compute_metrics is not None:
            compute = partial(self._own, self.compute_metrics, logits, labels)
            metrics.update(gather_results(self.all_reduce, self.world, compute)[0])
        refuse_unknown(self.best_metric, metrics)
        return metrics

    def _own(self, compute: ComputeMetrics, logits: np.ndarray, labels: np.ndarray) -> Dict[str, float]:
        if not self.world.is_first:
            return {}
        found = compute(EvalPrediction(logits, labels))
        return numbers_in(found, self.best_metric, "compute_metrics")


def numbers_in(found: Any, best_metric: str, where: str) -> Dict[str, float]:
    """Return what a function of the user's own measured. Raises InputError, naming ``where``, if unusable."""
    try:
        own = {str(name): float(value) for name, value in found.items()}
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"{where} returned {found!r:.100}; return a dictionary of numbers") from None
    if not math.isfinite(own.get(best_metric, 0.0)):
        raise InputError(
            f"{where} returned {best_metric} {own[best_metric]}, which can choose no best model; return a "
            "finite number"
        )
    return own


def refuse_unknown(best_metric: str, metrics: Iterable[str]) -> None:
    """Raise InputError when ``best_metric`` is none of ``metrics``."""
    if best_metric not in metrics:
        raise InputError(
            f"best_metric {best_metric} is not one of {', '.join(metrics)}; use one of them, or have "
            "compute_metrics return it"
        )
