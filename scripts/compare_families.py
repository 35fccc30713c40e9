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
from readme_block import (
    FAMILIES,
    FIGURES,
    head_of,
    in_words,
    is_chinese,
    render_rows,
    replace_block,
    write_table,
)

from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import Options, option
from ernie_pair.core.errors import InputError

PUBLISHED = FIGURES / "families.csv"


@dataclass(frozen=True)
class CompareFamiliesConfig(Options):
    """Compare every family of models with transformers, and write the table into the convert pages."""

    EXAMPLE = "--peer_python .venv/newest-peer/bin/python"

    peer_python: str = option("", help="a Python with the newest libraries; empty: of scripts/test_peer.sh")


def compare_families(config: CompareFamiliesConfig) -> None:
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
            figures = measure(peer, row, place / str(number), texts)
            rows.append({"family": row.name, "transformers": peer.versions["transformers"], **figures})
            print(render_families(rows[-1:], "").splitlines()[-1], flush=True)
    write_table(PUBLISHED, rows)
    replace_block(FAMILIES, lambda page: render_families(rows, page))


def render_families(rows: List[Dict[str, Any]], page: str) -> str:
    shown = [[in_words(FAMILIES, cell, page) for cell in cells(row, page)] for row in rows]
    return render_rows(head_of(FAMILIES, page), shown)


def cells(row: Dict[str, Any], page: str = "") -> List[str]:
    """Return a row in words: differences with two digits, and nothing where nothing was measured."""
    shown = [row["family"], row["transformers"]]
    for name in COLUMNS:
        value = row.get(name)
        if name == "ids" and row.get("of"):
            form = "{1:,} 中 {0:,}" if is_chinese(page) else "{:,} of {:,}"
            shown.append(form.format(value, row["of"]))
        elif isinstance(value, float) and math.isfinite(value):
            shown.append(f"{value:.1e}")
        else:
            shown.append(value or "" if value in (None, "yes") else "refused")
    return shown


if __name__ == "__main__":
    run_command(compare_families, CompareFamiliesConfig)
