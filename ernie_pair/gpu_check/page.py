"""The report of the check as one HTML page that needs no other file."""

from pathlib import Path
from typing import Any, Dict

TEMPLATE = Path(__file__).with_name("page.html")


def page_of(report: Dict[str, Any]) -> str:
    """Return the page of a report, the content of its JSON file."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["figure"] = show_figure
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(report=report)


def show_figure(value: Any) -> str:
    """Return a figure for a reader: large ones with commas, small ones with three digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or (abs(value) >= 1000 and value == value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
