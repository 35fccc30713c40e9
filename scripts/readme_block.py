"""Tables of the pages in both languages, and the text between two marks, which a command generates."""

import csv
import json
import re
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

import yaml

from ernie_pair.core.files.atomic_files import published

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "results"  # what the tables of the pages are made of
PAGES = ("README.md", "README_cn.md")
QUICKSTART, SEEDS, SIDE_BY_SIDE = "quickstart", "quickstart seeds", "side by side"
FLAGS, RESULTS, FAMILIES = "flags of every command", "results", "families"
MARKS = (QUICKSTART, SEEDS, SIDE_BY_SIDE, FLAGS, RESULTS, FAMILIES)
WORDS = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))


def all_pages() -> List[str]:
    return [*PAGES, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


def is_chinese(page: str) -> bool:
    return page == "README_cn.md" or page.startswith("docs/zh/")


def between(mark: str) -> "re.Pattern[str]":
    """Return the pattern of the text between <!-- MARK --> and <!-- end of MARK -->."""
    return re.compile(rf"(?<=<!-- {mark} -->\n)(.*?)(?=\n<!-- end of {mark} -->)", re.S)


def pages_with(mark: str) -> List[str]:
    return [page for page in all_pages() if f"<!-- {mark} -->" in (ROOT / page).read_text(encoding="utf-8")]


def replace_block(mark: str, render: Callable[[str], str]) -> None:
    for page in pages_with(mark):
        path = ROOT / page
        before, _, after = between(mark).split(path.read_text(encoding="utf-8"))
        path.write_text(f"{before}{render(page)}{after}", encoding="utf-8")


def head_of(table: str, page: str = "") -> List[str]:
    return [names[is_chinese(page)] for names in WORDS[table]["head"]]


def in_words(table: str, text: str, page: str) -> str:
    """Return a recorded text as the page says it, by the words of a table of words.yaml."""
    for recorded, *shown in WORDS[table]["words"]:
        text = text.replace(recorded, shown[is_chinese(page)])
    return text


def plain_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def render_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that reads well in a terminal too: its columns are padded."""
    widths = [max(3, *map(len, column)) for column in zip(head, *rows)]
    lines = [head, ["-" * width for width in widths], *rows]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths)] for line in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def read_table(path: Path) -> List[Dict[str, Any]]:
    """Return the rows of a CSV, without their empty cells; what reads as a number is one."""

    def value_of(cell: str) -> Any:
        try:
            return json.loads(cell)
        except ValueError:
            return cell

    with open(path, encoding="utf-8", newline="") as file:
        return [{name: value_of(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]


def write_table(path: Path, rows: Sequence[Dict[str, Any]]) -> None:
    """Write rows as a CSV; what a row lacks is an empty cell."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with published(path) as (draft,), open(draft, "w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, names, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
