"""The audit finds the faults planted in small texts, with file and line, and nothing else."""

import json
import os
import random
import re
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from data_tools import audit_text as module
from data_tools.audit.duplicates import NearRules, compute_bands, near_groups
from data_tools.audit.text_quality import ODD_KINDS
from data_tools.audit_text import AuditConfig, audit_of, audit_text
from ernie_pair.__main__ import _run
from ernie_pair.core.errors import InputError
from ernie_pair.core.installation import install_command

LETTERS = "".join(chr(point) for point in range(0x4E00, 0x9FA0) if chr(point) not in "锛銆鈥")


def write(path, *lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def audit(*paths, **flags):
    config = AuditConfig(inputs=[str(path) for path in paths], **flags)
    return json.loads(json.dumps(asdict(audit_of(list(paths), config))))


def audit_lines(tmp_path, *lines, **flags):
    return audit(write(tmp_path / "a.txt", *lines), **flags)


def written(content, seed):
    """``content`` distinct characters; another seed gives different ones."""
    return "".join(random.Random(seed).sample(LETTERS, content))


def edited(text, num_changed):
    """With n - 4 shingles, the similarity to ``text`` is (n - 4 - changed) / (n - 4 + changed)."""
    return text[: len(text) - num_changed] + written(num_changed, 7)


def test_totals_and_lengths(tmp_path):
    found = audit_lines(tmp_path, "一二三四", "", "  ", "一二三四五六七八", "一", "一二三")
    assert (found["files"], found["paragraphs"], found["empty"], found["characters"]) == (1, 4, 2, 16)
    assert found["lengths"] == {"1": 1, "2": 1, "4": 1, "8": 1}
    assert (found["quantiles"]["0"], found["quantiles"]["50"], found["quantiles"]["100"]) == (1, 3, 8)


def test_exact_repeats_ignore_case_width_and_punctuation(tmp_path):
    lines = ["ＡＢＣ，甲乙。", "丙", "abc 甲乙", "a\u3000B-c甲！乙", "……", "***", "丙。", "丁"]
    exact = audit_lines(tmp_path, *lines)["exact"]
    assert (exact["paragraphs"], exact["groups"], exact["without_text"]) == (3, 2, 2)
    assert exact["characters"] == len(lines[2]) + len(lines[3]) + len(lines[6])
    assert exact["sizes"] == {"2": 2}
    most = [(found["times"], Path(found["at"]).name, found["text"]) for found in exact["most_repeated"]]
    assert most == [(3, "a.txt:1", lines[0]), (2, "a.txt:2", "丙")]


def test_repeats_are_found_across_files_and_counted_by_size(tmp_path):
    one = write(tmp_path / "a.txt", *["甲"] * 5, "乙")
    two = write(tmp_path / "b.txt", "乙", "甲", "丙")
    exact = audit(one, two)["exact"]
    assert (exact["paragraphs"], exact["sizes"]) == (6, {"2": 1, "4": 1})


def test_near_repeats_are_those_at_or_above_the_threshold(tmp_path):
    one, two = written(100, 1), written(100, 2)
    lines = [one, two, edited(one, 10), edited(two, 11)]
    near = audit_lines(tmp_path, *lines)["near"]
    assert (near["paragraphs"], near["groups"], near["characters"], near["sizes"]) == (1, 1, 100, {"2": 1})
    (group,) = near["largest"]
    assert group["size"] == 2 and group["at"].endswith("a.txt:1")
    (member,) = group["members"]
    assert member["at"].endswith("a.txt:3") and member["similarity"] == round(86 / 106, 4)
    assert audit_lines(tmp_path, *lines, near_threshold=0.79)["near"]["paragraphs"] == 2
    assert audit_lines(tmp_path, *lines, near_threshold=0.82)["near"]["paragraphs"] == 0


def test_exact_repeats_are_not_counted_as_near_repeats(tmp_path):
    text = written(100, 1)
    found = audit_lines(tmp_path, text, text, text + "。")
    assert found["exact"]["paragraphs"] == 2 and found["near"]["paragraphs"] == 0


def test_a_chain_of_small_edits_is_not_one_group(tmp_path):
    first = written(100, 1)
    second = edited(first, 10)
    third = written(8, 9) + second[8:]
    assert similarity(second, third, 5) >= 0.8 > similarity(first, third, 5)
    near = audit_lines(tmp_path, first, second, third)["near"]
    assert near["paragraphs"] == 1 and near["largest"][0]["size"] == 2


def test_short_paragraphs_are_counted_but_not_compared(tmp_path):
    text = written(19, 1)
    near = audit_lines(tmp_path, text, text + "甲", text + "乙", "短")["near"]
    assert (near["shortest"], near["too_short"], near["candidates"], near["paragraphs"]) == (20, 2, 2, 1)


def similarity(one, other, shingle):
    one, other = ({t[i : i + shingle] for i in range(len(t) - shingle + 1)} for t in (one, other))
    return len(one & other) / len(one | other)


@pytest.mark.parametrize("threshold, shingle", [(0.8, 5), (0.6, 3), (1.0, 2)])
def test_reported_near_repeats_are_true_and_few_are_missed(threshold, shingle):
    draw = random.Random(threshold)
    texts = []
    for seed in range(60):
        base = written(60, seed)
        texts += [base] + [edited(base, draw.randrange(0, 20)) for _ in range(3)]
    draw.shuffle(texts)
    rules = NearRules(threshold, shingle, 1000)
    groups = near_groups(compute_bands(texts, rules), [text.encode("utf-8") for text in texts], rules)
    found = {member: head for head, members in groups.items() for member in members}
    for head, members in groups.items():
        assert head not in found
        for member, shared in members.items():
            assert shared == similarity(texts[head], texts[member], shingle) >= threshold
    heads, expected = [], set()
    for number, text in enumerate(texts):
        if any(similarity(text, texts[head], shingle) >= threshold for head in heads):
            expected.add(number)
        else:
            heads.append(number)
    assert len(expected) > 20 and len(expected ^ set(found)) <= 2


def test_only_a_sample_is_compared_above_the_limit(tmp_path, capsys):
    path = write(
        tmp_path / "a.txt", *(edited(written(80, seed), cut) for seed in range(20) for cut in (0, 3))
    )
    whole, part = audit(path)["near"], audit(path, near_limit=20)["near"]
    assert (whole["candidates"], whole["compared"], whole["paragraphs"]) == (40, 40, 20)
    assert (part["candidates"], part["compared"]) == (40, 20) and part["paragraphs"] < 20
    assert audit(path, near_limit=20)["near"] == part
    audit_text(AuditConfig(inputs=[str(path)], near_limit=20))
    assert "a sample of 20 of 40 was compared, 25.0% of the pairs" in capsys.readouterr().out


def test_a_missing_library_is_reported_before_anything_is_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with pytest.raises(InputError, match=re.escape(f"datasketch is not installed; {install_command('cpu')}")):
        AuditConfig(inputs=["/no/such/folder"])


ODD = {
    "control": "\x01\x85", "private use": "\ue000", "unassigned": "\u0378", "U+FFFD": "\ufffd",
    "zero-width": "\u200b\u00ad", "bidi mark": "\u202e\u200f", "byte-order mark": "\ufeff",
    "other format": "\ufff9", "half-width kana": "ｱ", "compatibility ideograph": "\uf900",
    "radical": "\u2f00", "variation selector": "\ufe0f", "odd space": "\u00a0\u2028", "emoji": "😀",
}  # fmt: skip


@pytest.mark.parametrize(
    "kind, character", [(kind, character) for kind, characters in ODD.items() for character in characters]
)
def test_an_odd_character_is_reported_with_its_line(tmp_path, kind, character):
    found = audit_lines(tmp_path, "前", f"前面{character}{character}后面", "", f"尾{character}")["odd"]
    assert list(found) == [kind] and kind in ODD_KINDS
    assert (found[kind]["characters"], found[kind]["paragraphs"]) == (3, 2)
    first, second = found[kind]["examples"]
    assert first["at"].endswith("a.txt:2") and second["at"].endswith("a.txt:4")
    assert first["what"] == f"U+{ord(character):04X}" and "前面" in first["text"]


@pytest.mark.parametrize(
    "read", ["\t制表\u3000空格 ", "\ufa0e是统一的汉字", "①②㈠★☆……——·《》「」", "Été à l'œuvre"]
)
def test_usual_characters_are_not_odd(tmp_path, read):
    assert audit_lines(tmp_path, read)["odd"] == {}


def test_a_byte_order_mark_is_reported_only_inside_a_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeff甲\n乙\ufeff丙\n".encode())
    (example,) = audit(path)["odd"]["byte-order mark"]["examples"]
    assert example["at"].endswith("a.txt:2")


def misread(text, written_as, read_as):
    return text.encode(written_as).decode(read_as, "replace").replace("\ufffd", "?")


@pytest.mark.parametrize("kind, line", [
    ("UTF-8 as Latin-1", misread("编码出错的文字", "utf-8", "latin-1")),
    ("UTF-8 as Latin-1", misread("café", "utf-8", "cp1252")),
    ("UTF-8 as Latin-1", misread("中文", "utf-8", "cp1252")),
    ("UTF-8 as Latin-1", misread("“quote", "utf-8", "cp1252")),
    ("UTF-8 as Latin-1", misread("слово", "utf-8", "latin-1")),
    ("UTF-8 as GBK", misread("你好，世界。", "utf-8", "gbk")),
    ("GBK as Latin-1", misread("中文乱码测试", "gbk", "latin-1")),
    ("U+FFFD as GBK", misread("前后\ufffd\ufffd", "utf-8", "gbk")),
    ("U+FFFD as GBK", misread("前\ufffd\ufffd后", "utf-8", "gbk")),
])  # fmt: skip
def test_wrongly_decoded_text_is_recognised(tmp_path, kind, line):
    found = audit_lines(tmp_path, "好的文字", line)["odd"]
    assert set(found) - {"control", "odd space", "zero-width"} == {kind}
    assert found[kind]["paragraphs"] == 1 and found[kind]["examples"][0]["at"].endswith("a.txt:2")


@pytest.mark.parametrize("line", [
    "第一章············12",
    "Où est passé l'été ? «À l'école», dit-elle : “café”…",
    "São Paulo, Århus, Köln, naïveté, 37°±1°, 3×4",
    "涓涓细流，烫，屯",
    "Слово на русском языке",
    "EL NIÑO”, «ÉTÉ», Ð…",
])  # fmt: skip
def test_good_text_is_not_taken_for_mojibake(tmp_path, line):
    assert audit_lines(tmp_path, line)["odd"] == {}


def corpus(folder):
    """Two files, of several batches, with findings of every kind."""
    draw = random.Random(5)
    lines = []
    for seed in range(2500):
        base = written(draw.randrange(30, 120), seed)
        lines += [base] + [edited(base, 2)] * (seed % 3 == 0) + ["重复的一行"] * (seed % 50 == 0)
        lines += ["odd\u200bspace", "說話 的 café", "The quick brown fox jumps over"] * (seed % 100 == 0)
    write(folder / "a.txt", *lines)
    documents = ("\n".join(lines[begin : begin + 4]) for begin in range(0, 400, 3))
    write(folder / "b.jsonl", *(json.dumps({"text": document}) for document in documents))
    return sorted(folder.glob("*"))


def test_any_number_of_workers_gives_the_same_report(tmp_path):
    inputs = corpus(tmp_path)
    one = audit(*inputs)
    assert inputs[0].stat().st_size > 2 << 18 and one["near"]["paragraphs"] > 500
    assert {"zero-width"} == set(one["odd"])
    assert audit(*inputs, workers=2) == one


def test_a_name_that_is_not_utf8_is_reported(tmp_path):
    path = write(tmp_path / os.fsdecode(b"\xd6\xd0.txt"), "甲", "甲")
    audit_text(AuditConfig(inputs=[str(path)], output_dir=str(tmp_path / "report"), near_limit=0))
    found = json.loads((tmp_path / "report" / "audit.json").read_text(encoding="utf-8"))
    assert found["exact"]["most_repeated"][0]["at"] == f"{path}:1"


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_each_line_of_a_json_document_is_a_paragraph(tmp_path, name):
    path = write(
        tmp_path / name,
        json.dumps({"body": "甲\r\n乙\n\n丙\n"}),
        "",
        json.dumps({"body": "乙"}),
        json.dumps({"body": "丁\u200b"}),
    )
    found = audit(path, json_key="body")
    assert (found["paragraphs"], found["empty"], found["characters"]) == (5, 1, 6)
    (repeated,) = found["exact"]["most_repeated"]
    assert repeated["at"] == f"{path}:1 (line 2 of its text)" and repeated["text"] == "乙"
    assert list(found["odd"]) == ["zero-width"]
    assert found["odd"]["zero-width"]["examples"][0]["at"] == f"{path}:4"


def test_the_command_prints_and_writes_the_report(tmp_path, capsys):
    folder = tmp_path / "raw"
    folder.mkdir()
    write(folder / "a.txt", "重复的一行", "重复的一行", "有\u200b零宽", "甲", written(50, 1))
    write(folder / "b.txt", written(50, 1) + "甲")
    output = tmp_path / "report"
    _run(["audit", "text", str(folder), str(folder / "a.txt"), "--output_dir", str(output)])
    shown = capsys.readouterr().out
    assert "text           2 files, 6 paragraphs, 0 empty lines" in shown
    assert f"2 times  {folder}/a.txt:1  重复的一行" in shown
    assert f"2 alike  {folder}/a.txt:5" in shown and f"0.98        {folder}/b.txt:1" in shown
    assert "U+200B" in shown and "有\\u200b零宽" in shown and "\u200b" not in shown
    found = json.loads((output / "audit.json").read_text(encoding="utf-8"))
    assert found["paragraphs"] == 6 and found["odd"]["zero-width"]["characters"] == 1
    assert (output / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_text_without_findings_is_plotted_too(tmp_path, monkeypatch):
    drawn, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: drawn.extend(self.axes) or save(self, *a, **k)
    )
    path = write(tmp_path / "a.txt", "甲")
    audit_text(AuditConfig(inputs=[str(path)], output_dir=str(tmp_path / "report"), near_limit=0))
    assert (tmp_path / "report" / "audit.png").is_file()
    empty = {axes.get_title() for axes in drawn if "none" in [text.get_text() for text in axes.texts]}
    assert empty == {"repeats", "odd characters"}


@pytest.mark.parametrize("content, name, message", [
    (b"", "a.txt", "no text; give"),
    (b"\n \n", "a.txt", "no text; give"),
    (b"ok\n\xff\n", "a.txt", r"a\.txt:2: not UTF-8"),
    (b"ok\rok\n", "a.txt", r"a\.txt:1: CR inside"),
    (b'{"text": "a"}\n{"text": "b"\n', "a.jsonl", r"a\.jsonl:2:.*not JSON"),
    (b'{"txt": "a"}\n', "a.jsonl", r"a\.jsonl:1: no key 'text'"),
    (b"x", "a.txt.gz", "damaged or cut short"),
])  # fmt: skip
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_text_is_reported_and_leaves_no_output(tmp_path, content, name, message, workers):
    (tmp_path / name).write_bytes(content)
    config = AuditConfig(inputs=[str(tmp_path / name)], output_dir=str(tmp_path / "report"), workers=workers)
    with pytest.raises(InputError, match=message):
        audit_text(config)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_bad_bytes_can_be_replaced_and_long_lines_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("甲".encode() + b"\xff\n")
    assert audit(path, encoding_errors="replace")["odd"]["U+FFFD"]["characters"] == 1
    with pytest.raises(InputError, match=r"a\.txt:1: the line is above 3 bytes"):
        audit(path, max_line_bytes=3)


@pytest.mark.parametrize("later", ["换了别的文字" * 10 + "\n", ""])
def test_a_file_that_changes_during_the_audit_is_an_error(tmp_path, monkeypatch, later):
    path = write(tmp_path / "a.txt", written(50, 1), written(50, 2))
    survey = module._survey

    def and_change(*arguments):
        found = survey(*arguments)
        path.write_text(later, encoding="utf-8")
        return found

    monkeypatch.setattr(module, "_survey", and_change)
    with pytest.raises(InputError, match="changed while it was read"):
        audit(path)
