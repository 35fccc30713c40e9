"""The curves of runs: which metrics there are, in the order of importance, and the points of each."""

import math
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from data_tools.base.errors import InputError
from ernie_pair.dashboard.run_folder import Event, Run
from ernie_pair.engine.run_log import MEASURED, NOT_CURVES

SPLITS = ("train", "valid", "test")  # in reading order; others follow
# What people look at first; metrics that are not named here follow in the order of the log.
FIRST = (
    *("loss", "accuracy", "f1", "auc", "mrr", "ndcg", "map", "recall_at_10", "spearman", "pearson", "mse"),
    *("lm_loss", "lm_accuracy", "sop_loss", "sop_accuracy", "perplexity"),
)
# About the machine and the steps: after the metrics of the quality of a model.
LAST = ("learning_rate", "gradient_norm", "loss_scale", "skipped_updates", "padding_share", *MEASURED)
LOWER_IS_BETTER = ("mse", "mae", "perplexity")  # and every name that ends in "loss"


class Curve(NamedTuple):
    """The points of a metric on a split of a run; ``run`` is its index among the runs."""

    run: int
    split: str
    steps: List[int]
    values: List[float]


def metrics_of(runs: Sequence[Run]) -> List[str]:
    """Return the names of the metrics that any run logged: the most important first, the machine last."""
    found = dict.fromkeys(name for run in runs for event in run.events for name in _numbers(event))
    first = [name for name in FIRST if name in found]
    last = [name for name in LAST if name in found]
    return [*first, *(name for name in found if name not in (*FIRST, *LAST)), *last]


def chosen_metrics(runs: Sequence[Run], asked: Sequence[str], most: int) -> List[str]:
    """Return the metrics ``asked``, or the first of all, at most ``most``. Raises InputError."""
    known = metrics_of(runs)
    unknown = next((name for name in asked if name not in known), None)
    if unknown is not None:
        raise InputError(
            f"--metrics {unknown} was not logged by any of the runs; use some of {', '.join(known)}"
        )
    return list(asked) or [name for name in known if name not in LAST][:most] or known[:most]


def curves_of(runs: Sequence[Run], metric: str) -> List[Curve]:
    """Return the curves of ``metric``, those of a run together, training first."""
    return [curve for number, run in enumerate(runs) for curve in _of_run(number, run, metric)]


def _of_run(number: int, run: Run, metric: str) -> Iterator[Curve]:
    points: Dict[str, List[Tuple[int, float]]] = {}
    for event in run.events:
        if metric in _numbers(event):
            points.setdefault(event["split"], []).append((event["step"], float(event[metric])))
    order = [*(split for split in SPLITS if split in points), *(s for s in points if s not in SPLITS)]
    for split in order:
        steps, values = zip(*points[split])
        yield Curve(number, split, list(steps), list(values))


def _numbers(event: Event) -> List[str]:
    """Return the names of the values of an event that can be drawn: finite numbers."""
    return [name for name, value in event.items() if name not in NOT_CURVES and is_finite(value)]


def is_finite(value: object) -> bool:
    """Return whether ``value`` is a number that can be drawn."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def best_of(curve: Curve, metric: str, flags: Mapping[str, object]) -> Tuple[float, int]:
    """Return the best value of a curve and the first step that has it; ``flags``: those of its run."""
    best = (min if _is_lower_better(metric, flags) else max)(curve.values)
    return best, curve.steps[curve.values.index(best)]


def _is_lower_better(metric: str, flags: Mapping[str, object]) -> bool:
    """Return whether a lower value is better: as the run was told for its best_metric, else by the name."""
    asked = flags.get("greater_is_better")
    if metric == flags.get("best_metric") and isinstance(asked, bool):
        return not asked
    return metric.endswith("loss") or metric in LOWER_IS_BETTER


def last_of(run: Run, split: str, metric: str) -> Optional[float]:
    """Return the last finite value of ``metric`` that a run logged on ``split``, None if there is none."""
    values = [e[metric] for e in run.events if e["split"] == split and is_finite(e.get(metric))]
    return float(values[-1]) if values else None
