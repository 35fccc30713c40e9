"""The page of a report: a template that extends page.html, the common layout of all reports."""

import json
import os
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Sequence

from ernie_pair.checkpoint.manifest import installed_versions
from ernie_pair.core.files.atomic_files import read_regular
from ernie_pair.core.files.atomic_folder import README

ON_THE_PAGE = 50  # the worst rows or queries that a page lists
LARGEST_CARD = 1 << 18  # bytes


class Table(NamedTuple):
    """A separate table on the page; ``rows`` begin with a name, None is an empty cell."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str


class Made(NamedTuple):
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


NOT_SAID = Made()


def read_card(folder: Path) -> str:
    """Return the model card in a model folder, '' if there is none that can be read."""
    try:
        return read_regular(folder / README, LARGEST_CARD).decode("utf-8")
    except (OSError, ValueError):
        return ""


def render_page(template: Path, **values: object) -> str:
    """Return an HTML page that needs no other file; ``template`` fills the blocks of page.html."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader([template.parent, Path(__file__).parent])
    settings: Dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=loader, autoescape=True, **settings)
    environment.filters.update(number=shown_number, percent=percent, range=shown_range, cell=shown_cell)
    return environment.get_template(template.name).render(**values)


def page_of_tables(
    title: str, tables: Sequence[Table], charts: Sequence[object] = (), made: Made = NOT_SAID
) -> str:
    """Return a page of tables, with `Chart`s below them, and how it was made."""
    template = Path(__file__).with_name("tables.html")
    return render_page(template, title=title, tables=tables, charts=charts, made=made)


def metric_cards(evaluation: Mapping[str, Any], names: Mapping[str, str]) -> List[Dict[str, str]]:
    """Return a card {name, value, below} of each metric of ``names``, {key in ``evaluation``: name shown}.

    Its interval is below its value, if ``evaluation`` has one.
    """
    ranges = evaluation.get("intervals", {})
    return [
        {"name": shown, "value": shown_number(evaluation[name]), "below": shown_range(ranges.get(name))}
        for name, shown in names.items()
    ]


def shown_cell(value: object) -> str:
    """Return the text in a cell of a `Table`."""
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) >= 0.01 or value == 0 else f"{value:.4g}"
    return "" if value is None else str(value)


def shown_number(value, digits: int = 4) -> str:
    """Return a number with so many digits after the decimal point, a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}"


def percent(value) -> str:
    """Return a share in percent, a dash for None."""
    return "–" if value is None else f"{100 * value:.1f} %"


def shown_range(interval) -> str:
    """Return an interval [low, high] in words, '' for None."""
    return "" if interval is None else f"{interval[0]:.4f} to {interval[1]:.4f}"


ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


def table_line(cells: Iterable[str]) -> str:
    """Return a line of cells, in which tabs and line ends are escaped."""
    return "\t".join(cell.translate(ESCAPES) for cell in cells) + "\n"
