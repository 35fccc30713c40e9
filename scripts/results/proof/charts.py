"""Pictures of the page: curves of loss over steps, SVG without fonts and dates."""

from typing import Any, Dict, List, Sequence

from ernie_pair.report.chart import BLUE, GREEN, GREY, ORANGE, draw_chart, svg_in

COLOURS = (BLUE, ORANGE, GREEN, GREY)
Result = Dict[str, Any]


def loss_curves(title: str, results: Sequence[Result], value: str = "lm_loss") -> str:
    """Return the SVG of ``value`` on the held-out text over the steps, a curve for each result."""

    def draw(axes) -> None:
        for number, result in enumerate(results):
            points = _points(result, value)
            style = "-" if number < len(COLOURS) else "--"
            steps, values = [p["step"] for p in points], [p[value] for p in points]
            axes.plot(steps, values, style, color=COLOURS[number % len(COLOURS)], label=result["title"])
        axes.set(xlabel="step", ylabel="masked loss, held out")

    return svg_in(draw_chart(title, draw, "")).decode()


def has_curve(result: Result, value: str = "lm_loss") -> bool:
    """Return whether there is a curve to draw."""
    return len(_points(result, value)) > 1


def _points(result: Result, value: str) -> List[Result]:
    return [point for point in result["curve"].get("valid", []) if value in point]
