"""A chart of a report: SVG without fonts, links or dates, so that equal answers give equal bytes."""

import base64
import io
from typing import Callable, NamedTuple

import numpy as np

POINTS = 400  # of a curve; more would not be seen
BLUE, ORANGE, GREEN, GREY = "#2563eb", "#ea580c", "#16a34a", "#94a3b8"
STYLE = {
    **{"svg.hashsalt": "ernie-pair", "svg.fonttype": "path", "font.size": 9, "lines.linewidth": 1.8},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": GREY, "axes.grid": True},
    **{"grid.color": "#e2e8f0", "grid.linewidth": 0.7, "axes.axisbelow": True},
    **{"legend.frameon": False, "legend.fontsize": 8},
}


class Chart(NamedTuple):
    """A chart of the report; ``source`` is what an <img> shows, ``note`` says how to read it."""

    title: str
    source: str
    note: str


def few_of(count: int) -> np.ndarray:
    """Return at most POINTS places below ``count``, the first and the last among them, int64."""
    return np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int))


def draw_chart(title: str, draw: Callable, note: str) -> Chart:
    """Return a chart that ``draw`` draws on the axes that it is given."""
    import matplotlib
    from matplotlib.figure import Figure

    drawn = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.2, 3.3), layout="constrained")
        draw(figure.add_subplot())
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    text = drawn.getvalue()
    svg = text[text.index("<svg") :]  # without the lines before it, which name a document elsewhere
    return Chart(title, "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode(), note)
