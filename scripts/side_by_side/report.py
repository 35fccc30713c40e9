"""The output of a side-by-side benchmark: one JSON, one table, one picture."""

import json
import os
import platform
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

from data_tools.files.atomic_files import published
from ernie_pair.runtime.cpu import processor_name

OURS, PEERS = "#1f77b4", "#999999"
RATIO_HEAD = ("ours", "against", "CPU", "from", "to", "by the clock", "from", "to")
Figures = Dict[str, Any]


def _scaled(form: str, by: float = 1) -> Callable[[Optional[float]], str]:
    return lambda value: "" if value is None else form.format(value * by)


COLUMNS = {  # head: a figure of a lane, and how it is shown
    "lane": ("name", str),
    "ms of CPU a step": ("step_cpu_seconds", _scaled("{:,.1f}", 1e3)),
    "ms a step": ("step_seconds", _scaled("{:,.1f}", 1e3)),
    "pairs/s": ("pairs_per_second", _scaled("{:,.0f}")),
    "tokens/s": ("real_tokens_per_second", _scaled("{:,.0f}")),
    "with padding": ("tokens_per_second", _scaled("{:,.0f}")),
    "GFLOP/s": ("flops_per_second", _scaled("{:,.0f}", 1e-9)),
    "of the product rate": ("product_share", _scaled("{:.1%}")),
    "waits for data": ("data_wait_share", _scaled("{:.1%}")),
    "GB": ("memory_gb", _scaled("{:.2f}")),
}


def machine_facts(threads: int, peer: str) -> Figures:
    """Return the facts of the machine on which the figures depend."""
    import paddle

    cores = len(os.sched_getaffinity(0))
    facts = {"processor": processor_name() or "unknown", "cores": cores, "threads": threads}
    return {**facts, "python": platform.python_version(), "paddle": paddle.__version__, "peer": peer}


def render(cases: Sequence[Figures], facts: Figures) -> str:
    """Return the tables of all cases, in Markdown."""
    parts = [", ".join(f"{name} {value}" for name, value in facts.items() if value)]
    for case in cases:
        parts.append(f"### {case['name']}\n\nA step is {case['unit']}.")
        lanes = [[show(lane[name]) for name, show in COLUMNS.values()] for lane in case["lanes"]]
        parts.append(render_rows(tuple(COLUMNS), lanes))
        if case["ratios"]:
            parts.append(render_rows(RATIO_HEAD, [_ratio_cells(ratio) for ratio in case["ratios"]]))
    return "\n\n".join(parts) + "\n"


def _ratio_cells(ratio: Figures) -> List[str]:
    cells = [ratio["ours"], ratio["other"]]
    for clock in ("cpu", "wall"):
        cells += [f"{ratio[clock][name]:.2f}" if ratio[clock] else "" for name in ("ratio", "low", "high")]
    return cells


def render_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that reads well in a terminal too: its columns are padded."""
    table = [list(head), ["-"] * len(head), *map(list, rows)]
    widths = [max(3, *map(len, column)) for column in zip(*table)]
    table[1] = ["-" * width for width in widths]
    lines = ("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in table)
    return "\n".join(lines)


def publish(outputs: Sequence[Path], cases: Sequence[Figures], facts: Figures) -> None:
    """Write the figures, the table and the picture, all or none."""
    with published(*outputs) as (figures, markdown, picture):
        content = {"machine": facts, "cases": cases}
        figures.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        markdown.write_text(render(cases, facts), encoding="utf-8")
        draw(picture, cases)


def draw(path: Path, cases: Sequence[Figures]) -> None:
    """Draw every ratio as a bar, with a whisker from the minimum to the maximum of the rounds.

    It is by CPU time, if that is known, otherwise by the wall clock.
    """
    from matplotlib.figure import Figure

    bars = [(case["name"], ratio) for case in cases for ratio in case["ratios"]]
    figure = Figure(figsize=(10, 1.5 + 0.3 * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    for place, (_, ratio) in enumerate(bars):
        times = ratio["cpu"] or ratio["wall"]
        # The ratio of medians may lie outside the ratios of single rounds.
        errors = [[max(0.0, times["ratio"] - times["low"])], [max(0.0, times["high"] - times["ratio"])]]
        colour = OURS if ratio["other"].startswith("peer") else PEERS
        axes.barh(place, times["ratio"], xerr=errors, color=colour, capsize=2)
        axes.text(times["ratio"], place, f" {times['ratio']:.2f}", va="bottom", fontsize=7)
    names = [f"{name}: {ratio['ours']} against {ratio['other']}" for name, ratio in bars]
    axes.set_yticks(range(len(bars)), names, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times as fast")
    figure.savefig(path, format="png", dpi=150)
