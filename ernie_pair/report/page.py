"""Tables, charts and pages of reports; a template extends page.html, the common layout.

Charts are SVG without fonts, links or dates, so that equal results give equal bytes.
"""

import base64
import io
import json
import os
import time
from functools import cache
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from ernie_pair.checkpoint.manifest import installed_versions
from ernie_pair.core.files.atomic_files import read_regular
from ernie_pair.core.files.atomic_folder import README

POINTS = 400  # of a curve; more would not be visible
BLUE, ORANGE, GREEN, GREY = "#2563eb", "#ea580c", "#16a34a", "#94a3b8"
SVG_START = "data:image/svg+xml;base64,"
MAX_NAME_LENGTH = 40  # characters of a name in a chart
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


def pick_points(count: int) -> np.ndarray:
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
    shown = text if len(text) <= MAX_NAME_LENGTH else text[: MAX_NAME_LENGTH - 1] + "..."
    return shown.replace("$", r"\$") if is_drawable else otherwise


MAX_CARD_BYTES = 1 << 18  # bytes


class Table(NamedTuple):
    """A separate table on the page; ``rows`` begin with a name, None is an empty cell."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str


class Origin(NamedTuple):
    """What a page says about how it was made: its ``flags``, and the model's card in Markdown."""

    flags: Mapping[str, object] = {}
    card: str = ""

    @property
    def date(self) -> str:
        """Return when the page is made, in UTC, or SOURCE_DATE_EPOCH if it is set."""
        seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
        moment = time.gmtime(int(seconds) if seconds.isdecimal() else time.time())
        return time.strftime("%Y-%m-%d %H:%M UTC", moment)

    @property
    def versions(self) -> str:
        """Return the packages that affect the numbers, with their versions."""
        return ", ".join(f"{package} {version}" for package, version in installed_versions().items())

    @property
    def flag_rows(self) -> List[List[str]]:
        """Return [flag, value] of each flag, as in a configuration file."""
        return [[name, json.dumps(value, ensure_ascii=False)] for name, value in self.flags.items()]


NO_ORIGIN = Origin()


def read_card(folder: Path) -> str:
    """Return the model card in a model folder, '' if there is none that can be read."""
    try:
        return read_regular(folder / README, MAX_CARD_BYTES).decode("utf-8")
    except (OSError, ValueError):
        return ""


def render_page(template: Path, **values: object) -> str:
    """Return an HTML page that needs no other file; ``template`` fills the blocks of page.html."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader([template.parent, Path(__file__).parent])
    settings: Dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=loader, autoescape=True, **settings)
    environment.filters.update(number=format_number, percent=percent, range=format_range, cell=format_cell)
    return environment.get_template(template.name).render(**values)


def page_of_tables(
    title: str, tables: Sequence[Table], charts: Sequence[object] = (), made: Origin = NO_ORIGIN
) -> str:
    """Return a page of tables, with `Chart`s below them, and how it was made."""
    template = Path(__file__).with_name("tables.html")
    return render_page(template, title=title, tables=tables, charts=charts, made=made)


def text_table(table: Table) -> str:
    """Return a table for the terminal: the first column stands left, the others right, the note below."""
    rows = [[str(head) for head in table.heads], *(list(map(format_cell, row)) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [table.title]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(n) for cell, n in zip(others, widths[1:]))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(filter(None, [*lines, table.note]))


def format_cell(value: object) -> str:
    """Return the text in a cell of a `Table`."""
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) >= 0.01 or value == 0 else f"{value:.4g}"
    return "" if value is None else str(value)


def format_number(value, digits: int = 4) -> str:
    """Return a number with so many digits after the decimal point, a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}"


def percent(value) -> str:
    """Return a share in percent, a dash for None."""
    return "–" if value is None else f"{100 * value:.1f} %"


def format_range(interval) -> str:
    """Return an interval [low, high] in words, '' for None."""
    return "" if interval is None else f"{interval[0]:.4f} to {interval[1]:.4f}"


ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


def table_line(cells: Iterable[str]) -> str:
    """Return a line of cells, in which tabs and line ends are escaped."""
    return "\t".join(cell.translate(ESCAPES) for cell in cells) + "\n"
