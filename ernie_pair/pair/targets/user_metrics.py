"""The user's own metrics beside those of `metrics.measure`."""

import math
from functools import partial
from typing import Any, Callable, Dict, Iterable, NamedTuple, Optional

import numpy as np

from data_tools.base.errors import InputError
from ernie_pair.pair.targets.target_metrics import MeasureFunction
from ernie_pair.processes.collectives import AllReduce, gather_results
from ernie_pair.processes.world import World


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
