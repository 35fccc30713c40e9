"""The page of a comparison: what the starts are worth, and below it the runs that were made from them."""

from typing import List, Sequence

from data_tools.base.errors import counted
from ernie_pair.dashboard.plot_page import First, page_of
from ernie_pair.dashboard.run_folder import Run
from ernie_pair.pair.compare.comparison_report import (
    SHOWN,
    Comparison,
    Domain,
    domain_cell,
    panels_of,
    verdict_of,
    with_deviation,
)
from ernie_pair.report.chart import draw_chart
from ernie_pair.report.page import Made, Table

TITLE = "Starts compared"
STARTS_NOTE = (
    "Means over the seeds{}. 95 %: the interval of the mean, by bootstrap over rows and seeds. At chance: "
    "what is not above answering the most common class (accuracy {:.4f}) or an AUC of 0.5."
)
DIFFERENCES_NOTE = (
    "The first start minus the second, on the same rows with the same seeds (paired bootstrap). Not above 0: "
    "in which share of the resamples there is no gain."
)


def page_of_comparison(comparison: Comparison, domain: Domain, runs: Sequence[Run], made: Made) -> str:
    """Return an HTML page that needs no other file: the comparison, and the curves and flags of ``runs``."""
    charts = [draw_chart(title, draw, "") for title, draw in panels_of(comparison, domain)]
    tables = [table_of_starts(comparison, domain), table_of_differences(comparison)]
    return page_of(runs, [], made, First(TITLE, tables, charts))


def table_of_starts(comparison: Comparison, domain: Domain) -> Table:
    """Return a row for each start: its metrics, their intervals, and what of them is at chance."""
    heads = ["start", *(head for metric in SHOWN for head in (metric, "95 %")), "at chance"]
    rows: List[List[object]] = []
    for name in comparison.mean:
        cells: List[object] = [name]
        for metric in SHOWN:
            low, high = comparison.interval[name][metric]
            cells += [with_deviation(comparison, name, metric), f"{low:.4f} to {high:.4f}"]
        cells.append(", ".join(comparison.at_chance[name]) or "–")
        rows.append([*cells, domain_cell(domain[name])] if domain else cells)
    spread = "" if comparison.deviation is None else ", +- their standard deviation"
    note = STARTS_NOTE.format(spread, comparison.chance["accuracy"])
    title = f"{comparison.rows} rows, {counted(len(comparison.seeds), 'seed')} from {comparison.seeds[0]}"
    return Table(title, [*heads, "masked words: loss (perplexity)"] if domain else heads, rows, note)


def table_of_differences(comparison: Comparison) -> Table:
    """Return a row for each metric of each two starts."""
    heads = ["difference", "metric", "mean", "95 %", "not above 0", "remark"]
    rows = []
    for difference in comparison.differences:
        for metric in SHOWN:
            low, high = difference.interval[metric]
            rows.append(
                [
                    f"{difference.one} - {difference.other}",
                    metric,
                    f"{difference.mean[metric]:+.4f}",
                    f"{low:+.4f} to {high:+.4f}",
                    f"{difference.not_above_0[metric]:.1%}",
                    verdict_of(difference, metric),
                ]
            )
    return Table("Differences", heads, rows, DIFFERENCES_NOTE)
