"""Workbooks as offices write them: each is read right at the first attempt, or asks once."""

import datetime
import re
import shlex
from dataclasses import replace

import pytest
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from table_files import NAMES, ROWS, YES, book, changed, put

from data_tools.text.text_files import LineRules, Place
from data_tools.text.texts import TextColumns, read_texts
from ernie_pair.core import errors
from ernie_pair.core.errors import InputError
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.data.pair_records import Columns, RowRules
from ernie_pair.pairs.data.pair_source import PairSource, labels_for

CHINESE = ("问题1", "问题2", "标签")
UNKNOWN = ("客户怎么说", "知识库怎么写", "一样吗")
NOTES = [["标注规则", "说明"], ["1", "意思相同"], ["0", "意思不同"], ["版本", "二〇二六年一月"]]
FAQ = [
    ("标准问", "相似问", "答案"),
    ("怎么开户", "如何开户", "请带证件到柜台"),
    ("开户要什么", "开户材料", None),
]
MORE = [(f"{left}？", right, label) for left, right, label in ROWS]
SHEET = "xl/worksheets/sheet1.xml"


def sheet(made, title, rows, place=None, state="visible"):
    new = made.create_sheet(title, place)
    for row in rows:
        new.append(list(row))
    new.sheet_state = state


def titled(made):
    made.active.merge_cells("A1:C1")
    made.active.auto_filter.ref, made.active.freeze_panes = "A3:C7", "A4"
    made.active.column_dimensions["C"].hidden = True
    made.active.row_dimensions[5].hidden = True


def two_levels(made):
    made.active.merge_cells("A1:B1")
    made.active.merge_cells("C1:C2")


def formatted(made):
    for row in range(len(ROWS) + 2, 200):
        made.active.cell(row, 3).number_format = "0.00"


def rich(made):
    bold = TextBlock(InlineFont(b=True), ROWS[0][0][:2])
    made.active["B2"] = CellRichText(bold, ROWS[0][0][2:])


def computed(xml):
    return re.sub(rb"(<c r=\"C\d\")( t=\"\w\")?><v>(\d)</v>", rb"\1><f>IF(1,\3,0)</f><v>\3</v>", xml)


DATED = [("date", *NAMES), *((datetime.datetime(2026, 1, 5), *row) for row in ROWS)]
COUNTED = [("序号", *CHINESE), *((n, a, b, str(y)) for n, (a, b, y) in enumerate(ROWS, 1))]
GAPS = [[None, a, None, b, y] for a, b, y in ROWS]
WORDS = [UNKNOWN, *((a, b, YES[y]) for a, b, y in ROWS)]


# name: (content, the rows of pairs that are in it, what is said of it)
BOOKS = {
    "title": (
        book([["相似问句标注表"], ["制表：张三", "2026年1月5日"], CHINESE, *ROWS], change=titled),
        ROWS,
        "reads sheet 标注, from row 3 on; 1 hidden row read as well",
    ),
    "notes first": (
        book(NOTES, "说明", lambda made: sheet(made, "数据", [CHINESE, *ROWS])),
        ROWS,
        "reads sheet 数据; not read: 说明",
    ),
    "hidden": (
        book([CHINESE, *ROWS], change=lambda made: sheet(made, "旧", [CHINESE, *MORE], 0, "hidden")),
        ROWS,
        "reads sheet 标注; not read: 旧 (hidden)",
    ),
    "numbered": (
        book(COUNTED, change=formatted),
        ROWS,
        "",
    ),
    "gaps": (
        book([[], *GAPS[:2], [], *GAPS[2:]]),
        ROWS,
        "reads sheet 标注, from row 2 on",
    ),
    "dated": (book(DATED, change=rich), ROWS, ""),
    "computed": (
        changed(book([CHINESE, *ROWS]), SHEET, computed),
        ROWS,
        "reads sheet 标注; 4 formulas read as computed when it was saved",
    ),
    "two levels": (
        book([["问题", None, "标签"], CHINESE[:2], *ROWS], change=two_levels),
        ROWS,
        "reads sheet 标注, from row 2 on",
    ),
    "unknown names": (
        book(NOTES[:1], "说明", lambda made: sheet(made, "数据", WORDS)),
        ROWS,
        "reads sheet 数据; not read: 说明",
    ),
    "months": (
        book([CHINESE, *MORE], "1月", lambda made: sheet(made, "2 月", [CHINESE, *ROWS])),
        ROWS,
        "several sheets may be meant, 1月 (4 rows) and 2 月 (4 rows); name one: ",
    ),
}  # fmt: skip


def source_of(path, columns=Columns(), **place):  # noqa: B008
    rules = RowRules(most_classes=20, place=Place(**place))
    return PairSource("train_file", str(path), "train", Labels.numbered(2), columns, rules)


def read(path, *columns, **place):
    source = source_of(path, Columns(*columns), **place)
    pairs = replace(source, labels=labels_for(source, "")).read()
    return list(zip(pairs.left, pairs.right, pairs.labels.tolist()))


@pytest.mark.parametrize("name", BOOKS)
def test_a_workbook_is_read_at_the_first_attempt_or_asks(tmp_path, name, monkeypatch, capsys):
    content, rows, told = BOOKS[name]
    path = put(tmp_path / "a.xlsx", content)
    monkeypatch.setattr(errors.sys, "argv", ["/bin/ernie-pair", "train", "--train_file", str(path)])
    if not told.endswith(": "):
        assert read(path) == rows
        assert capsys.readouterr().err.strip() == (told and f"{path}: {told}")
        return
    with pytest.raises(InputError) as caught:
        read(path)
    question, _, commands = caught.value.message.partition("; name one: ")
    assert question == f"{path}: {told.removesuffix('; name one: ')}"
    asked = [shlex.split(command)[-2:] for command in commands.split(" or ")]
    assert [read(path, sheet=word) for flag, word in asked if flag == "--sheet"] == [MORE, ROWS]


