"""Files as people have them: each is read in one attempt, with no flag or with the names of its columns."""

import csv
import gzip
import logging
import os
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from pandas import DataFrame
from pyarrow import ipc, parquet
from table_files import FLAT, NAMES, ROWS, YES, arrow, book, changed, csv_text, frame, put, tabbed

from data_tools.text import tables
from data_tools.text.tables import detect_form, records
from ernie_pair.core import errors
from ernie_pair.core.errors import InputError
from ernie_pair.models.labels import Labels, build_label_map
from ernie_pair.pairs.data import pair_file
from ernie_pair.pairs.data.in_memory_pairs import GivenPairs
from ernie_pair.pairs.data.pair_records import Columns, RowRules
from ernie_pair.pairs.data.pair_source import PairSource, labels_for

USERS = ("用户问题", "标准问题", "是否匹配")
NUMBERED = [["序号", *USERS], *([n, left, right, YES[label]] for n, (left, right, label) in enumerate(ROWS))]
BOOLEANS, TABLE, KEYS = frame(words={0: False, 1: True}), pa.Table.from_pandas(frame()), ("text_a", "text_b")
LINES = {"orient": "records", "lines": True}
MARKED = [(f'"{a}"', b, y) for a, b, y in FLAT]  # a quotation is not around every text of the file
ONE, TWO = [("左", "右", 1)], [("今天", "明天", 0), ("你好", "您好", 1)]
STRANGE = "a\u2028b\u0085c\x0bd\x00e"
PLAIN = tabbed(TWO)
WITH_IDS = [(f"第{n}张卡，怎么开户", f"第{n}张卡, 如何开户", n % 2) for n in range(8)]
HARD = [
    ("左, 上", '他说"右"', 1),
    ("第一行\n第二行", "右", 0),
    ('"', ",", 1),
    ('""', "\n\n,", 0),
    ("左\t右", "' 右", 1),
    ("左\u2028上\x85", "右" if sys.version_info < (3, 11) else "右\x00", 0),  # whose csv reads no NUL
    ("plain", 'a"b', 1),
]


def named(name, content, rows=ROWS, **columns):
    return name, content, rows, columns


