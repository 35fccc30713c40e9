"""What the pages show, the READMEs and docs: every fenced block, every table of flags, headings and links."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple

from places import ROOT
from readme_block import MARKS, all_pages, between, is_chinese

MADE = "docs/RESULTS.md"  # of JSON, by a script: tests/scripts/test_proof_of_use.py compares them
PAGES = [page for page in all_pages() if page != MADE]

FENCE = re.compile(r"^(?:<!-- (?P<mark>[\w ]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```", re.S | re.M)
FLAG_TABLES = ("flags", "参数")  # the first cell of their head; a table of promises holds no flags
TABLE = re.compile(r"^\|.*\|\n\|[-|: ]+\|\n(?:\|.*\|\n?)+", re.M)


class Block(NamedTuple):
    """``mark``: what the comment before the fence says; ``language``: sh, python, or nothing for a text."""

    page: str
    line: int
    mark: str
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}-{self.mark or self.text.strip().splitlines()[0][:50]}"

    @property
    def commands(self) -> List[str]:
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if line.strip() and not line.startswith("#")]

    @property
    def code(self) -> str:
        """The text without comments and blanks at the ends: what the other language shows as well."""
        return "\n".join(re.sub(r"(^|\s+)# .*", "", line).rstrip() for line in self.text.splitlines()).strip()


class Row(NamedTuple):
    """The cells of a row of a table of flags; ``table`` numbers the tables of its page."""

    page: str
    table: int
    cells: List[str]

    @property
    def name(self) -> str:
        return f"{self.page}-{self.cells[0]}"

    @property
    def flags(self) -> List[str]:
        """What stands between backticks in the first cell: `--dp_degree 2 --sharding_degree 4`."""
        return re.findall(r"`([^`]*)`", self.cells[0])


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks() -> List[Block]:
    found = []
    for page in PAGES:
        text = text_of(page)
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(page, line, match["mark"] or "", match["language"], match["text"]))
        fences = len(re.findall(r"^\s*```", text, re.M))
        assert fences == 2 * sum(block.page == page for block in found), f"{page}: a fence was not understood"
    return found


def blocks_to_run() -> List[Block]:
    """Return the blocks without those that an earlier page, or the same page in English, shows too."""
    found = {}
    for block in sorted(blocks(), key=lambda block: is_chinese(block.page)):
        found.setdefault((block.language, block.code), block)
    return list(found.values())


def block_with(mark: str) -> Block:
    """Return the first block, an English one, that the comment before its fence calls ``mark``."""
    return next(block for block in blocks_to_run() if block.mark == mark)


def prose_of(page: str) -> str:
    text = text_of(page)
    for mark in MARKS:
        text = between(mark).sub("", text)
    return FENCE.sub("", text)


def headings(page: str) -> List[str]:
    return re.findall(r"^#+ .*", FENCE.sub("", text_of(page)), re.M)


def rows() -> List[Row]:
    found = []
    for page in PAGES:
        text = prose_of(page)
        tables = TABLE.findall(text)
        for number, table in enumerate(tables):
            if table.strip("| ").split("|")[0].strip() not in FLAG_TABLES:
                continue
            for line in table.strip().splitlines()[2:]:
                found.append(Row(page, number, [cell.strip() for cell in line.strip("| ").split("|")]))
        lines = sum(line.lstrip().startswith("|") for line in text.splitlines())
        assert lines == sum(
            len(table.strip().splitlines()) for table in tables
        ), f"{page}: a table is not whole"
    return found


def activated_environment() -> Dict[str, str]:
    """The variables with which `python`, `ernie-pair` and `sh scripts/...` are those of this environment."""
    place = Path(sys.executable).parents[1]
    path = f"{place}/bin:{sys.prefix}/bin:{os.environ['PATH']}"
    return {**os.environ, "VIRTUAL_ENV": str(place), "PATH": path, "DEVICE": "cpu"}


def run_shell(command: str, here: Path, environment: Dict[str, str], timeout: int = 900) -> str:
    done = subprocess.run(
        ["sh", "-c", command], cwd=here, env=environment, capture_output=True, text=True, timeout=timeout
    )
    logs = "" if here == ROOT else "".join(path.read_text()[-2000:] for path in here.glob("**/workerlog.0"))
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n{logs}"
    return done.stdout + done.stderr
