"""Keep the figures of a comparison side by side and show its ratios: all in docs, some in the READMEs.

python scripts/side_by_side_table.py side_by_side.json [MORE.json ...]

Several files are of several cases, measured on one machine.
"""

import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence

from readme_block import PAGES, ROOT, SIDE_BY_SIDE, is_chinese, replace_block
from side_by_side.report import render_rows

from data_tools.base.errors import InputError

PUBLISHED = ROOT / "scripts" / "results" / "side_by_side.json"
HEAD = ("what", "ours", "against", "times as fast", "by the clock")
CHINESE_HEAD = ("内容", "本项目", "对照", "CPU 时间之比", "墙钟时间之比")


def publish(files: Sequence[Path]) -> None:
    """Keep the figures of ``files`` in PUBLISHED and show them in the pages.

    Raises InputError where they were measured on different machines.
    """
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    figures = {"machine": found[0]["machine"], "cases": [case for one in found for case in one["cases"]]}
    for file, one in zip(files, found):
        if one["machine"] != figures["machine"]:
            raise InputError(f"{file}: measured on another machine than {files[0]}; measure all cases on one")
    PUBLISHED.parent.mkdir(exist_ok=True)
    PUBLISHED.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    replace_block(SIDE_BY_SIDE, lambda page: render_page(figures, page))


def render_page(figures: Dict[str, Any], page: str) -> str:
    """Return the machine in words, and the table of ratios: of medians, and the least and most of a round.

    A README shows the main ones alone: our fused kernels beside the peer's best settings.
    """
    is_shown = _is_main if page in PAGES else _is_shown
    machine = ", ".join(f"{name} {value}" for name, value in figures["machine"].items() if value)
    rows: List[List[str]] = [
        [case["name"], ratio["ours"], ratio["other"], _cell(ratio["cpu"]), _cell(ratio["wall"])]
        for case in figures["cases"]
        for ratio in case["ratios"]
        if is_shown(ratio["ours"], ratio["other"])
    ]
    return f"{machine}\n\n{render_rows(CHINESE_HEAD if is_chinese(page) else HEAD, rows)}"


def _is_main(ours: str, other: str) -> bool:
    """Return whether the READMEs show a ratio: like beside like, in one precision."""
    return ours.startswith("fused ") and other == ours.replace("fused", "peer")


def _is_shown(ours: str, other: str) -> bool:
    """Return whether the pages show a ratio; all of them stand in PUBLISHED.

    Paddle's own kernels are what the fused ones are compared with, and nothing by themselves.
    """
    return not ours.startswith("plain") and not (ours.startswith("exported") and other.startswith("plain"))


def _cell(ratio) -> str:
    return "{ratio:.2f} ({low:.2f} to {high:.2f})".format(**ratio) if ratio else ""


if __name__ == "__main__":
    publish(list(map(Path, sys.argv[1:])))
