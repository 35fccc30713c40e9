"""Pairs as raw text: each pair once, none from the dev or test file, both texts in one document."""

import pytest

from data_tools.trans_to_json import TransConfig, trans_to_json
from ernie_pair.__main__ import _run
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.pairs.audit.new_pairs import PairsToTextConfig, pairs_to_text

ROWS = [
    ("怎么开户", "如何开户", "1"),
    ("如何开户？", "怎么 开户", "1"),  # repeats the first after normalising, in swapped order
    ("怎么开户", "怎么销户", "0"),
    ("在开发集里", "也在开发集里", "1"),
    ("在测试集里", "也在测试集里", "0"),
]


@pytest.fixture
def files(tmp_path):
    """Return the flags of a training, a dev and a test file; the test file has no labels."""
    parts = {"train": ROWS, "dev": [ROWS[3]], "test": [ROWS[4][1::-1]]}
    for name, rows in parts.items():
        text = "".join("\t".join(row) + "\n" for row in rows)
        (tmp_path / f"{name}.tsv").write_text(text, encoding="utf-8")
    named = {f"{name}_file": str(tmp_path / f"{name}.tsv") for name in ("dev", "test")}
    return {"train_file": str(tmp_path / "train.tsv"), "output_file": str(tmp_path / "pairs.txt"), **named}


def test_pairs_become_documents_except_dev_and_test_pairs(files, tmp_path, capfd):
    pairs_to_text(PairsToTextConfig(**files))
    text = (tmp_path / "pairs.txt").read_text(encoding="utf-8")
    assert text == "怎么开户\n如何开户\n\n怎么开户\n怎么销户\n\n"
    told = capfd.readouterr().err
    for line in ("1 pair of the dev file", "1 pair of the test file", "1 pair that would repeat"):
        assert f"left out: {line}" in told
    assert "written: 2 documents" in told
    trans_to_json(TransConfig(str(tmp_path / "pairs.txt"), str(tmp_path / "out"), min_doc_length=0))
    documents = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert sorted(documents)[0] == '{"text": "怎么开户\\n如何开户"}' and len(documents) == 2


def test_a_line_break_in_a_text_starts_no_new_document(tmp_path):
    rows = '{"sentence1": "第一行\\n\\n第二行", "sentence2": "甲  乙"}\n'
    (tmp_path / "pairs.jsonl").write_text(rows, encoding="utf-8")
    pairs_to_text(PairsToTextConfig(str(tmp_path / "pairs.jsonl"), str(tmp_path / "pairs.txt")))
    assert (tmp_path / "pairs.txt").read_text(encoding="utf-8") == "第一行 第二行\n甲 乙\n\n"


def test_the_command_line_writes_to_standard_output(files, tmp_path, capfd):
    assert (
        exit_code_of(lambda: _run(["build", "text", "--train_file", files["train_file"], "--output_file=-"]))
        == 0
    )
    told = capfd.readouterr()
    assert told.out.startswith("怎么开户\n如何开户\n\n") and told.out.count("\n\n") == 4
    assert "written: 4 documents" in told.err
