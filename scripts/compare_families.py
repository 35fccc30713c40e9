"""Compare every family of models with transformers, and show the largest differences in the convert pages.

sh scripts/test_peer.sh tests/peer/test_peers.py        # makes both environments, once
python scripts/compare_families.py [--peer_python .venv/newest-peer/bin/python]

Tiny models of every family are written by the newest transformers, or by that of constraints.txt where the
newest has the family no longer, and are read here and there.
"""

import contextlib
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List

from other_libraries.client import PYTHON, Peer, newest_python
from other_libraries.families import COLUMNS, ROWS, measure
from other_libraries.texts import assigned_characters, random_strings
from readme_block import FAMILIES, ROOT, is_chinese, replace_block
from side_by_side.report import render_rows

from data_tools.files.errors import InputError
from data_tools.files.json_file import write_json
from data_tools.options.cli import run_command
from data_tools.options.options import Options, option

PUBLISHED = ROOT / "scripts" / "results" / "families.json"
HEAD = ("family", "transformers", *COLUMNS)
CHINESE_HEAD = ("模型族", "transformers", "加载", "词元编号", "隐藏状态", "池化向量", "输出层")
CHINESE = (
    ("yes", "可以"),
    ("refused", "拒绝"),
    (" by byte-level BPE", "，字节级 BPE"),
    (" by word pieces", "，WordPiece"),
    (" by ", "，用 "),
    (", epsilon ", "，epsilon "),
    (" with task ids", "，带任务编号"),
    (", one output", "，单输出"),
    (", ", "、"),
)


@dataclass(frozen=True)
class CompareFamiliesConfig(Options):
    """Compare every family of models with transformers, and write the table into the convert pages."""

    EXAMPLE = "--peer_python .venv/newest-peer/bin/python"

    peer_python: str = option(
        "", help="a Python with the newest libraries; empty: that of scripts/test_peer.sh", group="other"
    )


def compare_families(config: CompareFamiliesConfig) -> None:
    """Measure every row, keep the figures in PUBLISHED, and show them in the pages."""
    python = Path(config.peer_python) if config.peer_python else newest_python()
    if python is None or not python.exists():
        raise InputError(
            f"--peer_python {config.peer_python}: no such Python; run scripts/test_peer.sh, or set {PYTHON}"
        )
    texts = [*(f"a{character}b" for character in assigned_characters()), *random_strings()]
    rows: List[Dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        libraries = {"newest": stack.enter_context(Peer(python)), "pinned": stack.enter_context(Peer())}
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number, row in enumerate(ROWS):
            peer = libraries[row.library]
            found = measure(peer, row, place / str(number), texts)
            rows.append({"family": row.name, "transformers": peer.versions["transformers"], **found})
            print(render_rows(HEAD, [cells(rows[-1])]).splitlines()[-1], flush=True)
    write_json(PUBLISHED, rows)
    replace_block(FAMILIES, lambda page: render_families(rows, page))


def render_families(rows: List[Dict[str, Any]], page: str) -> str:
    """Return the table of the figures in PUBLISHED, in the language of a page."""
    if not is_chinese(page):
        return render_rows(HEAD, list(map(cells, rows)))
    return render_rows(CHINESE_HEAD, [list(map(in_chinese, cells(row))) for row in rows])


def cells(row: Dict[str, Any]) -> List[str]:
    """Return a row in words: differences with two digits, and nothing where nothing was measured."""
    found = [row["family"], row["transformers"]]
    for name in COLUMNS:
        value = row[name]
        if isinstance(value, list):
            found.append("{:,} of {:,}".format(*value))
        elif isinstance(value, float) and math.isfinite(value):
            found.append(f"{value:.1e}")
        else:
            found.append(value if value in ("", "yes") else "" if value is None else "refused")
    return found


def in_chinese(cell: str) -> str:
    """Return the content of a cell in Chinese."""
    if " of " in cell:
        return "{1} 中 {0}".format(*cell.split(" of "))
    for english, chinese in CHINESE:
        cell = cell.replace(english, chinese)
    return cell


if __name__ == "__main__":
    run_command(compare_families, CompareFamiliesConfig)
