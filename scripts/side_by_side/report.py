"""The output of a side-by-side benchmark: one JSON, one table, one picture."""

import json
import os
import platform
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from data_tools.files.atomic_files import published
from ernie_pair.runtime.cpu import processor_name
from side_by_side.figures import CaseFigures

LANE_HEAD = (
    *("lane", "ms of CPU a step", "ms a step", "pairs/s", "tokens/s", "with padding", "GFLOP/s"),
    *("of the product rate", "waits for data", "GB"),
)
RATIO_HEAD = ("ours", "against", "CPU", "from", "to", "by the clock", "from", "to")
OURS, PEERS = "#1f77b4", "#999999"


def machine_facts(threads: int, peer: str) -> Dict[str, Any]:
    """Return the facts of the machine on which the figures depend."""
    import paddle

    facts = {
        "processor": processor_name() or "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
    }
    return {**facts, "python": platform.python_version(), "paddle": paddle.__version__, "peer": peer}


def render(cases: Sequence[CaseFigures], facts: Dict[str, Any]) -> str:
    """Return the tables of all cases, in Markdown."""
    parts = [", ".join(f"{name} {value}" for name, value in facts.items() if value)]
    for case in cases:
        parts.append(f"### {case.name}\n\nA step is {case.unit}.")
        parts.append(render_rows(LANE_HEAD, [_lane_cells(lane) for lane in case.lanes]))
        if case.ratios:
            parts.append(render_rows(RATIO_HEAD, [_ratio_cells(ratio) for ratio in case.ratios]))
    return "\n\n".join(parts) + "\n"


def render_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that reads well in a terminal too: its columns are padded."""
    table = [list(head), ["-"] * len(head), *map(list, rows)]
    widths = [max(3, *map(len, column)) for column in zip(*table)]
    table[1] = ["-" * width for width in widths]
    lines = ("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in table)
    return "\n".join(lines)


def _lane_cells(lane) -> List[str]:
    return [
        lane.name,
        "" if lane.step_cpu_seconds is None else f"{1e3 * lane.step_cpu_seconds:,.1f}",
        f"{1e3 * lane.step_seconds:,.1f}",
        *(_number(n) for n in (lane.pairs_per_second, lane.real_tokens_per_second, lane.tokens_per_second)),
        _number(lane.flops_per_second and lane.flops_per_second / 1e9),
        *(_percent(share) for share in (lane.product_share, lane.data_wait_share)),
        f"{lane.memory_gb:.2f}",
    ]


def _ratio_cells(ratio: Dict[str, Any]) -> List[str]:
    cells = [ratio["ours"], ratio["other"]]
    for clock in ("cpu", "wall"):
        found = ratio[clock]
        cells += [f"{found[name]:.2f}" if found else "" for name in ("ratio", "low", "high")]
    return cells


def _number(value: Optional[float]) -> str:
    return "" if value is None else f"{value:,.0f}"


def _percent(value: Optional[float]) -> str:
    return "" if value is None else f"{value:.1%}"


def publish(outputs: Sequence[Path], cases: Sequence[CaseFigures], facts: Dict[str, Any], table: str) -> None:
    """Write the figures, the table and the picture, all or none."""
    with published(*outputs) as (figures, markdown, picture):
        content = {"machine": facts, "cases": [case.to_json() for case in cases]}
        figures.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        markdown.write_text(table, encoding="utf-8")
        draw(picture, cases)


def draw(path: Path, cases: Sequence[CaseFigures]) -> None:
    """Draw every ratio as a bar, with a whisker from the minimum to the maximum of the rounds.

    It is by CPU time, if that is known, otherwise by the wall clock.
    """
    from matplotlib.figure import Figure

    bars = [(case, ratio) for case in cases for ratio in case.ratios]
    figure = Figure(figsize=(10, 1.5 + 0.3 * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    for place, (_, ratio) in enumerate(bars):
        found = ratio["cpu"] or ratio["wall"]
        # The ratio of medians may lie outside the ratios of single rounds.
        errors = [[max(0.0, found["ratio"] - found["low"])], [max(0.0, found["high"] - found["ratio"])]]
        colour = OURS if ratio["other"].startswith("peer") else PEERS
        axes.barh(place, found["ratio"], xerr=errors, color=colour, capsize=2)
        axes.text(found["ratio"], place, f" {found['ratio']:.2f}", va="bottom", fontsize=7)
    names = [f"{case.name}: {ratio['ours']} against {ratio['other']}" for case, ratio in bars]
    axes.set_yticks(range(len(bars)), names, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times as fast")
    figure.savefig(path, format="png", dpi=150)
