"""A chart of a report: SVG without fonts, links or dates, so that equal results give equal bytes."""

import base64
import io
from functools import cache
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

POINTS = 400  # of a curve; more would not be visible
BLUE, ORANGE, GREEN, GREY = "#2563eb", "#ea580c", "#16a34a", "#94a3b8"
SVG_START = "data:image/svg+xml;base64,"
LONGEST_TEXT = 40  # characters of a name in a chart
PANEL = (4.2, 3.3)  # inches
# fmt: off
STYLE: Dict[Any, Any] = {
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
        labelled: Dict[str, Any] = {}
        for axes in figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels()):
                labelled.setdefault(label, handle)
        if labelled:
            fitting = max(1, int(columns * 60 / (max(map(len, labelled)) + 8)))
            names, handles = list(labelled), list(labelled.values())
            figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), fitting))
        empty = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(drawn, format=kind, dpi=150, metadata=empty)
    picture = drawn.getvalue()
    # Without the first lines of an SVG, which refer to an external document.
    return picture[picture.index(b"<svg") :] if kind == "svg" else picture


def svg_in(chart: Chart) -> bytes:
    """Return the SVG of a chart, as in a file."""
    return base64.b64decode(chart.source[len(SVG_START) :])


def chart_of_figure(title: str, figure: Any) -> Chart:
    """Return a chart of a figure of pyplot that another library has drawn, and close the figure."""
    from matplotlib import pyplot

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=100, bbox_inches="tight", metadata={"Software": None})
    pyplot.close(figure)
    return Chart(title, "data:image/png;base64," + base64.b64encode(drawn.getvalue()).decode(), "")


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
