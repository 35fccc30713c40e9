"""Tables are read as the people who made them mean them, and what cannot be read is refused in one line."""

import csv
import logging
import os
import zipfile

import pyarrow as pa
import pytest
from openpyxl import Workbook
from pandas import DataFrame
from pyarrow import parquet

from data_tools.text.tables import form_of, records
from ernie_pair.core.errors import InputError
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.data.in_memory_pairs import GivenPairs
from ernie_pair.pairs.data.pair_records import Columns, RowRules
from ernie_pair.pairs.data.pair_source import PairSource

ROWS = [(f"第{n}张卡，怎么开户", f"第{n}张卡, 如何开户", n % 2) for n in range(8)]
TEXTS = [row[:2] for row in ROWS]
NAMES = ["问题1", "问题2", "标签"]


def read(path, labels=Labels.numbered(2), **columns):  # noqa: B008
    pairs = PairSource("train_file", str(path), "train", labels, Columns(**columns)).read()
    found = zip(pairs.left, pairs.right)
    return (
        list(found) if pairs.labels is None else [(*texts, int(y)) for texts, y in zip(found, pairs.labels)]
    )


def fails(path, reason, **columns):
    with pytest.raises(InputError) as caught:
        read(path, **columns)
    assert reason in caught.value.message and "\n" not in caught.value.message, caught.value.message


def book(path, rows, change=lambda sheet: None, title="标注"):
    made = Workbook()
    made.active.title = title
    for row in rows:
        made.active.append(list(row))
    change(made)
    made.save(path)
    return path


def test_the_file_of_atec_is_read(tmp_path, caplog):
    path = tmp_path / "atec_nlp_sim_train.csv"
    path.write_text("".join(f"{n + 1}\t{a}\t{b}\t{y}\n" for n, (a, b, y) in enumerate(ROWS)))
    with caplog.at_level(logging.INFO):
        assert read(path) == ROWS
    assert "column 2" in caplog.text and "column 4 as the label" in caplog.text
    path.write_text("".join(f"a{n}\t{a}\t{b}\t{'是否'[y]}\n" for n, (a, b, y) in enumerate(ROWS)))
    assert read(path, labels=None) == TEXTS


