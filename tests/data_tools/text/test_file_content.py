"""Files are opened by what they hold: what is no text, or of another encoding, is refused by its name."""

import bz2
import gzip
import io
import lzma
import pickle
import random
import tarfile
import zipfile

import pytest
import zstandard

from data_tools.text.file_content import ENCODINGS, detect_encoding, report_encodings
from data_tools.text.text_files import DOCUMENTS, RAW, list_inputs, read_lines
from data_tools.text.texts import read_texts
from ernie_pair.core.errors import InputError

CHINESE = "今天天气很好，我们去公园散步。\n银行开户需要身份证和手机号码。\n"
HTML = "<html><head><title>帮助</title></head><body><p>银行开户</p></body></html>"


def zipped(*names):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name in names:
            archive.writestr(name, CHINESE)
    return held.getvalue()


def tarred(mode):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode=mode) as archive:
        item = tarfile.TarInfo("a.txt")
        item.size = len(CHINESE.encode())
        archive.addfile(item, io.BytesIO(CHINESE.encode()))
    return held.getvalue()


@pytest.mark.parametrize("name, content, what, cure", [
    ("a.tar.gz", tarred("w:gz"), "an archive of tar", "mkdir {0}/a && tar -xf {0}/a.tar.gz -C {0}/a"),
    ("b.txt", tarred("w"), "an archive of tar", "tar -xf {0}/b.txt"),
    ("a.zip", zipped("a.txt"), "an archive of zip", "unzip {0}/a.zip -d {0}/a"),
    ("a.zip.gz", gzip.compress(zipped("a.txt"), mtime=0), "archive of zip", "{0}/a.zip.gz > {0}/a.zip"),
    ("a.tsv.gz", gzip.compress(bz2.compress(b"a"), mtime=0), "packed twice", "gzip -dc {0}/a.tsv.gz > "),
    ("b.tsv", lzma.compress(lzma.compress(b"a")), "packed twice", "xz -dc {0}/b.tsv > {0}/b; then"),
    ("c.txt", HTML.encode(), "a page of HTML", "-t plain {0}/c.txt -o {0}/c.plain.txt; then: {0}/c"),
    ("d e.html", HTML.encode(), "a page of HTML", "-t plain '{0}/d e.html' -o '{0}/d e.txt'"),
    ("there.html", HTML.encode(), "a page of HTML", "there.html -o {0}/there.plain2.txt"),
    ("bare", zipped("a.txt"), "an archive of zip", "unzip {0}/bare -d {0}/bare.unpacked"),
    ("a.docx", zipped("word/document.xml"), "a document of Word", "pandoc -t plain {0}/a.docx -o"),
    ("a.odt", zipped("content.xml"), "a file of OpenDocument", "save it as"),
    ("a.txt", b"%PDF-1.7\n", "a PDF", "pdftotext {0}/a.txt {0}/a.plain.txt"),
    ("page.html", HTML.encode(), "a page of HTML", "pandoc -f html -t plain {0}/page.html -o"),
    ("b.html", ("\ufeff\n<!DOCTYPE html>" + HTML).encode("utf-16"), "a page of HTML", "pandoc"),
    ("dump.xml", b'<?xml version="1.0"?><mediawiki></mediawiki>', "XML", ".jsonl"),
    ("a.7z", b"7z\xbc\xaf\x27\x1c\0\4", "an archive of 7-Zip", "7z x {0}/a.7z"),
    ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a file of Office 97-2003", "save it as"),
    ("a.pkl", pickle.dumps([1]), "a pickle of Python", "save it as"),
])  # fmt: skip
def test_what_is_no_text_is_refused_by_its_name(tmp_path, name, content, what, cure):
    path = tmp_path / name
    path.write_bytes(content)
    for other in ("there.txt", "there.plain.txt"):
        (tmp_path / other).touch()
    with pytest.raises(InputError) as caught:
        detect_encoding(path) and report_encodings([path])
    assert what in str(caught.value) and cure.format(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
def test_a_packed_text_is_read_whatever_its_name(tmp_path, pack):
    path = tmp_path / "a.txt"
    path.write_bytes(pack(CHINESE.encode() * 1000))
    assert b"\n".join(read_lines(path)).decode() + "\n" == CHINESE * 1000
    if pack is not bytes:
        path.write_bytes(pack(CHINESE.encode() * 1000)[:-9])
        with pytest.raises(InputError, match="damaged or cut short"):
            list(read_lines(path))


KOREAN = "오늘은 날씨가 아주 좋아서 공원에 갔다.\n친구를 여럿 만났다.\n"
JAPANESE = "口座を開設するには身分証明書が必要です。\nカードを紛失しました\n"
TRADITIONAL = "請問如何申請帳戶\n臺灣的天氣如何，怎麼開戶\n"


@pytest.mark.parametrize("text, encoding, name", [
    (KOREAN, "euc_kr", "EUC-KR"),
    (JAPANESE, "shift_jis", "SHIFT_JIS"),
    (JAPANESE, "euc_jp", "EUC-JP"),
    (TRADITIONAL, "big5", "BIG5"),
    ("點樣開戶口嘅\n信用卡點用嘅", "big5hkscs", "BIG5-HKSCS"),
    ("口座開設\n天気", "shift_jis", "SHIFT_JIS"),
    ("口座開設\n銀行口座", "euc_jp", "EUC-JP"),
    ("Konto eröffnen für mich\nÜberweisung möglich", "cp1252", "CP1252"),
])  # fmt: skip
def test_another_encoding_is_refused_by_its_name(tmp_path, text, encoding, name):
    path = tmp_path / "a.txt"
    for content in (text, text * 1000, text.splitlines()[0]):
        path.write_bytes(content.encode(encoding))
        with pytest.raises(InputError, match=rf"a\.txt is {name}, .*iconv -f {name} -t UTF-8 "):
            detect_encoding(path)


def test_an_unknown_encoding_is_not_called_gb18030(tmp_path):
    text = "Załóż konto\nłączność i żółć\n"
    (tmp_path / "a.txt").write_bytes(text.encode("cp1250"))
    with pytest.raises(InputError, match="not UTF-8 .*; ") as caught:
        list(read_texts(tmp_path / "a.txt"))
    assert "GB18030:" not in str(caught.value) and "--encoding" not in str(caught.value)
    rare = "〆辻〇 凪匁峠働畑込".encode("shift_jis")  # neither of frequent characters nor GB18030
    assert "save the file as UTF-8" in str(raised(tmp_path, rare))


def raised(tmp_path, content):
    (tmp_path / "b.txt").write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(read_texts(tmp_path / "b.txt"))
    return caught.value


def test_a_packed_text_of_another_encoding_is_converted_whole(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(JAPANESE.encode("shift_jis")))
    with pytest.raises(InputError) as caught:
        detect_encoding(path)
    command = f"gzip -dc {path} | iconv -f SHIFT_JIS -t UTF-8 > {tmp_path}/a.utf8.txt"
    assert f"convert it: {command}; then: " in str(caught.value)


@pytest.mark.parametrize("order", ["utf-32", "utf-32-le", "utf-32-be", "utf-16", "utf-16-be"])
def test_wide_encodings_are_read(tmp_path, order):
    path = tmp_path / "a.txt"
    path.write_bytes((CHINESE + "ab 12\n" * 9).encode(order))
    assert b"\n".join(read_lines(path)).decode().startswith(CHINESE)


def test_short_texts_in_gb18030_are_read_or_it_is_named(tmp_path):
    asked = [
        "怎么开户",
        "银行卡丢了怎么办",
        "花呗可以分期吗",
        "发票如何开具",
        "几点下班",
        "密码忘了如何找回",
        "云计算",
    ]
    draw, path, read = random.Random(1), tmp_path / "a.tsv", 0
    for _ in range(100):
        rows = ["\t".join([*draw.choices(asked, k=2), "1"]) for _ in range(draw.randint(1, 3))]
        path.write_bytes("\n".join(rows).encode("gb18030"))
        read += detect_encoding(path) == "gb18030"
    assert read >= 99


def test_western_text_is_not_taken_for_chinese(tmp_path):
    path = tmp_path / "a.txt"
    for text, encoding in (("Müßte schöne Grüße", "latin-1"), ("Как открыть счёт в банке", "cp1251")):
        path.write_bytes(text.encode(encoding))
        assert (
            detect_encoding(path) == "utf-8" and detect_encoding(path) in ENCODINGS
        )  # whose lines are refused


def test_hidden_files_are_counted_and_others_named(tmp_path, capsys):
    for name in ("a.txt", "B.TXT", "c.JSONL.GZ", "LICENSE", "deep/er/x.txt", "deep/d.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("甲")
    for name in (".ipynb_checkpoints/a.txt", "__MACOSX/._a.txt", ".git/x.txt", "~$a.xlsx", "Thumbs.db"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("乙")
    found = list_inputs(str(tmp_path), (*RAW, *DOCUMENTS))
    assert [path.name for path in found] == ["B.TXT", "a.txt", "c.JSONL.GZ", "d.csv"]
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "2 of other endings, or too deep (LICENSE, deep/er)" in told
    assert "5 hidden (.git, .ipynb_checkpoints, Thumbs.db, __MACOSX, ~$a.xlsx)" in told
