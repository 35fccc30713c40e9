"""What stands between two marks of both READMEs: figures that a command puts there."""

import re
from pathlib import Path
from typing import Callable

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "README_cn.md")
QUICKSTART, SIDE_BY_SIDE = MARKS = ("quickstart", "side by side")


def between(mark: str) -> "re.Pattern[str]":
    """Return the pattern of what stands between <!-- MARK --> and <!-- end of MARK -->."""
    return re.compile(rf"(?<=<!-- {mark} -->\n)(.*)(?=\n<!-- end of {mark} -->)", re.S)


def replace_block(mark: str, render: Callable[[str], str]) -> None:
    """Put ``render(page)`` between the marks of each page."""
    for page in PAGES:
        path = ROOT / page
        before, _, after = between(mark).split(path.read_text(encoding="utf-8"))
        path.write_text(f"{before}{render(page)}{after}", encoding="utf-8")