def test_columns_without_a_header_are_named_by_number(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{y}\t{b}\t来源\t{a}\tx\n" for a, b, y in ROWS))
    fails(
        path, "5 columns instead of 3 (text, text, label) or 2 (text, text); give the columns with --text_a"
    )
    assert read(path, text_a="4", text_b="2", label="1") == ROWS
    fails(path, "give --text_a and --text_b from 1 to 5", text_a="4", text_b="9")


def test_a_frame_has_the_headers_that_a_file_has(tmp_path):
    frame = DataFrame(ROWS, columns=["用户问法", "知识库标准问", "是否同义"])
    given = GivenPairs("train_dataset", frame, Labels.numbered(2)).read()
    assert list(zip(given.left, given.right, given.labels)) == ROWS
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert read(tmp_path / "a.csv") == ROWS


def test_quotes_around_the_cells_of_a_tsv_are_no_text(tmp_path):
    frame, path = DataFrame(ROWS, columns=NAMES), tmp_path / "a.tsv"
    frame.to_csv(path, sep="\t", index=False, quoting=csv.QUOTE_NONNUMERIC)
    assert read(path) == ROWS
    frame.to_csv(path, sep="\t", index=False, header=False, quoting=csv.QUOTE_NONNUMERIC)
    assert read(path) == ROWS
    marked = [(f'"{a}"', b, y) for a, b, y in ROWS]  # a quotation is not around every text of the file
    path.write_text("".join(f"{a}\t{b}\t{y}\n" for a, b, y in marked))
    assert read(path) == marked


def test_a_csv_of_tabs_is_split_at_tabs(tmp_path):
    path = tmp_path / "a.csv"
    for commas in (1, 2):  # as many in each line
        path.write_text("".join(f"{a}\t{b},{'嗯,' * commas}\t{y}\n" for a, b, y in ROWS))
        assert [len(pair[1].split(",")) for pair in read(path)] == [commas + 3] * 8
    DataFrame(ROWS, columns=NAMES).to_csv(path, sep="\t", index=False)
    assert read(path) == ROWS


SHOWN = [
    (0.5, "0.00%", "50.00%"),
    (5, "00000", "00005"),
    (1234567.891, "#,##0.00", "1,234,567.89"),
    (1.5, "0.00_ ", "1.50"),
]
SHOWN += [
    (-1234.5, "#,##0.0;-#,##0.0", "-1,234.5"),
    (-7, "000", "-007"),
    (3, "General", "3"),
    (2, "0_);(0)", "2"),
]
UNCLEAR = [(1.5, "¥0.00"), (1.23e10, "0.00E+00"), (0.25, "# ?/?"), (-3, "0_);(0)"), (1.2345e19, "General")]


def test_a_number_is_the_text_that_its_format_shows(tmp_path):
    def formats(cells):
        def change(made):
            for row, cell in enumerate(cells, start=2):
                made.active.cell(row, 2).value, made.active.cell(row, 2).number_format = cell[:2]

        return change

    path = book(tmp_path / "a.xlsx", [NAMES, *ROWS[: len(SHOWN)]], formats(SHOWN))
    assert [right for _, right, _ in read(path, text_a="问题1", text_b="问题2")] == [
        shown for *_, shown in SHOWN
    ]
    for cell in UNCLEAR:
        path = book(tmp_path / "b.xlsx", [NAMES, *ROWS], formats([cell]))
        fails(path, f"{cell[0]:.6g} of B2 as {cell[1]} (store it as text), not a text")


def test_an_error_of_a_spreadsheet_is_no_text(tmp_path):
    rows = [*ROWS[:2], ("#N/A", "如何开户", 1), ("怎么开户", "#REF!", 0)]
    path = book(tmp_path / "a.xlsx", [NAMES, *rows])
    fails(path, "a.xlsx:4: sentence1 is #N/A, an error of a spreadsheet")
    DataFrame(rows, columns=NAMES).to_csv(tmp_path / "a.csv", index=False)
    source = PairSource("f", str(tmp_path / "a.csv"), "train", None, rules=RowRules(skips=True))
    assert len(source.read()) == 2


def test_a_title_and_sheets_of_notes_are_passed_over(tmp_path, capsys):
    path = book(tmp_path / "title.xlsx", [["相似问句标注表（内部）"], [], NAMES, *ROWS])
    assert read(path) == ROWS
    assert "title.xlsx: reads sheet 标注, from row 3 on" in capsys.readouterr().err

    def add(made):
        sheet = made.create_sheet("数据")
        for row in [NAMES, *ROWS]:
            sheet.append(list(row))

    path = book(tmp_path / "notes.xlsx", [["标注规则"], ["相同记 1"]], add, "说明")
    assert read(path) == ROWS
    assert "notes.xlsx: reads sheet 数据; not read: 说明" in capsys.readouterr().err


def changed(path, name, change):
    """The workbook at ``path`` with another content of the file ``name`` in it."""
    with zipfile.ZipFile(path) as archive:
        content = {item: archive.read(item) for item in archive.namelist()}
    content[name] = change(content[name])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for item, held in content.items():
            archive.writestr(item, held)
    return path


def test_damaged_workbooks_are_errors_of_one_line(tmp_path):
    sheet = "xl/worksheets/sheet1.xml"
    path = changed(
        book(tmp_path / "a.xlsx", [NAMES, *ROWS]), sheet, lambda xml: xml.replace(b"<v>0", b"<v>\x01", 1)
    )
    fails(path, "a.xlsx cannot be read as a workbook of Excel (a control character in a cell?)")
    narrow = changed(
        book(tmp_path / "n.xlsx", [NAMES, *ROWS]), sheet, lambda xml: xml.replace(b"A1:C9", b"A1:A2")
    )
    assert read(narrow) == ROWS  # whatever it says of its size
    whole = book(tmp_path / "b.xlsx", [NAMES, *ROWS]).read_bytes()
    for size in (len(whole) // 2, len(whole) - 30, 200):
        path.write_bytes(whole[:size])
        fails(path, "a.xlsx")
    path = changed(
        book(path, [NAMES, *ROWS]), sheet, lambda xml: xml.replace(b'<row r="3"', b'<row r="9999999"')
    )
    fails(path, "a.xlsx: row 9999999, above 1048576")


def test_a_huge_cell_is_refused_before_it_is_held(tmp_path):
    path = changed(
        book(tmp_path / "a.xlsx", [NAMES, *ROWS]),
        "xl/worksheets/sheet1.xml",
        lambda xml: xml.replace(b"<v>1</v>", b"<v>" + b"9" * (64 << 20) + b"</v>", 1),
    )
    assert path.stat().st_size < 1 << 20
    fails(path, "a.xlsx: a cell above 1048576 bytes")


def coded(values, places):
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), pa.array(values))


def test_a_huge_text_of_parquet_is_refused_before_it_is_held(tmp_path):
    path = tmp_path / "a.parquet"
    texts = coded(["a" * (70 << 20), "开户"], [0, 1] * 4)
    table = pa.table({"text_a": texts, "text_b": texts, "label": [0, 1] * 4})
    parquet.write_table(table, path, compression="zstd")
    assert path.stat().st_size < 1 << 20
    fails(path, "a.parquet: column text_a unpacks from")


def test_a_text_that_parquet_holds_once_is_held_once(tmp_path):
    long = os.urandom(1 << 19).hex()
    texts = coded([long], [0] * 20_000)
    table = pa.table({"text_a": texts, "text_b": ["开户"] * 20_000, "label": [0, 1] * 10_000})
    parquet.write_table(table, tmp_path / "a.parquet", dictionary_pagesize_limit=4 << 20)
    rows = (row for number, row in records(tmp_path / "a.parquet", form_of(tmp_path / "a.parquet")) if number)
    held = {id(row[0]) for row in rows if row[0] == long}
    assert len(held) <= 20


def test_a_page_is_no_table(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("<!DOCTYPE html>\n<table><tr><td>甲\t乙\t1</td></tr></table>\n")
    fails(path, "a.tsv is a page of HTML, not a text; convert it: pandoc")