def test_a_value_merged_over_rows_stands_in_each_of_them(tmp_path, capsys):
    path = put(tmp_path / "a.xlsx", book(FAQ, change=lambda made: made.active.merge_cells("C2:C3")))
    found = list(read_texts(path, columns=TextColumns("答案")))
    assert [(row.text, row.line) for row in found] == [(FAQ[1][2], 2), (FAQ[1][2], 3)]
    assert "1 cell filled with the value merged over them (C2:C3)" in capsys.readouterr().err
    source = source_of(path, Columns("标准问", "答案"))
    assert replace(source, labels=None).read().right == [FAQ[1][2]] * 2


def test_a_sheet_and_a_header_are_named(tmp_path):
    def add(made):
        sheet(made, "2", [["a", "b"], *ROWS, ["query", "title", "label"], *MORE])

    path = put(tmp_path / "a.xlsx", book([UNKNOWN, *MORE], "标注", add))
    assert read(path, sheet="1") == MORE  # a number, where no sheet is called so
    assert read(path, sheet="2", header_row=6) == MORE
    assert read(put(tmp_path / "b.xlsx", book([CHINESE, *ROWS])), sheet="2") == ROWS  # the only one there is
    wrong = {"sheet": "3"}, {"sheet": "2", "header_row": 400}, {"sheet": "1", "header_row": 0}
    told = "no sheet '3' in 标注, 2; fix sheet", "sheet 2: row 400 is blank, or not", "label '一样吗'"
    for place, message in zip(wrong, told):
        with pytest.raises(InputError, match=message):
            source_of(path, **place).read()


def test_a_header_of_text_is_found_below_a_title_or_named(tmp_path, capsys):
    lines = "标注表,,\n制表,张三,\n,,\n问题1,问题2,标签\n今天,明天,1\n"
    assert read(put(tmp_path / "a.csv", lines)) == [("今天", "明天", 1)]
    assert read(put(tmp_path / "b.tsv", "标注表\n问题1\t问题2\t标签\n今天\t明天\t1\n")) == [
        ("今天", "明天", 1)
    ]
    path = put(tmp_path / "c.csv", "甲,乙,丙\n丁,戊,1\n己,庚,同\n今天,明天,1\n")
    assert read(path, header_row=3) == [("今天", "明天", 1)]
    assert "a.csv: reads from line 4 on" in capsys.readouterr().err
    plain = put(tmp_path / "d.csv", "query,title\n今天,明天\n")
    assert replace(source_of(plain, header_row=0), labels=None).read().left == ["query", "今天"]
    with pytest.raises(InputError, match="header_row=0 has no names; give columns by number"):
        source_of(plain, Columns("query", "title"), header_row=0).read()
    names = LineRules(place=Place(header_row=2))
    (row,) = read_texts(put(tmp_path / "e.csv", "客服\n问句\n今天\n"), rules=names)
    assert row.text == "今天"


@pytest.mark.parametrize(
    "content, told",
    [
        (book([["规则"]], "说明", lambda made: sheet(made, "b", [list("kvwz"), list("1234")])),
         "none of its sheets is understood, name the one with sheet: 说明: row 1: .*; b: row 1: 4 columns"),
        (book([CHINESE, *((a, b, f"=IF(1,{y},0)") for a, b, y in ROWS)]),
         "sheet 标注: 4 formulas without a stored value .C2, C3, C4, C5.; open the workbook .* as a.csv"),
    ],
)  # fmt: skip
def test_a_workbook_that_is_not_understood_is_refused(tmp_path, content, told):
    with pytest.raises(InputError, match=told) as caught:
        source_of(put(tmp_path / "a.xlsx", content)).read()
    assert "\n" not in caught.value.message


def test_texts_are_found_in_the_sheet_that_is_surely_theirs(tmp_path):
    made = book(
        NOTES, "说明", lambda made: sheet(made, "b", [["标题"], ["编号", "内容"], [7, "今天"], [8, "明天"]])
    )
    assert [(row.id, row.text, row.line) for row in read_texts(put(tmp_path / "a.xlsx", made))] == [
        ("7", "今天", 3), ("8", "明天", 4)]  # fmt: skip
    two = book([["文本"], ["今天"]], "a", lambda made: sheet(made, "b", [["文本"], ["明天"], ["后天"]]))
    with pytest.raises(
        InputError, match=r"several sheets may be meant, a \(1 row\) and b \(2 rows\); name one: .*sheet"
    ):
        list(read_texts(put(tmp_path / "b.xlsx", two)))
    (row,) = read_texts(tmp_path / "b.xlsx", rules=LineRules(place=Place("a")))
    assert row.text == "今天"


def test_a_day_is_a_date_and_a_workbook_may_have_another_name(tmp_path):
    days = [datetime.datetime(2026, 3, 1), datetime.datetime(2026, 3, 1, 9, 30)]
    made = book([("问题", "日期"), *((f"怎么开户{day:%H}", day) for day in days)])
    rows = read_texts(put(tmp_path / "b.csv", made), columns=TextColumns("问题", payload=("日期",)))
    assert [row.payload["日期"] for row in rows] == ["2026-03-01", "2026-03-01 09:30:00"]