READ = [
    named("to_csv.csv", csv_text(index=True)),
    named("numbered.csv", DataFrame(NUMBERED[1:], columns=NUMBERED[0]).to_csv(index=False)),
    named("semicolons.csv", csv_text(("Frage 1", "Frage 2", "gleich"), sep=";")),
    named("sep-line.csv", "sep=;\n" + csv_text(sep=";", index=True)),
    named("tabs.csv", csv_text((*KEYS, "score"), sep="\t")),
    named("commas.txt", csv_text(("query", "passage", "Label"))),
    named("unicode.txt", csv_text(("s1", "s2", "label"), sep="\t").replace("\n", "\r\n").encode("utf-16")),
    named("big.tsv", ("\ufeff" + tabbed(FLAT, "text\ttext_pair\tlabels\n")).encode("utf-16-be"), FLAT),
    named("unmarked.tsv", tabbed(FLAT, "问题1\t问题2\t标签\n").encode("utf-16-le"), FLAT),
    named("gb.csv", csv_text(("问题", "答案", "是否相似"), words=YES).encode("gb18030")),
    named("gb.tsv", tabbed(FLAT).encode("gb18030"), FLAT),
    named("bom.csv", csv_text(("anchor", "positive", "similarity")).encode("utf-8-sig")),
    named("quoted.csv", csv_text(words={0: "FALSE", 1: "TRUE"}, quoting=csv.QUOTE_ALL)),
    named("blanks.tsv", tabbed([(a, b, f" {y} ") for a, b, y in FLAT]) + "\r\n \r\n\t\t\r\n\x1a", FLAT),
    named("book.xlsx", book([*NUMBERED, [None] * 4])),
    named("booleans.xlsx", book([["句子一", "句子二", "结果"], *([*row[:2], bool(row[2])] for row in ROWS)])),
    named("narrow.xlsx", changed(book([NAMES, *ROWS]), "xl/worksheets/sheet1.xml",
                                 lambda xml: xml.replace(b"A1:C5", b"A1:A2"))),
    named("table.parquet", frame(("premise", "hypothesis", "label")).to_parquet()),
    named("file.arrow", arrow(ipc.new_file, TABLE)),
    named("stream.arrow", arrow(ipc.new_stream, TABLE)),
    named("table.feather", BOOLEANS.to_feather),
    named("array.json", frame(("question", "answer", "label")).to_json(orient="records")),
    named("pretty.Json", frame().to_json(orient="records", indent=1)),
    named("booleans.jsonl", BOOLEANS.to_json(**LINES)),
    named("unknown.jsonl", frame(("甲方", "乙方", "同"), n=range(4)).to_json(**LINES)),
    named("a.JSONL", frame().to_json(**LINES)),
    named("a.Parquet", frame().to_parquet()),
    named("packed.csv.gz", gzip.compress(csv_text(index=True).encode("gb18030"))),
    named("packed.TSV.GZ", gzip.compress(tabbed(FLAT, "\t".join(NAMES) + "\n").encode()), FLAT),
    named("packed.tsv.zst", zstandard.compress(tabbed(FLAT).encode("utf-16")), FLAT),
    named("floats.csv", csv_text(words={0: 0.0, 1: 1.0})),
    named("words.csv", csv_text(words={0: "different", 1: "same"})),
    named("hard.csv", csv_text(rows=HARD), HARD),
    named("hard.CSV", csv_text(rows=HARD, header=False), HARD),
    named("all-quoted.csv", csv_text(("query", "title", "label"), HARD, quoting=csv.QUOTE_ALL), HARD),
    named("excel.csv", csv_text(rows=HARD, lineterminator="\r\n").encode("utf-8-sig"), HARD),
    named("cr.csv", '"左\r上\r\n下",右,1\r\n', [("左\r上\n下", "右", 1)]),
    named("megabytes.csv", f'"{"左,"* 100_000}",右,1\n', [("左," * 100_000, "右", 1)]),
    *(named(f"{n}.tsv", csv_text(rows=FLAT, sep="\t", quoting=csv.QUOTE_NONNUMERIC, header=n == 0), FLAT)
      for n in (0, 1)),
    named("marked.tsv", tabbed(MARKED), MARKED),
    *(named(f"tabs-{n}.csv", tabbed([(a, f"{b},{'嗯,' * n}", y) for a, b, y in WITH_IDS]),
            [(a, f"{b},{'嗯,' * n}", y) for a, b, y in WITH_IDS]) for n in (1, 2)),
    named("atec.csv", tabbed([(n + 1, *row) for n, row in enumerate(WITH_IDS)]), WITH_IDS),
    named("words.tsv", tabbed([("甲", "乙", "是"), ("丙", "丁", "否")]), [("甲", "乙", 1), ("丙", "丁", 0)]),
    named("bare.tsv", tabbed([("问题", "标题", 1), ("query", "label", 0), ("3", "4", 1), ('"a', "b,c;d", 0)]),
          [("问题", "标题", 1), ("query", "label", 0), ("3", "4", 1), ('"a', "b,c;d", 0)]),
    *(named(f"h{n}.tsv", header + PLAIN, TWO)
      for n, header in enumerate(("", "text_a\ttext_b\tlabel\n", "query\ttitle\tlabel\n"))),
    *(named(f"e{n}.tsv", (mark + PLAIN.rstrip("\n" * cut).replace("\n", end)).encode(), TWO)
      for n, (mark, end, cut) in enumerate([("\ufeff", "\n", 1), ("", "\r\n", 0), ("\ufeff", "\r\n", 1)])),
    named("order.tsv", "label\ttext_b\ttext_a\n1\t右\t左\n", ONE),
    named("lf.tsv", f"{STRANGE}\t右\t1\n", [(STRANGE, "右", 1)]),
    named("quotes.tsv", '"左\t""右\t1\n下"\t上\t0\n', [('"左', '""右', 1), ('下"', "上", 0)]),
    named("points.tsv", "左\t右\t1.0\n上\t下\t0.00\n", [("左", "右", 1), ("上", "下", 0)]),
    *(named(f"space{n}.tsv", f"左\t右\t{label}\n", ONE) for n, label in enumerate((" 1", "\u30001\xa0"))),
    named("name.tsv", "query\tlabel\t1\n", [("query", "label", 1)]),
    named("csv.gz", gzip.compress("左,右,1\n".encode()), ONE),
    *(named(f"y{n}.json", f'{{"id": 7, "sentence1": "左", "sentence2": "右", "label": {label}}}\n', ONE)
      for n, label in enumerate(('"1"', "1", "1.0"))),
    named("LCQMC.jsonl", '{"label": 1, "title": "右", "id": 3, "query": "左"}\n', ONE),
    named("MRPC.tsv", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\t左\t右\n", ONE),
    named("QQP.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\t左\t右\t1\n", ONE),
    named("title.csv", "label,title,query\n1,右,左\n", ONE),
    named("chinese.csv", "问题一,问题二,标签\n左,右,1\n", ONE),
    named("chinese.tsv", "类别\t文本B\t文本A\n1\t右\t左\n", ONE),
    named("named.tsv", "nr\tgleich\tAntwort\tFrage\n5\t1\t右\t左\n", ONE,
          text_a="Frage", text_b="Antwort", label="gleich"),
    named("named.csv", "Frage,Antwort,gleich,label\n左,右,1,nein\n", ONE,
          text_a="Frage", text_b="Antwort", label="gleich"),
    named("named.jsonl", '{"Antwort": "右", "Frage": "左", "gleich": 1, "label": "nein"}\n', ONE,
          text_a="Frage", text_b="Antwort", label="gleich"),
    named("one.tsv", "query\ttitle\tgleich\n左\t右\t1\n", ONE, label="gleich"),
    named("numbers.tsv", tabbed([(y, b, "来源", a, "x") for a, b, y in WITH_IDS]), WITH_IDS,
          text_a="4", text_b="2", label="1"),
]  # fmt: skip


def source_of(path, flag="train_file", **columns):
    return PairSource(flag, str(path), "train", None, Columns(**columns), RowRules(most_classes=20))


def read(path, **columns):
    source = source_of(path, **columns)
    pairs = replace(source, labels=labels_for(source, "")).read()
    return list(zip(pairs.left, pairs.right, pairs.labels.tolist()))


@pytest.mark.parametrize("name, content, rows, columns", READ, ids=range(len(READ)))
def test_each_file_is_read_in_one_attempt(tmp_path, name, content, rows, columns):
    path = put(tmp_path / name, content)
    assert read(path, **columns) == rows
    pairs = source_of(path, **columns).read()
    assert list(zip(pairs.left, pairs.right)) == [row[:2] for row in rows] and pairs.labels is None


@pytest.mark.parametrize("encoding", ["gb18030", "gbk", "big5", "utf-8", "utf-8-sig"])
@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_a_named_encoding_is_read(tmp_path, encoding, ending):
    rows = [("今天下雨", "明天,下雨", 1), ("怎麼開戶" if encoding == "big5" else "怎么开户", "如何", 0)]
    content = {"csv": csv_text(rows=rows), "tsv": tabbed(rows), "jsonl": frame(rows=rows).to_json(
        force_ascii=False, **LINES)}[ending]  # fmt: skip
    path = put(tmp_path / f"a.{ending}", content.encode(encoding))
    rules = RowRules(encoding=encoding.replace("-sig", ""))
    pairs = PairSource("train_file", str(path), "train", Labels.numbered(2), rules=rules).read()
    assert list(zip(pairs.left, pairs.right, pairs.labels)) == rows


NUMBERS = [("sentence_0", "sentence_1"), ("text2", "text3"), ("问题0", "问题1"), ("title", "content")]
NUMBERS += [
    ("title", "question"),
    ("query", "title"),
    ("sentence_b", "sentence_c"),
    ("用户问法", "知识库标准问"),
]


@pytest.mark.parametrize("names", NUMBERS)
def test_numbered_and_unknown_columns_keep_their_order(tmp_path, names):
    made = frame((*names, "是否同义"))
    assert read(put(tmp_path / "a.csv", made.to_csv(index=False))) == ROWS
    assert read(put(tmp_path / "a.jsonl", made.to_json(**LINES))) == ROWS
    given = GivenPairs("train_dataset", made, Labels.numbered(2)).read()
    assert list(zip(given.left, given.right, given.labels)) == ROWS


WITHOUT = [("a.tsv", "左\t右\n"), ("a.tsv", "左\t右\t1\n"), ("a.tsv", "左\t右\t\n")]
WITHOUT += [
    ("a.tsv", "text_a\ttext_b\n左\t右\n"),
    ("a.json", '{"id": 0, "sentence1": "左", "sentence2": "右"}'),
]
WITHOUT += [("a.jsonl", '{"sentence1": "左", "sentence2": "右", "label": "9"}\n')]
WITHOUT += [("mrpc.tsv", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\t左\t右\n")]


@pytest.mark.parametrize("name, content", WITHOUT)
def test_labels_are_ignored_when_not_requested(tmp_path, name, content):
    pairs = source_of(put(tmp_path / name, content)).read()
    assert (pairs.left, pairs.right, pairs.labels) == (["左"], ["右"], None)


@pytest.mark.parametrize("header", ["Frage,Antwort", "text_a,text_b", "text_a,text_b,label"])
def test_an_absent_label_is_fine_if_labels_are_not_read(tmp_path, header):
    names = {} if "text_a" in header else {"text_a": "Frage", "text_b": "Antwort"}
    path = put(tmp_path / "a.csv", f"{header}\n左,右{',1' * ('label' in header)}\n")
    source = source_of(path, label="gleich", **names)
    assert source.read().left == ["左"] and source.has_labels() == ("label" in header)
    with pytest.raises(InputError, match="a.csv:1: no column 'gleich' in .*; fix label"):
        replace(source, labels=Labels.numbered(2)).read()


SHOWN = [(5, "00000", "00005"), (1234567.891, "#,##0.00", "1,234,567.89"), (1.5, "0.00_ ", "1.50")]
SHOWN += [(-1234.5, "#,##0.0;-#,##0.0", "-1,234.5"), (-7, "000", "-007"), (3, "General", "3")]
SHOWN += [(2, "0_);(0)", "2"), (0.5, "0%", "50%"), (0.5, "0.00%", "50.00%")]
UNCLEAR = [(1.5, "¥0.00"), (1.23e10, "0.00E+00"), (0.25, "# ?/?"), (-3, "0_);(0)"), (1.2345e19, "General")]


def with_numbers(cells):
    def change(made):
        for row, cell in enumerate(cells, start=2):
            made.active.cell(row, 2).value, made.active.cell(row, 2).number_format = cell[:2]

    return book([NAMES, *[("左", "右", 1)] * len(cells)], change=change)


def test_a_number_of_a_sheet_is_the_text_that_it_shows(tmp_path):
    found = read(put(tmp_path / "a.xlsx", with_numbers(SHOWN)), text_a=NAMES[0], text_b=NAMES[1])
    assert [right for _, right, _ in found] == [shown for *_, shown in SHOWN]
    for value, form in UNCLEAR:
        source = source_of(put(tmp_path / "b.xlsx", with_numbers([(value, form)])))
        told = f"{value:.6g} of B2 as {form} (store it as text), not a text"
        with pytest.raises(InputError) as caught:
            replace(source, columns=Columns(*NAMES)).read()
        assert told in caught.value.message


def test_how_a_file_is_read_is_said_in_one_line(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(errors.sys, "argv", ["/bin/ernie-pair", "train", "--train_file=x", "--label", "old"])
    caplog.set_level(logging.INFO)
    path = put(tmp_path / "numbered.csv", DataFrame(NUMBERED[1:], columns=NUMBERED[0]).to_csv(index=False))
    assert read(path) == read(path) == ROWS
    told = f"{path}: reads 用户问题 and 标准问题 as the texts, 是否匹配 as the label; not read: 序号"
    assert caplog.messages.count(told) == 1
    assert f"{path}: its labels are words: 否 = 0, 是 = 1, as with --label_map 0=否,1=是" in caplog.messages
    bare = put(tmp_path / "a.tsv", "客户问法\t知识库问法\n" + tabbed([row[:2] for row in FLAT]))
    assert len(source_of(bare).read()) == 5
    said = "no header: the first row is read as a pair (客户问法, 知识库问法); if it is a header: "
    again = "ernie-pair train --train_file=x --label old --text_a '客户问法' --text_b '知识库问法'"
    assert said + again in caplog.text
    assert len(source_of(bare, text_a="客户问法", text_b="知识库问法").read()) == 4


@pytest.mark.parametrize(
    "counts, found",
    [
        ({"是": 3, "否": 2}, "0=否,1=是"),
        ({"Yes": 1, "no": 1, "YES": 1}, "0=no,1=Yes"),
        ({"True": 1, "False": 1}, "0=False,1=True"),
        ({"不相似": 1, "相似": 1}, "0=不相似,1=相似"),
        ({"entailment": 9, "neutral": 9, "contradiction": 9}, "0=contradiction,1=entailment,2=neutral"),
        ({"是": 3, "否": 2, "未知": 1}, ""),  # not guessed
        ({"0": 3, "是": 2}, ""),
        ({"yes": 5}, ""),
        ({f"w{n}": 9 for n in range(21)}, ""),
        ({"甲": 1, "乙": 1}, ""),  # as many words as rows
        ({"a,b": 9, "c": 9}, ""),
        ({"0.5": 9, "nan": 9}, ""),
    ],
)
def test_words_are_classes_where_they_are_clear(counts, found):
    assert build_label_map(counts) == found


def test_a_large_table_is_read_row_by_row(tmp_path, monkeypatch):
    path, taken, rows_of = tmp_path / "large.csv", [], pair_file.records
    put(path, "text_a;text_b;label\n" + "左边;右边;1\n" * 50_000)

    def counted(*args):
        for record in rows_of(*args):
            taken.append(1)
            yield record

    monkeypatch.setattr(pair_file, "records", counted)
    rows = replace(source_of(path), labels=Labels.numbered(2)).rows()
    assert next(rows).left == "左边" and len(taken) <= pair_file.LOOKED_AT + 1
    DataFrame({"s1": ["左"] * 30_000, "s2": ["右"] * 30_000}).to_parquet(tmp_path / "a.parquet")
    assert sum(1 for _ in records(tmp_path / "a.parquet", detect_form(tmp_path / "a.parquet"))) == 30_001


def test_a_text_that_parquet_holds_once_is_held_once(tmp_path):
    long, path = os.urandom(1 << 19).hex(), tmp_path / "a.parquet"
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array([long]))
    table = pa.table({"text_a": texts, "text_b": ["开户"] * 20_000, "label": [0, 1] * 10_000})
    parquet.write_table(table, path, dictionary_pagesize_limit=4 << 20)
    held = {id(row[0]) for number, row in records(path, detect_form(path)) if number and row[0] == long}
    assert len(held) <= 20


def test_random_csv_rows_survive_a_round_trip(tmp_path):
    rng = np.random.default_rng(7)
    for _ in range(200):
        texts = ["".join(rng.choice(list('左右ab",\n \t'), rng.integers(1, 12))) + "x" for _ in range(6)]
        rows = list(zip(texts[:3], texts[3:], [0, 1, 1]))
        end = str(rng.choice(["\n", "\r\n"]))
        held = put(tmp_path / "a.csv", csv_text(rows=rows, header=False, lineterminator=end))
        assert read(held) == rows


def test_an_overlong_line_is_a_bad_row(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_LINE_BYTES", 1 << 20)
    path = put(tmp_path / "a.tsv", "左\t右\t1\n")
    with open(path, "r+b") as file:
        file.truncate(1 << 26)  # a sparse file, which takes no disk space
        file.seek(0, os.SEEK_END)
        file.write("\n上\t下\t0\n".encode())
    source = replace(source_of(path), labels=Labels.numbered(2))
    with pytest.raises(InputError, match=r"a\.tsv:2: the line is above 1048576 bytes; cut it"):
        source.read()
    assert replace(source, rules=RowRules(skips=True)).read().left == ["左", "上"]
