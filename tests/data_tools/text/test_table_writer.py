"""Tables are written by the ending of their file, and read back as they were."""

import json
from datetime import date

import openpyxl
import pandas as pd
import pytest

from data_tools.text.table_writer import (
    MAX_CELL_LENGTH,
    MAX_ROWS,
    check_cell,
    check_table_suffix,
    table_writer,
)
from data_tools.text.tables import detect_form, records
from ernie_pair.core.errors import InputError

NAMES, KINDS = ["index", "score", "text", "more"], {"index": int, "score": float}
ROWS = [
    [0, 0.5, "=1+1", ["a", "b"]],
    [1, 1.0, '+他说"好", 吗', None],
    [2, None, "@SUM(A1)", date(2026, 1, 2)],
    [3, 0.25, "#N/A", True],
    [4, 1e-07, "-1", {"键": 1}],
]


def written(path, rows=ROWS, names=NAMES, **more):
    with table_writer(path, path, names, KINDS, **more) as write:
        for row in rows:
            write(row)
    return path


def cells_of(path):
    header, *rows = [row for _, row in records(path, detect_form(path))]
    return rows if path.suffix == ".jsonl" else [header, *rows]


@pytest.mark.parametrize("ending", ["tsv", "csv", "xlsx", "parquet"])
def test_a_table_is_read_back_and_no_text_is_a_formula(tmp_path, ending):
    header, *rows = cells_of(written(tmp_path / f"a.{ending}"))
    assert header == NAMES
    assert [row[2] for row in rows] == [row[2] for row in ROWS]
    assert [int(row[0]) for row in rows] == [0, 1, 2, 3, 4]
    assert [float(row[1]) if row[1] not in (None, "") else None for row in rows] == [r[1] for r in ROWS]
    assert [str(row[3] or "") for row in rows] == ['["a", "b"]', "", "2026-01-02", "True", '{"键": 1}']


def test_lines_of_json_keep_what_json_can_hold(tmp_path):
    path = written(tmp_path / "a.jsonl", [*ROWS, [5, float("nan"), "x", None]])
    more = [json.loads(line)["more"] for line in path.read_text().splitlines()]
    assert more == [["a", "b"], None, "2026-01-02", True, {"键": 1}, None]
    assert '"score": null' in path.read_text().splitlines()[-1]
    assert '"more"' not in written(path, [[1, 1.0, "x", None]], keeps_none=False).read_text()


def test_excel_gets_numbers_and_texts_with_the_signs_of_chinese(tmp_path):
    sheet = openpyxl.load_workbook(written(tmp_path / "a.xlsx")).active
    assert [cell.data_type for cell in sheet["C"][1:]] == ["s"] * 5
    assert [type(cell.value) for cell in sheet["B"][1:4]] == [float, int, type(None)]
    assert (written(tmp_path / "a.csv")).read_bytes()[:3] == b"\xef\xbb\xbf"
    assert pd.read_csv(tmp_path / "a.csv")["text"].tolist()[:2] == ["=1+1", '+他说"好", 吗']


def test_control_characters_do_not_damage_a_workbook(tmp_path):
    texts = ["a\x01b", "_x0041_", "line\r\nend", "\ufffe"]
    path = written(tmp_path / "a.xlsx", [[text] for text in texts], ["text"])
    stored = [cell.value for cell in openpyxl.load_workbook(path).active["A"][1:]]
    assert stored == ["a_x0001_b", "_x005F_x0041_", "line_x000D_\nend", "_xFFFE_"]


@pytest.mark.parametrize("name", ["a", "a.txt", "a.xls", "a.tsv.gz", "a.parquet.zst"])
def test_an_unknown_ending_is_refused(name):
    with pytest.raises(InputError, match=f"{name}: name a file that ends with .tsv, .csv, .xlsx"):
        check_table_suffix("output_file", name)


def test_what_a_format_cannot_hold_is_refused(tmp_path, monkeypatch):
    faults = {
        "a.tsv": ("line\nend", 0, "has a tab or a line end, which no .tsv can hold; name the file .jsonl"),
        "a.xlsx": ("长" * (MAX_CELL_LENGTH + 1), 0, "above 32767 characters, .* name the file .csv"),
        "b.xlsx": ("a", MAX_ROWS, "more than 1048575 rows, which no sheet of Excel can hold"),
    }
    for name, (value, row, fault) in faults.items():
        with pytest.raises(InputError, match=f"in.csv:7: .*{fault}"):
            check_cell("in.csv:7", name[1:], value, row)
        check_cell("in.csv:7", ".csv", value, row)
    with pytest.raises(InputError, match="a.tsv: 'a.tb' has a tab"):
        written(tmp_path / "a.tsv", [["a\tb"]], ["text"])
    asked = []
    monkeypatch.setattr("data_tools.text.table_writer.followed", lambda path: asked.append(path) or path)
    written(tmp_path / "b.tsv", [["a", "b"]] * 50, ["left", "right"])
    assert len(asked) < 5  # the disk is not asked for each cell


def test_a_table_without_rows_has_its_columns(tmp_path):
    for ending in ("tsv", "csv", "xlsx", "parquet"):
        path = written(tmp_path / f"a.{ending}", [])
        assert [row for _, row in records(path, detect_form(path))] == [NAMES]
