"""The Chinese pages say what the English ones say: flags, rows of tables, lists, links, pictures.

Headings and commands are compared by tests/recipes/test_pages.py.
"""

import re

import pytest
from places import ROOT
from readme_block import SIDE_BY_SIDE, between

ENGLISH, CHINESE = ROOT / "docs" / "en", ROOT / "docs" / "zh"
PAIRS = [
    (ROOT / "README.md", ROOT / "README_cn.md"),
    *((path, CHINESE / path.name) for path in sorted(ENGLISH.glob("*.md"))),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.S | re.M)
TABLE = re.compile(r"(?:^\|.*\n)+", re.M)
FLAG = re.compile(r"--[a-z]\w*")
LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")


def read(path):
    return path.read_text(encoding="utf-8")


def without_fences(path):
    return FENCE.sub("", read(path))


def tables_of(path):
    """Return each table: for each of its rows the number of cells and the flags."""
    cells = re.compile(r"(?<!\\)\|")
    return [
        [(len(cells.split(row)), sorted(set(FLAG.findall(row)))) for row in table.splitlines()]
        for table in TABLE.findall(without_fences(path))
    ]


def links_of(path):
    """Return the targets of the links and pictures of a page, without language folders and anchors."""
    found = set()
    for picture, target in LINK.findall(without_fences(path)):
        target = target.split("#")[0] or "#"
        target = target.replace("docs/zh/", "docs/en/").replace("_zh.svg", ".svg").replace("_zh.png", ".png")
        if path.name.startswith("README") and target in ("README.md", "README_cn.md"):
            target = "the other language"
        found.add((picture, target))
    return found


def names(pair):
    return str(pair[1].relative_to(ROOT))


def test_each_page_exists_in_both_languages():
    assert {path.name for path in ENGLISH.glob("*.md")} == {path.name for path in CHINESE.glob("*.md")}
    assert len(PAIRS) > 15


def flags_of(path):
    return set(FLAG.findall(without_fences(path)))


def count_list_items(path):
    return len(re.findall(r"^(?:-|\d+\.) \S", without_fences(path), re.M))


@pytest.mark.parametrize("measure", [tables_of, flags_of, count_list_items, links_of])
@pytest.mark.parametrize("pair", PAIRS, ids=names)
def test_both_pages_have_the_same_tables_flags_lists_and_links(pair, measure):
    english, chinese = map(measure, pair)
    assert english == chinese


@pytest.mark.parametrize("pair", PAIRS, ids=names)
def test_the_chinese_page_is_written_in_chinese(pair):
    """No paragraph was left in English: each holds Chinese characters."""
    text = between(SIDE_BY_SIDE).sub("", without_fences(pair[1]))
    text = TABLE.sub("", re.sub(r"<!--.*?-->", "", text, flags=re.S))
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if len(re.sub(r"\W|\d", "", part)) > 40]
    assert [part for part in paragraphs if not re.search(r"[\u4e00-\u9fff]{2}", part)] == []


@pytest.mark.parametrize("page", [pair[1] for pair in PAIRS], ids=lambda page: page.name)
def test_chinese_sentences_use_chinese_punctuation(page):
    """ASCII punctuation after a Chinese character is a typing error."""
    text = re.sub(r"`[^`]*`", "", without_fences(page))
    assert re.findall(r"[\u4e00-\u9fff][,;:!?.](?=[\s\u4e00-\u9fff])", text) == []
