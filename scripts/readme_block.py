"""Replace the text between two marks of the pages, in both languages, with what a command generates."""

import re
from pathlib import Path
from typing import Callable, List

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "README_cn.md")
QUICKSTART, SEEDS, SIDE_BY_SIDE, FLAGS, RESULTS, FAMILIES = MARKS = (
    "quickstart",
    "quickstart seeds",
    "side by side",
    "flags of every command",
    "results",
    "families",
)


def all_pages() -> List[str]:
    """Return the READMEs and every page of docs, by their paths from the root."""
    return [*PAGES, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


def is_chinese(page: str) -> bool:
    """Return whether a page is in Chinese."""
    return page == "README_cn.md" or page.startswith("docs/zh/")


def between(mark: str) -> "re.Pattern[str]":
    """Return the pattern of the text between <!-- MARK --> and <!-- end of MARK -->."""
    return re.compile(rf"(?<=<!-- {mark} -->\n)(.*?)(?=\n<!-- end of {mark} -->)", re.S)


def pages_with(mark: str) -> List[str]:
    """Return the pages that have the marks."""
    return [page for page in all_pages() if f"<!-- {mark} -->" in (ROOT / page).read_text(encoding="utf-8")]


def replace_block(mark: str, render: Callable[[str], str]) -> None:
    """Put ``render(page)`` between the marks of each page that has them."""
    for page in pages_with(mark):
        path = ROOT / page
        before, _, after = between(mark).split(path.read_text(encoding="utf-8"))
        path.write_text(f"{before}{render(page)}{after}", encoding="utf-8")
