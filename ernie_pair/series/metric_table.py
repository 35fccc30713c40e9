"""The metrics of the runs of a series and of all of them: as JSON, on the terminal, for reporters."""

import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ernie_pair.pair.targets.metrics import METRICS

SHOWN = ("accuracy", "f1", "auc", "loss")  # on the terminal
Metrics = Dict[str, float]
Point = Tuple[int, Metrics]  # the step of a reporter, and values by their names


def defined(metrics: Mapping[str, Optional[float]]) -> Dict[str, Optional[float]]:
    """Return METRICS as JSON can hold them: what is undefined, as auc of one class is, is None."""
    values = {name: metrics[name] for name in METRICS}
    return {n: value if value is not None and math.isfinite(value) else None for n, value in values.items()}


def metric_cells(metrics: Mapping[str, Optional[float]], undefined: str) -> str:
    """Return the cells of SHOWN for the terminal; ``undefined`` stands for a metric without a value."""
    values = [metrics.get(name) for name in SHOWN]
    return "  ".join((undefined if value is None else f"{value:.4f}").rjust(8) for value in values)


def points_of(name: str, each: Sequence[Metrics], together: str, mean: Mapping[str, Any]) -> List[Point]:
    """Return the points of ``name``/METRIC of each run, by its number, and of ``together``/METRIC of all."""
    points = [(n, {f"{name}/{m}": v for m, v in metrics.items()}) for n, metrics in enumerate(each, start=1)]
    known = {f"{together}/{m}": mean[m] for m in METRICS if mean[m] is not None}
    return [*points, (len(each), known)]
