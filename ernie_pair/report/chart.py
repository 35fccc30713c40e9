"""A chart of a report: SVG without fonts, links or dates, so that equal results give equal bytes."""

import base64
import io
from functools import cache
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

POINTS = 400  # of a curve; more would not be visible
BLUE, ORANGE, GREEN, GREY = "#2563eb", "#ea580c", "#16a34a", "#94a3b8"
SVG_START = "data:image/svg+xml;base64,"
LONGEST_TEXT = 40  # characters of a name in a chart
PANEL = (4.2, 3.3)  # inches
# fmt: off
STYLE = {
    "svg.hashsalt": "ernie-pair", "svg.fonttype": "path", "font.size": 9, "lines.linewidth": 1.8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": GREY, "axes.grid": True,
    "grid.color": "#e2e8f0", "grid.linewidth": 0.7, "axes.axisbelow": True,
    "legend.frameon": False, "legend.fontsize": 8,
}
# fmt: on
CHINESE_FONTS = ("Noto Sans CJK SC", "Noto Sans SC", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "SimHei")

Draw = Callable[..., None]


class Chart(NamedTuple):
    """A chart of the report; ``source`` is the source of an <img>, ``note`` says how to read it."""

    title: str
    source: str
    note: str


def few_of(count: int) -> np.ndarray:
    """Return at most POINTS indices below ``count``, including the first and the last, int64."""
    return np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int))


def draw_chart(title: str, draw: Draw, note: str) -> Chart:
    """Return a chart that ``draw`` draws on the given axes; its legend is below them."""
    svg = draw_picture([("", draw)], 1, "svg")
    return Chart(title, SVG_START + base64.b64encode(svg).decode(), note)


def draw_picture(panels: Sequence[Tuple[str, Draw]], columns: int, kind: str) -> bytes:
    """Return a picture of panels, (title, function that draws on its axes), ``columns`` in a row; svg or png.

    Each label appears once in the legend, which is below the panels and hides nothing.
    """
    import matplotlib
    from matplotlib.figure import Figure

    rows = -(-len(panels) // columns)
    drawn = io.BytesIO()
    with matplotlib.rc_context({**STYLE, "font.family": chart_fonts()}):
        figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).flat
        for axes, (title, draw) in zip(grid, panels):
            draw(axes)
            axes.set_title(title)
        for axes in list(grid)[len(panels) :]:
            axes.set_axis_off()
        _add_legend(figure, columns)
        empty = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(drawn, format=kind, dpi=150, metadata=empty)
    picture = drawn.getvalue()
    # Without the first lines of an SVG, which refer to an external document.
    return picture[picture.index(b"<svg") :] if kind == "svg" else picture


def svg_in(chart: Chart) -> bytes:
    """Return the SVG of a chart, as in a file."""
    return base64.b64decode(chart.source[len(SVG_START) :])


@cache
def chart_fonts() -> List[str]:
    """Return the fonts to draw with: matplotlib's own, and one with Chinese characters if there is one."""
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    return ["DejaVu Sans", *[name for name in CHINESE_FONTS if name in installed][:1]]


def drawn_text(text: str, otherwise: str) -> str:
    """Return ``text`` escaped so that matplotlib draws it literally, or ``otherwise`` if no font has it."""
    is_drawable = text.isprintable() and (text.isascii() or len(chart_fonts()) > 1)
    shown = text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "..."
    return shown.replace("$", r"\$") if is_drawable else otherwise


def _add_legend(figure, columns: int) -> None:
    labelled: Dict[str, object] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            labelled.setdefault(label, handle)
    if labelled:
        longest = max(map(len, labelled))
        fitting = max(1, int(columns * 60 / (longest + 8)))
        names, handles = list(labelled), list(labelled.values())
        figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), fitting))


NAME = "probability_counts"
PARTS, BARS = 100, 20  # thresholds of a curve, at most 127 in VisualDL; bars of a histogram
MOST_ROWS = 1_000_000  # of a histogram; of more, every second, third, ... is drawn
LARGEST = 1 << 40


def count_probabilities(probabilities: np.ndarray, labels: np.ndarray) -> List[List[int]]:
    """Return the counts of probabilities of class 1, float64 [N], by labels int64 [N]; NaN is ignored."""
    finite = np.isfinite(probabilities)
    parts = np.minimum((probabilities[finite] * PARTS).astype(np.int64), PARTS - 1)
    known = labels[finite]
    return [np.bincount(parts[known == label], minlength=PARTS).tolist() for label in (0, 1)]


def parse_counts(content: object) -> Optional[np.ndarray]:
    """Return the counts of an event, int64 [2, PARTS]; None if it has no valid ones."""
    if not (isinstance(content, list) and len(content) == 2):
        return None
    if not all(isinstance(row, list) and len(row) == PARTS for row in content):
        return None
    if not all(type(count) is int and 0 <= count < LARGEST for row in content for count in row):
        return None
    return np.array(content, dtype=np.int64)


def curve_of(counts: np.ndarray) -> Dict[str, List]:
    """Return the precision-recall curve of counts [2, PARTS] at the lower ends of the parts.

    If nothing is predicted as class 1, the precision is 1, as in scikit-learn.
    """
    fp, tp = (row[::-1].cumsum()[::-1] for row in counts)
    tn, fn = fp[0] - fp, tp[0] - tp
    precision = np.where(tp + fp, tp / np.maximum(tp + fp, 1), 1.0)
    recall = tp / max(int(tp[0]), 1)
    content = {"tp": tp, "fp": fp, "tn": tn, "fn": fn, "precision": precision, "recall": recall}
    return {name: values.tolist() for name, values in content.items()}


def draw_counts(writer: Any, group: str, counts: np.ndarray, step: int) -> None:
    """Draw a step with a `LogWriter` of VisualDL: a histogram of each label, and the curve."""
    from unittest.mock import patch

    from visualdl.component import base_component

    bars = counts.reshape(2, BARS, -1).sum(axis=2)
    bars //= 1 + bars.sum() // MOST_ROWS
    edges = np.linspace(0, 1, BARS + 1)
    for label, rows in enumerate(bars):
        values = np.repeat((edges[:-1] + edges[1:]) / 2, rows)
        writer.add_histogram(f"{group}/probability of 1, label {label}", values, step, buckets=edges)
    # VisualDL 2.5.3 computes the curve itself, with np.float, which NumPy 1.24 removed.
    with patch.object(base_component, "compute_curve", return_value=curve_of(counts)):
        writer.add_pr_curve(f"{group}/class 1", [], [], step)
