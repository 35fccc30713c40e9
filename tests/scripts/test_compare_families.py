"""The table of families in the convert pages."""

import compare_families
import pytest
from other_libraries.families import COLUMNS, ROWS
from places import ROOT
from readme_block import FAMILIES, between, pages_with, read_table

from ernie_pair.core.errors import InputError

MEASURED = {"load": "yes", "ids": 0, "of": 1234, "hidden states": 9.5e-7, "pooled": 1.2e-7, "head": 3e-7}


def test_a_row_shows_its_largest_differences():
    row = {"family": "XLM-RoBERTa, one output", "transformers": "5.0", **MEASURED}
    assert compare_families.cells(row)[2:] == ["yes", "0 of 1,234", "9.5e-07", "1.2e-07", "3.0e-07"]
    chinese = compare_families.render_families([row], "docs/zh/convert.md")
    assert "XLM-RoBERTa，单输出" in chinese and "1,234 中 0" in chinese and "| 可以" in chinese


def test_a_refused_family_shows_where_it_was_refused():
    refused = {"family": "DeBERTa", "transformers": "5.0", **dict.fromkeys(COLUMNS), "load": "no"}
    assert compare_families.cells(refused)[2:] == ["refused", "", "", "", ""]
    assert compare_families.cells({**refused, **MEASURED, "head": "no classifier"})[-1] == "refused"
    assert compare_families.cells({**refused, **MEASURED, "head": float("inf")})[-1] == "refused"


def test_an_absent_python_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such Python; run scripts/test_peer.sh"):
        compare_families.compare_families(compare_families.CompareFamiliesConfig(str(tmp_path / "no")))


def test_the_pages_show_the_kept_figures():
    rows = read_table(compare_families.PUBLISHED)
    assert [row["family"] for row in rows] == [row.name for row in ROWS]
    pages = pages_with(FAMILIES)
    assert pages == ["docs/en/convert.md", "docs/zh/convert.md"]
    for page in pages:
        shown = between(FAMILIES).search((ROOT / page).read_text(encoding="utf-8"))
        assert shown and shown[0] == compare_families.render_families(rows, page)
