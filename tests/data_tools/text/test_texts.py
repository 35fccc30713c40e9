"""The texts of tables, of JSON and of plain text, for corpora and for vectors: found, named, or asked for."""

import json
import shlex

import pandas as pd
import pytest
from openpyxl import Workbook
from tiny_corpus import make

from data_tools.build_vocab import VocabConfig, build_vocab
from data_tools.text.text_files import LineRules
from data_tools.text.texts import LeftOut, TextColumns, document_lines, has_ids, line_batches, read_texts
from data_tools.trans_to_json import TransConfig, trans_to_json
from ernie_pair.core.errors import InputError

FAQ = (
    'id,question,answer\n7,怎么开户,请携带身份证到柜台\n9,如何销户,"请先还清欠款，\n再到柜台"\n'
    "12,卡丢了,请致电客服\n"
)
ARRAY = [
    {"text": "今天天气很好。\n路上遇到朋友。"},
    {"text": "银行开户需要身份证。"},
    {"text": "退款三天内到账。"},
]


@pytest.fixture
def given(tmp_path):
    def write(name, content, encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
        return path

    return write


def read(path, **columns):
    return [(row.id, row.text) for row in read_texts(path, columns=TextColumns(**columns))]


def fails(path, reason, **columns):
    with pytest.raises(InputError) as caught:
        read(path, **columns)
    assert reason in caught.value.message, caught.value.message


def test_a_table_of_several_texts_asks_for_the_column(given):
    path = given("faq.csv", FAQ)
    fails(
        path, "the texts could be in the columns question, answer; name one: --text_column question or --text"
    )
    assert read(path, text="question") == [("7", "怎么开户"), ("9", "如何销户"), ("12", "卡丢了")]
    assert [name for name, _ in read(path, text="answer", id="question")] == [
        "怎么开户",
        "如何销户",
        "卡丢了",
    ]
    fails(path, "no column 'x' in id, question, answer; fix --text_column", text="x")
    assert has_ids(path, columns=TextColumns("question"))


def test_the_only_column_of_texts_is_found_and_said(given, capsys):
    path = given("a.csv", "编号,标准问,分类\n" + "".join(f"{n},问题是第{n}个，怎么办,卡\n" for n in range(6)))
    assert read(path)[:2] == [("0", "问题是第0个，怎么办"), ("1", "问题是第1个，怎么办")]
    assert "reads 标准问 as the text and 编号 as the id; not read: 分类" in capsys.readouterr().err


def test_a_question_is_no_id(given):
    path = given("qa.tsv", "怎么开户\t带身份证\n如何销户\t先还清欠款\n")
    fails(path, "the texts could be in the columns 1, 2; name one: --text_column 1 or --text_column 2")
    assert read(path, text="2") == [("0", "带身份证"), ("1", "先还清欠款")]
    assert read(given("ids.tsv", "a1\t怎么开户\n编号2\t如何销户\n")) == [
        ("a1", "怎么开户"),
        ("编号2", "如何销户"),
    ]
    assert read(given("named.tsv", "ID\t标题\n7\t怎么开户\n")) == [("7", "怎么开户")]
    fails(given("head.tsv", "question\tanswer\n怎么开户\t带身份证\n"), "the columns question, answer")


PLAIN = [f"怎么开户{n}号" for n in range(30)]
NUMBERED = [f"{n}\t{text}" for n, text in enumerate(PLAIN)]
NUMBERED_BEHIND = [f"{text}\t{n}" for n, text in enumerate(PLAIN)]
COUNTED = [f"{text}\t{n % 7}" for n, text in enumerate(PLAIN)]


@pytest.mark.parametrize("header, rows, found", [
    ("", NUMBERED_BEHIND, "column 1 as the text; not read: column 2"),
    ("", NUMBERED, "column 2 as the text and column 1 as the id"),
    ("faq_id\tfaq", NUMBERED, "reads faq as the text and faq_id"),
    ("编号\t问法", NUMBERED, "reads 问法 as the text and 编号 as"),
    ("正文\t阅读量", COUNTED, "正文 as the text; not read: 阅读量"),
    ("问题\t数量", COUNTED, "问题 as the text; not read: 数量"),
    ("正文", PLAIN, "reads 正文 as the text"),
    ("正文\t日期", [f"{text}\t2024-01-02" for text in PLAIN], "reads 正文 as the text; not read: 日期"),
])  # fmt: skip
def test_the_texts_and_the_header_are_found_and_said(given, capsys, header, rows, found):
    path = given("a.tsv", "\n".join([header, *rows] if header else rows))
    assert [text for _, text in read(path)] == PLAIN
    assert found in capsys.readouterr().err


@pytest.mark.parametrize("header, names", [
    *(("", ["1", "2"]), ("标题\t正文", None), ("Q\tA", ["Q", "A"])),
    ("问题1\t问题2\t标签", ["问题1", "问题2"]),
    ("甲方\t乙方\t结论", ["甲方", "乙方"]),
])  # fmt: skip
def test_two_columns_of_texts_are_asked_for_by_name(given, header, names):
    verdict = "\t不匹配" if header.count("\t") == 2 else ""
    rows = [f"{text}\t答案是{text}的步骤{verdict}" for text in PLAIN]
    path = given("a.tsv", "\n".join([header, *rows] if header else rows))
    if names:
        fails(path, "name one: " + " or ".join(f"--text_column {shlex.quote(name)}" for name in names))
    assert [text for _, text in read(path, text=(names or header.split())[0])] == PLAIN


def test_a_first_row_that_may_be_a_header_is_said(given, capsys):
    for name in ("faq_text", "foo"):
        path = given(f"{name}.csv", "\n".join([name, *PLAIN]))
        assert len(read(path)) == 31
        said = f"no header: the first row is read as a text ({name}); if it is a header: --text_column {name}"
        assert said in capsys.readouterr().err
        assert [text for _, text in read(path, text=name)] == PLAIN


def test_an_id_and_a_text_are_no_header(given, capsys):
    for name in ("F00", "q", "s"):  # q1 and s1 are names of texts as well, but not above q2 and s2
        rows = "".join(f"{name}{n}\t{text}\n" for n, text in enumerate(PLAIN, start=1))
        assert len(read(given(f"{name}.tsv", rows))) == 30
    assert "no header" not in capsys.readouterr().err
    fails(
        given("n.csv", "id,数量\n1,2\n3,4\n"), "columns id, 数量 holds texts; name one: --text_column id or"
    )


def test_keys_that_are_not_read_are_said(given, capsys):
    assert read(given("a.jsonl", '{"id": 1, "text": "怎么开户", "answer": "办理"}')) == [("1", "怎么开户")]
    assert "reads text as the text and id as the id; not read: answer" in capsys.readouterr().err
    assert read(given("beir.jsonl", '{"_id": "a1", "title": "", "text": "怎么开户"}')) == [("a1", "怎么开户")]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.xlsx", "a.xls", "a.parquet"])
@pytest.mark.parametrize("mark", ["\t", ","])
def test_a_table_of_another_name_is_a_table(given, name, mark):
    path = given(name, "".join(f"{n}{mark}{text}\n" for n, text in enumerate(PLAIN)))
    assert read(path) == [(str(n), text) for n, text in enumerate(PLAIN)]


def test_a_table_that_is_called_a_text_is_told(given, capsys):
    path = given("a.txt", "".join(f"{n}\t{text}\n" for n, text in enumerate(PLAIN)))
    assert read(path)[1] == ("1", f"1\t{PLAIN[1]}")
    assert "a.txt: read as a text per line; if it is a table, call it a.tsv" in capsys.readouterr().err
    assert len(read(given("b.txt", "\n".join(PLAIN), "gb18030"))) == 30
    assert "b.txt: read as GB18030, as its bytes say" in capsys.readouterr().err


def test_plain_text_keeps_its_tabs_and_commas(given):
    path = given("a.txt", "甲\t乙\n丙,丁\n")
    assert read(path) == [("0", "甲\t乙"), ("1", "丙,丁")]
    assert read(given("b.txt", "甲\t乙\n丙\t丁\n"), text="2") == [("0", "乙"), ("1", "丁")]


@pytest.mark.parametrize("indent", [None, 2])
def test_json_over_lines_and_arrays_are_texts(given, indent):
    array = json.dumps(ARRAY, ensure_ascii=False, indent=indent)
    for name in ("a.json", "a.txt", "b.JSON"):
        assert read(given(name, array)) == [(str(n), row["text"]) for n, row in enumerate(ARRAY)]
    objects = "\n".join(json.dumps(row, ensure_ascii=False, indent=indent) for row in ARRAY)
    assert [text for _, text in read(given("o.json", objects))] == [row["text"] for row in ARRAY]
    other = json.dumps([{"nr": n, "frage": f"wie geht es {n}"} for n in range(5)], indent=indent)
    assert read(given("c.json", other))[1] == ("1", "wie geht es 1")


def test_damaged_json_over_lines_names_its_line(given):
    fails(given("a.json", '[\n {"text": "甲"},\n {"text" "乙"}\n]'), "a.json:3: not JSON")
    fails(given("b.json", '{\n "text": "甲"\n}\n{\n "text": \n}'), "b.json:6: not JSON")


def test_ids_are_of_all_texts_or_of_none(given):
    rows = [{"id": "1", "text": "甲"}, {"id": "2", "text": "乙"}, {"text": "丙"}, {"id": "4", "text": "丁"}]
    path = given("a.jsonl", "\n".join(json.dumps(row) for row in rows))
    fails(path, "a.jsonl:3: no id, and line 1 has one; give every text an id, or none")
    left_out = LeftOut()
    assert [row.id for row in read_texts(path, left_out)] == ["1", "2", "4"] and left_out.count == 1
    fails(
        given("b.jsonl", '{"text": "甲"}\n{"id": 7, "text": "乙"}'), "b.jsonl:2: an id, and line 1 has none"
    )


def test_ids_beside_texts_that_repeat_stay_ids(given):
    rows = [(f"e{n:02}", "怎么开户") for n in range(30)] + [("x1", "再见")]
    assert read(given("a.tsv", "".join("\t".join(row) + "\n" for row in rows))) == rows
    turned = [(f"问第{n}次", word) for n, (_, word) in enumerate(rows)]
    found = read(given("b.tsv", "".join("\t".join(row) + "\n" for row in turned)))
    assert [text for _, text in found] == [text for text, _ in turned]


def test_workbooks_and_parquet_are_texts(given, tmp_path):
    frame = pd.DataFrame({"id": ["a", "b"], "text": ["怎么开户", "如何销户"], "n": [1, 2]})
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_excel(tmp_path / "a.xlsx", index=False)
    for name in ("a.parquet", "a.xlsx"):
        assert read(tmp_path / name) == [("a", "怎么开户"), ("b", "如何销户")]
    pd.DataFrame({"id": [0, 2.0], "text": PLAIN[:2]}).to_parquet(tmp_path / "f.parquet")
    assert read(tmp_path / "f.parquet") == [("0", PLAIN[0]), ("2", PLAIN[1])]
    pd.DataFrame({"id": [0, None], "text": PLAIN[:2]}).to_parquet(tmp_path / "f.parquet")
    fails(tmp_path / "f.parquet", "f.parquet:2: an empty id")
    assert read(given("f.csv", f"id,text\n1.0,{PLAIN[0]}\n")) == [("1.0", PLAIN[0])]
    book = Workbook()
    for cell in ("text", "怎么开户", "#N/A"):
        book.active.append([cell])
    book.save(tmp_path / "e.xlsx")
    fails(tmp_path / "e.xlsx", "e.xlsx:3: #N/A, an error of a spreadsheet, and no text")


@pytest.mark.usefixtures("vocab_file")
def test_a_corpus_is_made_of_tables_and_json(given, tmp_path):
    assert make(tmp_path, 'id,text\n1,我爱北京\n2,\n3,"北京\n学习"\n'.encode(), "a.csv") == [
        ["我 爱 北 京"],
        ["北 京", "学 习"],
    ]
    for name, content in (
        ("b.json", json.dumps([{"text": "我爱"}, {"text": "北京"}])),
        ("c.json", '{\n"text": "我爱"\n}\n{\n"text": "北京"\n}'),
    ):
        assert make(tmp_path, content.encode(), name, overwrite=True) == [["我 爱"], ["北 京"]]
    with pytest.raises(InputError, match=r"the columns question, answer; name one: text_column question"):
        make(tmp_path, FAQ.encode(), "f.csv", overwrite=True)
    of_two = "a,b\n我爱北京,学习学习\n北京,我爱\n".encode()
    assert make(tmp_path, of_two, "g.csv", overwrite=True, text_column="b")[0] == ["学 习 学 习"]
    with pytest.raises(InputError, match=r"d\.txt is raw text, .*prepare"):
        make(tmp_path, "我爱北京\n".encode(), "d.txt", overwrite=True)


def test_rows_of_a_table_are_the_lines_of_its_documents(given):
    path = given("a.csv", FAQ)
    (batch,) = line_batches([path], rules=LineRules(text_column="answer"))
    rows = {number: json.loads(line)["text"] for number, line in batch.numbered() if line}
    assert batch.is_json and rows == {2: "请携带身份证到柜台", 3: "请先还清欠款，\n再到柜台", 5: "请致电客服"}
    plain = given("a.txt", "甲\n\n乙")
    assert list(document_lines(plain)) == ["甲".encode(), b"", "乙".encode()]


def test_raw_text_tools_read_documents(given, tmp_path):
    path = given("a.json", json.dumps(ARRAY, indent=1))
    trans_to_json(TransConfig(str(path), str(tmp_path / "out"), min_doc_length=0, no_shuffle=True))
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == ARRAY
    build_vocab(VocabConfig(input_path=str(path), output_file=str(tmp_path / "v.txt"), min_count=1))
    tokens = (tmp_path / "v.txt").read_text().split("\n")
    assert "天" in tokens and "{" not in tokens and "n" not in tokens
