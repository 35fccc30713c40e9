"""The page of a report: a template that extends report_base.html, which brings the look of all of them."""

from pathlib import Path

BASE = Path(__file__).with_name("report_base.html")


def render_page(template: Path, **values: object) -> str:
    """Return the HTML of a template with ``values``; it needs no other file."""
    from jinja2 import DictLoader, Environment, StrictUndefined

    texts = {path.name: path.read_text(encoding="utf-8") for path in (BASE, template)}
    environment = Environment(
        loader=DictLoader(texts),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=shown_number, percent=percent)
    return environment.get_template(template.name).render(**values)


def shown_number(value, digits: int = 4) -> str:
    """Return a number with so many digits behind the point, a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}"


def percent(value) -> str:
    """Return a share in percent, a dash for None."""
    return "–" if value is None else f"{100 * value:.1f} %"


def shown_range(interval) -> str:
    """Return an interval [low, high] in words, '' for None."""
    return "" if interval is None else f"{interval[0]:.4f} to {interval[1]:.4f}"
