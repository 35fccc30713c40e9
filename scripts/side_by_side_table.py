"""Keep the figures of a comparison side by side; show all in docs, a few in READMEs, the main ones drawn.

python scripts/side_by_side_table.py side_by_side.json [MORE.json ...]

Several files hold different cases, or lanes of a case, measured on one machine. Earlier figures of that
processor with those instructions give way to them; those of others stay beside them.
"""

import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from readme_block import (
    FIGURES,
    PAGES,
    ROOT,
    SIDE_BY_SIDE,
    head_of,
    in_words,
    is_chinese,
    read_table,
    render_rows,
    replace_block,
    write_table,
)

from ernie_pair.core.errors import InputError

PUBLISHED, MACHINES = FIGURES / "side_by_side.csv", FIGURES / "machines.csv"
PICTURE = ROOT / "docs" / "pictures" / "side_by_side.png"
OF_SENTENCES = ("embed ", "rerank ", "serve ", "cold embed ")  # cases whose peer is sentence-transformers
KEY = ("processor", "instructions")  # of a machine
CLOCKS = ("cpu", "wall")
OURS, PLAIN = "#1f77b4", "#999999"  # beside others, and beside Paddle's own kernels
Row = Dict[str, Any]


def publish(files: Sequence[Path]) -> None:
    """Keep the figures of ``files``, of one machine, in PUBLISHED and show all. Raises InputError."""
    parts = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    machine = {name: value for name, value in parts[0]["machine"].items() if value}
    for file, part in zip(files, parts):
        if part["machine"] != parts[0]["machine"]:
            raise InputError(f"{file}: measured on another machine than {files[0]}; measure all cases on one")
    key = {name: machine[name] for name in KEY}

    def others(path: Path) -> List[Row]:
        return [row for row in read_table(path) if not key.items() <= row.items()] if path.exists() else []

    cases = [case for part in parts for case in part["cases"]]
    names = list(dict.fromkeys(case["name"] for case in cases))  # lanes of a case may be in several files
    rows = [
        {**key, "case": name, **ratio}
        for name in names
        for case in cases
        if case["name"] == name
        for ratio in case["ratios"]
    ]
    machines = sorted([*others(MACHINES), machine], key=lambda row: row["instructions"])
    machines.sort(key=lambda row: row["processor"], reverse=True)
    write_table(PUBLISHED, [*others(PUBLISHED), *rows])
    write_table(MACHINES, machines)
    show()


def read_figures() -> List[Tuple[Row, List[Row]]]:
    """Return each machine, and the ratios that were measured on it."""
    rows = read_table(PUBLISHED)
    return [
        (machine, [row for row in rows if all(row[name] == machine[name] for name in KEY)])
        for machine in read_table(MACHINES)
    ]


def show() -> None:
    """Show what is kept in the pages, and draw the main ratios."""
    figures = read_figures()
    draw(PICTURE, [bar for each in figures for bar in main_bars(*each)])
    replace_block(SIDE_BY_SIDE, lambda page: "\n\n".join(render_machine(*each, page) for each in figures))


def is_main(row: Row) -> bool:
    """Return whether fused kernels meet the peer's best settings in one precision, or whole commands meet."""
    is_whole = row["other"] in ("peer service", "peer command") and "exported" not in row["ours"]
    return (
        is_whole or row["ours"].startswith("fused ") and row["other"] == row["ours"].replace("fused", "peer")
    )


def is_in_readme(row: Row) -> bool:
    few = ("train pairs 4 ", "pretrain ", "ask 12 x 768, 512 ", "serve 6 x 384, clients 4")
    return is_main(row) and row["case"].startswith(few) and "bf16" not in row["ours"]


def main_bars(machine: Row, rows: Sequence[Row]) -> List[Row]:
    """Return the main ratios, in the words of the README, for the picture."""
    bars = []
    for row in filter(is_main, rows):
        case, ours, other = names_of(row, PAGES[0])
        bars.append({**row, "case": f"{machine['instructions']}, {case}", "ours": ours, "other": other})
    return bars


def draw(path: Path, bars: Sequence[Row]) -> None:
    """Draw every ratio, by CPU time where it is known, as a bar with a whisker over the rounds.

    ``bars``: ratios with the name of their case.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.5 + 0.3 * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    for place, bar in enumerate(bars):
        clock = "cpu" if "cpu" in bar else "wall"
        ratio, low, high = bar[clock], bar[f"{clock}_low"], bar[f"{clock}_high"]
        # The ratio of medians may lie outside the ratios of single rounds.
        errors = [[max(0.0, ratio - low)], [max(0.0, high - ratio)]]
        colour = PLAIN if bar["other"].startswith("plain") else OURS
        axes.barh(place, ratio, xerr=errors, color=colour, capsize=2)
        axes.text(ratio, place, f" {ratio:.2f}", va="bottom", fontsize=7)
    names = [f"{bar['case']}: {bar['ours']} against {bar['other']}" for bar in bars]
    axes.set_yticks(range(len(bars)), names, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times as fast")
    figure.savefig(path, format="png", dpi=110)


def names_of(row: Row, page: str) -> Sequence[str]:
    """Return in words a case, and the two sides of one of its ratios."""
    other, case = row["other"], row["case"]
    other = other.replace("peer ", "peer of sentences ") if case.startswith(OF_SENTENCES) else other
    return [in_words(SIDE_BY_SIDE, text, page) for text in (case, row["ours"], other)]


def is_shown(row: Row) -> bool:
    """Return whether ``docs`` show a ratio: Paddle's own kernels only as what the fused ones meet."""
    of_plain = row["other"].startswith("plain") and row["ours"].startswith("exported")
    return not row["ours"].startswith("plain") and not of_plain


def render_machine(machine: Row, rows: Sequence[Row], page: str) -> str:
    """Return a machine in words, and its table of ratios; a README shows only a few."""
    chinese, shown = is_chinese(page), is_in_readme if page in PAGES else is_shown
    form = "{:.2f}（{:.2f} 到 {:.2f}）" if chinese else "{:.2f} ({:.2f} to {:.2f})"
    facts = (f"{in_words('machine', name, page)} {value}" for name, value in machine.items())
    cells = [
        [
            *names_of(row, page),
            *(
                form.format(row[clock], row[f"{clock}_low"], row[f"{clock}_high"]) if clock in row else ""
                for clock in CLOCKS
            ),
        ]
        for row in filter(shown, rows)
    ]
    return f"{('，' if chinese else ', ').join(facts)}\n\n{render_rows(head_of(SIDE_BY_SIDE, page), cells)}"


if __name__ == "__main__":
    publish(list(map(Path, sys.argv[1:])))
