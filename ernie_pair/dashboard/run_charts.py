"""Charts of the curves of runs: a colour for each run, pale for training, strong with dots for validation."""

from functools import partial
from typing import Any, Dict, List, Sequence

from ernie_pair.dashboard.curves import Curve, curves_of
from ernie_pair.dashboard.run_folder import Run
from ernie_pair.report.chart import Chart, draw_chart, draw_picture, drawn_text, few_of

# Distinguishable with colour blindness: they differ in lightness, and repeat with another line style.
COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#0e7490", "#be123c", "#a16207", "#475569")
LINES = ("-", "--", ":")
NOTE = "Pale: training, means since the point before. Strong, with dots: validation. Stars: test."
FEW_DOTS = 60  # curves with at most so many points have dots
COLUMNS = 2  # in a picture


def charts_of(runs: Sequence[Run], metrics: Sequence[str]) -> List[Chart]:
    """Draw a chart of each metric, without a legend: the page has one for all."""
    return [draw_chart(metric, partial(_draw, curves_of(runs, metric), {}), "") for metric in metrics]


def picture_of(runs: Sequence[Run], metrics: Sequence[str], kind: str) -> bytes:
    """Draw the metrics as one picture, svg or png, with the names of the runs below."""
    labels = {n: drawn_text(run.name, f"run {n + 1}") for n, run in enumerate(runs)}
    panels = [(metric, partial(_draw, curves_of(runs, metric), labels)) for metric in metrics]
    return draw_picture(panels, min(COLUMNS, len(panels)), kind)


def colour_of(run: int) -> str:
    """Return the colour of the run with this index, #rrggbb."""
    return COLOURS[run % len(COLOURS)]


def line_of(run: int) -> str:
    """Return the line style of the run with this index, in matplotlib's notation."""
    return LINES[run // len(COLOURS) % len(LINES)]


def _draw(curves: Sequence[Curve], labels: Dict[int, str], axes) -> None:
    is_only_training = all(curve.split == "train" for curve in curves)
    for curve in curves:
        few = few_of(len(curve.steps))
        steps, values = [curve.steps[i] for i in few], [curve.values[i] for i in few]
        axes.plot(steps, values, **_style_of(curve, len(few), is_only_training))
    for run in sorted({curve.run for curve in curves}):
        if run in labels:
            axes.plot([], [], line_of(run), color=colour_of(run), label=labels[run])
    axes.set(xlabel="step")
    axes.margins(x=0.03)


def _style_of(curve: Curve, points: int, is_only_training: bool) -> Dict[str, Any]:
    style = {"color": colour_of(curve.run), "linestyle": line_of(curve.run), "markersize": 3.5}
    if curve.split == "test":
        return {**style, "linestyle": "none", "marker": "*", "markersize": 9}
    marker = "o" if points == 1 or (curve.split != "train" and points <= FEW_DOTS) else ""
    if curve.split == "train" and not is_only_training:
        return {**style, "linewidth": 1.2, "alpha": 0.45, "marker": marker}
    return {**style, "marker": marker}
