"""Bad input of the tool: lines that are skipped on demand, and every other kind of bad file."""

import gzip
import json
import os
import re

import numpy as np
import pytest
import zstandard
from bad_json_lines import BAD
from tiny_corpus import TOKENS, finished, hashes, leftovers, lines_of, make, start, write_vocab

from data_tools.corpus.format import Corpus
from data_tools.create_pretraining_data import CreateConfig, create_pretraining_data
from data_tools.files.errors import InputError

GOOD = lines_of("我爱北京")
# The gap puts the first bad line and the later ones into different shards.
MIXED = b"".join([b"oops\n", b"\n", GOOD * 50_000, b"[]\n", lines_of(" "), GOOD, b'{"text": "abc'])


@pytest.fixture(autouse=True)
def vocab_file(tmp_path):
    return write_vocab(tmp_path)


def rejected(tmp_path):
    return [json.loads(line) for line in (tmp_path / "out.rejected.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize(("line", "message"), BAD.values(), ids=BAD)
def test_a_skipped_bad_line_is_recorded(tmp_path, line, message):
    made = make(tmp_path, GOOD * 2 + line + b"\n" + GOOD, on_bad_line="skip")
    assert made == [["我 爱 北 京"]] * 3
    (note,) = rejected(tmp_path)
    assert (note["file"], note["line"]) == (str(tmp_path / "in.jsonl"), 3)
    assert re.match(message.split(": ", 1)[1], note["reason"])


@pytest.mark.parametrize("change", ["plain", "CRLF", "byte-order mark", ".gz", ".zst"])
@pytest.mark.parametrize("workers", [1, 2])
def test_line_numbers_are_the_same_in_every_file_format(tmp_path, change, workers):
    changes = {
        "CRLF": lambda c: c.replace(b"\n", b"\r\n"),
        "byte-order mark": lambda c: b"\xef\xbb\xbf" + c,
        ".gz": gzip.compress,
        ".zst": zstandard.compress,
    }
    name = f"in.jsonl{change}" if change == ".gz" else f"in{change}" if change == ".zst" else "in.jsonl"
    content = changes.get(change, bytes)(MIXED)
    make(tmp_path, content, name, on_bad_line="skip", workers=workers)
    notes = [(note["line"], note["reason"].split(",")[0].split(" {")[0]) for note in rejected(tmp_path)]
    assert notes == [(1, "not JSON"), (50_003, "a list"), (50_006, "not JSON")]


def test_every_line_is_counted_once(tmp_path, capsys):
    make(tmp_path, MIXED, on_bad_line="skip")
    manifest = Corpus(tmp_path / "out").manifest
    counts, names = (
        manifest["counts"],
        ("lines", "blank_lines", "rejected_lines", "documents", "empty_documents"),
    )
    assert [counts[name] for name in names] == [50_006, 1, 3, 50_001, 1]
    assert counts["lines"] == sum(counts[name] for name in names[1:])
    assert manifest["inputs"][0]["rejected_lines"] == 3 and manifest["documents"] == 50_001
    assert "1 without text, 50001 of one sentence, 3 rejected)" in capsys.readouterr().err


def test_any_number_of_workers_skips_the_same_lines(tmp_path):
    make(tmp_path, MIXED, on_bad_line="skip")
    one = hashes(tmp_path)
    make(tmp_path, MIXED, on_bad_line="skip", workers=2, overwrite=True)
    assert hashes(tmp_path) == one and len(one) == 4


def test_the_first_bad_line_beyond_the_limit_ends_the_run(tmp_path):
    messages = []
    for workers in (1, 2):
        with pytest.raises(
            InputError, match=r":50003: a list.*more bad lines than max_bad_lines=1\)$"
        ) as caught:
            make(tmp_path, MIXED, on_bad_line="skip", max_bad_lines=1, workers=workers)
        messages.append(str(caught.value))
    assert leftovers(tmp_path) == [] and messages[0] == messages[1]
    assert len(make(tmp_path, MIXED, on_bad_line="skip", max_bad_lines=3)) == 50_001


def test_without_bad_lines_the_rejected_file_is_empty(tmp_path):
    make(tmp_path, GOOD, on_bad_line="skip", max_bad_lines=0)
    assert rejected(tmp_path) == []


def test_overwriting_a_corpus_removes_its_rejected_file(tmp_path):
    make(tmp_path, GOOD + b"oops\n", on_bad_line="skip")
    with pytest.raises(InputError, match="exists; pass overwrite"):
        make(tmp_path, GOOD)
    make(tmp_path, GOOD, overwrite=True)
    assert not (tmp_path / "out.rejected.jsonl").exists()


def test_the_rejected_file_is_not_read_as_input(tmp_path):
    flags = {"input_path": str(tmp_path), "on_bad_line": "skip"}
    make(tmp_path, GOOD + b"oops\n", **flags)
    make(tmp_path, GOOD, overwrite=True, **flags)
    assert [item["name"] for item in Corpus(tmp_path / "out").manifest["inputs"]] == ["in.jsonl"]


@pytest.mark.parametrize(("encoding", "looks_like"), [("utf-16", "UTF-16"), ("gb18030", "GB18030")])
def test_another_encoding_is_recognised(tmp_path, encoding, looks_like):
    with pytest.raises(
        InputError, match=rf"in\.jsonl:1: not UTF-8 .*looks like {looks_like}: convert .* iconv"
    ):
        make(tmp_path, GOOD.decode().encode(encoding))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("on_bad_line", ["error", "skip"])
def test_a_truncated_compressed_file_is_always_refused(tmp_path, pack, on_bad_line):
    name = "in.jsonl.gz" if pack is gzip.compress else "in.zst"
    content = pack(MIXED)
    with pytest.raises(InputError, match=rf"{name}: damaged or cut short, read \d+ bytes"):
        make(tmp_path, content[: len(content) // 2].ljust(20, b"\0")[:-9], name, on_bad_line=on_bad_line)
    assert leftovers(tmp_path) == [name]


def test_unusual_characters_do_not_end_a_line(tmp_path):
    odd = ["我\0爱", "我\u2028爱", "我\u0085爱", "我\u001e爱", "我\ufeff爱"]
    assert make(tmp_path, lines_of(*odd)) == [["我 爱"]] * len(odd)


def test_the_number_of_cut_sentences_matches_a_manual_count(tmp_path, capsys):
    lengths = [1, 9, 10, 11, 20, 21, 99]
    made = make(tmp_path, lines_of(*("我" * n for n in lengths)), max_sentence_length=10)
    assert [[len(s.split()) for s in document] for document in made] == [
        [1], [9], [10], [10, 1], [10, 10], [10, 10, 1], [10] * 9 + [9],
    ]  # fmt: skip
    assert Corpus(tmp_path / "out").manifest["counts"]["cut_sentences"] == 4


def test_symlinked_files_are_read_once_and_cycles_end(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "ring").symlink_to(data)
    (data / "z.jsonl").symlink_to(data / "a.jsonl")
    (data / "self").symlink_to(data / "self")
    (data / "later.jsonl").write_bytes(lines_of("北京"))
    assert make(tmp_path, GOOD, "data/a.jsonl", input_path=str(data)) == [["我 爱 北 京"], ["北 京"]]
    assert [item["name"] for item in Corpus(tmp_path / "out").manifest["inputs"]] == [
        "a.jsonl",
        "later.jsonl",
    ]


@pytest.mark.parametrize(
    "name", ["a b", "it's", ";touch PWNED", "new\nline", "-x", "文本", os.fsdecode(b"\xff")]
)
def test_file_names_may_contain_any_character(tmp_path, name):
    flags = {"output_prefix": str(tmp_path / name), "on_bad_line": "skip"}
    assert make(tmp_path, GOOD + b"oops\n", f"{name}.jsonl", **flags) == [["我 爱 北 京"]]
    note = json.loads((tmp_path / f"{name}.rejected.jsonl").read_bytes())
    assert note["file"] == str(tmp_path / f"{name}.jsonl")
    assert Corpus(tmp_path / name).manifest["inputs"][0]["name"] == f"{name}.jsonl"
    assert not (tmp_path / "PWNED").exists()


def test_locale_and_hash_seed_do_not_change_the_output(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(lines_of(*(f"我爱{n}，Hello ok。北京" for n in range(200))))
    runs = []
    for environment in ({"LANG": "C", "LC_ALL": "C", "PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"}):
        flags = ("--chinese", "--cn_whole_word_segment", "--overwrite")
        assert start(tmp_path, *flags, environment=environment).wait() == 0
        runs.append(hashes(tmp_path))
    assert runs[0] == runs[1] and len(finished(tmp_path)) == 3


def test_a_worker_count_above_the_cpu_count_works(tmp_path):
    assert make(tmp_path, GOOD, workers=1000) == [["我 爱 北 京"]]


@pytest.mark.parametrize("size", [65_534, 65_535, 70_000])
def test_ids_above_16_bits_are_stored_correctly(tmp_path, size):
    more = [f"x{number}" for number in range(size - len(TOKENS))]
    path = tmp_path / "wide.txt"
    path.write_text("\n".join([*TOKENS, *more]), encoding="utf-8")
    (tmp_path / "in.jsonl").write_bytes(lines_of(f"我{more[-1]}"))
    settings = {"input_path": str(tmp_path / "in.jsonl"), "output_prefix": str(tmp_path / "out")}
    create_pretraining_data(CreateConfig(**settings, vocab_file=str(path)))
    corpus = Corpus(tmp_path / "out")
    assert corpus[0].tolist() == [TOKENS.index("我"), size - 1]
    assert corpus.ids.dtype == (np.uint16 if size < 65_535 else np.int32)
