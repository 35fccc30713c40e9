"""Raw text becomes one JSON line per document, in an order that depends only on the seed."""

import json
import os

import pytest

from data_tools.trans_to_json import TransConfig, trans_to_json
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError

RAW = "第一句话很长很长。\n第二句话。\n\n另一篇文章的全部内容。\n"
DOCUMENTS = ["第一句话很长很长。\n第二句话。", "另一篇文章的全部内容。"]


def convert(tmp_path, content=RAW, name="raw.txt", **flags):
    source = tmp_path / "in"
    source.mkdir(exist_ok=True)
    if content is not None:
        (source / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    settings = {"input_path": str(source), "output_path": str(tmp_path / "out"), "no_shuffle": True, **flags}
    trans_to_json(TransConfig(**settings))
    merged = tmp_path / "out.jsonl"
    return texts(merged, settings.get("json_key", "text")) if merged.exists() else None


def texts(path, key="text"):
    return [json.loads(line)[key] for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def numbered(count):
    return "\n\n".join(f"第{number}篇文章的全部内容在此" for number in range(count))


def test_an_empty_line_separates_documents(tmp_path):
    assert convert(tmp_path) == DOCUMENTS


def test_json_key_and_document_separator_are_flags(tmp_path):
    raw = RAW.replace("\n\n", "\n---\n\n")
    assert convert(tmp_path, raw, doc_spliter="---", json_key="content") == DOCUMENTS


def test_spaces_do_not_change_the_documents(tmp_path):
    spaced = "\n \n\u3000" + RAW.replace("\n\n", "\n\u3000\n\n") + "\n\n"
    assert convert(tmp_path, spaced) == DOCUMENTS


def test_short_documents_are_left_out_and_counted(tmp_path, capsys):
    assert convert(tmp_path, RAW + "\n短。\n") == DOCUMENTS
    assert "2 documents from 1 file (1 shorter than 10 characters left out)" in capsys.readouterr().err
    assert convert(tmp_path, RAW + "\n短。\n", min_doc_length=0, overwrite=True) == [*DOCUMENTS, "短。"]


def test_the_document_shuffle_depends_on_the_seed_alone(tmp_path):
    kept = convert(tmp_path, numbered(50))
    first = convert(tmp_path, None, no_shuffle=False, overwrite=True)
    again = convert(tmp_path, None, no_shuffle=False, overwrite=True)
    other = convert(tmp_path, None, no_shuffle=False, overwrite=True, seed=1)
    assert sorted(first) == sorted(kept) and first == again and first != kept and first != other
    assert first[-1] != kept[-1]  # the last document has no place of its own


def test_any_number_of_workers_writes_the_same_bytes(tmp_path):
    for number in range(3):
        (tmp_path / "in" / f"{number}").mkdir(parents=True)
        (tmp_path / "in" / f"{number}" / "deep.txt").write_text(numbered(9 + number), encoding="utf-8")
    one = convert(tmp_path, numbered(5), no_shuffle=False)
    assert convert(tmp_path, None, no_shuffle=False, workers=2, overwrite=True) == one and len(one) == 35


def test_without_merging_each_input_has_its_own_output(tmp_path):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "b.txt").write_text(RAW, encoding="utf-8")
    convert(tmp_path, numbered(3), "a.txt", no_merge=True)
    assert texts(tmp_path / "out_sub_b.txt.jsonl") == DOCUMENTS
    assert len(texts(tmp_path / "out_a.txt.jsonl")) == 3


def test_files_that_are_not_merged_are_shuffled_apart(tmp_path):
    convert(tmp_path, numbered(30), "a.txt")
    convert(tmp_path, numbered(30), "b.txt", no_merge=True, no_shuffle=False)
    assert texts(tmp_path / "out_a.txt.jsonl") != texts(tmp_path / "out_b.txt.jsonl")


def test_an_earlier_output_in_the_input_folder_is_not_read(tmp_path):
    inside = str(tmp_path / "in" / "out")
    convert(tmp_path, output_path=inside)
    convert(tmp_path, output_path=inside, overwrite=True)
    assert texts(tmp_path / "in" / "out.jsonl") == DOCUMENTS


BAD = {
    "an invalid byte": ("好\n好\n".encode() + b"\xff\n", r"raw\.txt:3: not UTF-8 \(byte 1 .* is 0xff\)"),
    "GB18030": (
        "你好，世界\n".encode() + "你好，世界".encode("gb18030"),
        r"raw\.txt:2: not UTF-8 .*looks like GB18030: convert .* -f GB18030",
    ),
    "a lone CR": ("好\n你好\r世界\n", r"raw\.txt:2: CR inside the line; save"),
    "an empty file": ("", "no document has 10 characters; lower min_doc_length, or give longer"),
    "blank lines only": (" \n\n\t\n", "no document has 10 characters"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_text_is_reported_and_leaves_no_output(tmp_path, content, message, workers):
    with pytest.raises(InputError, match=message):
        convert(tmp_path, content, workers=workers)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_an_output_may_have_a_long_chinese_name(tmp_path):
    convert(tmp_path, output_path=str(tmp_path / ("长" * 75)))
    assert texts(tmp_path / f"{'长' * 75}.jsonl") == DOCUMENTS


@pytest.mark.parametrize(
    "words", [["--doc_spliter", "---"], ["--doc-spliter=---"], ["--doc_spliter", "----"]]
)
def test_a_separator_may_consist_of_hyphens(words):
    config = parse_config(TransConfig, ["--input_path", "-", "--output_path", "-", *words])
    assert (config.doc_spliter, config.input_path) == (words[-1].rpartition("=")[2], "-")


@pytest.mark.parametrize(("name", "reason"), [
    ("", "^input_path is empty; name a file or folder, "),
    ("no", "no: no such file or folder; fix input_path$"),
    ("pipe", "pipe: a pipe or a device; give its content as standard input, "),
    ("notes", r"no file ends with \.txt; fix"),
])  # fmt: skip
def test_an_input_without_text_files_is_refused(tmp_path, name, reason):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.md").write_text("x")
    with pytest.raises(InputError, match=reason):
        trans_to_json(TransConfig(name and str(tmp_path / name), str(tmp_path / "out")))
