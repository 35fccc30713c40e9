"""Bad text of every kind, for both tools that read it: refused with its line, or counted, never guessed."""

import gzip
import json
import os
import re
import resource
import subprocess
import sys
import time
import tracemalloc
from hashlib import sha256
from pathlib import Path

import pytest
import zstandard
from bad_json_lines import BAD
from tiny_corpus import ROOT, TOKENS, finished, hashes, leftovers, lines_of, make, start
from waiting import until

from data_tools.build_vocab import VocabConfig, build_vocab
from data_tools.corpus.format import Corpus
from data_tools.text import file_content
from data_tools.text.file_content import num_invalid_bytes
from data_tools.text.text_files import LineRules, decoded, json_text, list_inputs, read_lines
from data_tools.trans_to_json import TransConfig, trans_to_json
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError, MachineError
from ernie_pair.core.files.atomic_files import locked, own_name

GOOD = lines_of("我爱北京")
RAW = "第一句话很长很长。\n第二句话。\n\n另一篇文章的全部内容。\n".encode()
PACKERS = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}


pytestmark = pytest.mark.usefixtures("vocab_file")


def convert(folder, content, name="raw.txt", **flags):
    (folder / name).write_bytes(content)
    settings = {"input_path": str(folder / name), "output_path": f"{folder}/out", "no_shuffle": True, **flags}
    trans_to_json(TransConfig(**settings))
    return (folder / "out.jsonl").read_bytes()


def both(folder, content, **flags):
    messages = []
    for tool in (make, convert):
        with pytest.raises(InputError) as caught:
            tool(folder, content, **flags)
        messages.append(str(caught.value))
    return messages


# What a line may hold


@pytest.mark.parametrize("deeper", ['{"text": "a", "x": {"k": 1, "k": 2}}', '{"x": [{"k": 1, "k": 1}]}'])
def test_a_duplicate_key_is_found_in_nested_values(tmp_path, deeper):
    with pytest.raises(InputError, match=r"in\.jsonl:1: the key 'k' is given twice"):
        make(tmp_path, deeper.encode())


def test_error_messages_stay_short_for_long_lines(tmp_path):
    long = "长" * 5000
    for record in ({long: 1}, {"text": 1, long: 2}, [long], {"text": {long: long}}):
        line = json.dumps(record, ensure_ascii=False)
        twice = line.replace("{", f'{{"{long}": 0, ', 1)
        for text in (line, twice, line[:-3], line + "}"):
            with pytest.raises(InputError) as caught:
                json_text("in.jsonl", 1, text.encode(), LineRules())
            assert len(str(caught.value)) < 300


@pytest.mark.parametrize("place", [0, 7, 29, 30, 31, 500, 4970, 4999])
def test_the_snippet_shows_the_column(place):
    text = "甲" * place + "@" + "乙" * (4999 - place)
    line = '{"text": "' + text[:place] + '"' + text[place:]
    with pytest.raises(InputError) as caught:
        json_text("in.jsonl", 3, line.encode(), LineRules())
    message = str(caught.value)
    assert message.startswith(f"in.jsonl:3:{place + 12}: not JSON, Expecting ',' delimiter")
    assert '"@' in message and len(message) < 200


@pytest.mark.parametrize("line", ['{"text": "我爱', '{"text": "我"', '{"text"', "{"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_truncated_last_line_is_pointed_out(tmp_path, line, workers):
    with pytest.raises(InputError, match=r"in\.jsonl:3:\d+: not JSON, .*\(is the line cut short\?\)"):
        make(tmp_path, GOOD * 2 + line.encode(), workers=workers)


def test_a_truncated_last_character_is_pointed_out(tmp_path):
    for message in both(tmp_path, GOOD + '{"text": "我'.encode()[:-1]):
        assert ":2: not UTF-8 (byte 11 of the line is 0xe6); its last character is cut short" in message


# Encodings


@pytest.mark.parametrize(("bad", "first", "replaced"), [
    (b"\xff", 0xFF, 1),
    (b"\x80\x80\x80", 0x80, 3),
    (b"\xed\xa0\x80", 0xED, 3),
    ("我".encode()[:2], 0xE6, 2),
    (b"\xc0\xaf", 0xC0, 2),
    (b"\xf5\x80\x80\x80", 0xF5, 4),
    (b"\xe6\xff\x88", 0xE6, 3),
])  # fmt: skip
@pytest.mark.parametrize("place", [0, 1, 5])
def test_the_first_bad_byte_is_reported_and_all_are_counted(bad, first, replaced, place):
    line = "我爱北京天安门"[:place].encode() + bad + " 学习".encode()
    with pytest.raises(InputError, match=rf"^a:9: not UTF-8 .byte {3 * place + 1} .* is 0x{first:x}\)"):
        decoded("a", 9, line)
    assert num_invalid_bytes(line) == replaced
    text = decoded("a", 9, line, LineRules(replaces=True))
    assert text.startswith("我爱北京天安门"[:place] + "\ufffd") and text.endswith("\ufffd 学习")


def test_a_replacement_character_is_not_an_invalid_byte():
    assert num_invalid_bytes("我\ufffd爱".encode()) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_bytes_are_replaced_on_demand_and_counted(tmp_path, capsys, workers):
    content = GOOD + b'{"text": "\xe6\x88\x91\xff\xff\xe7\x88\xb1"}\n' + b"oops\xff\n" + GOOD
    flags = {"encoding_errors": "replace", "workers": workers}
    made = make(tmp_path, content, on_bad_line="skip", **flags)
    assert made == [["我 爱 北 京"], ["我 爱"], ["我 爱 北 京"]]
    manifest = Corpus(tmp_path / "out").manifest
    assert manifest["counts"]["replaced_bytes"] == manifest["inputs"][0]["replaced_bytes"] == 2
    assert manifest["counts"]["rejected_lines"] == 1
    assert manifest["arguments"]["encoding_errors"] == "replace"
    assert "1 rejected, 2 bytes replaced)" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_raw_text_bytes_are_replaced_on_demand_and_counted(tmp_path, capsys, workers):
    content = RAW.replace("第二".encode(), b"\xff\xfe\xff") + b"\xff\n\n"
    written = convert(tmp_path, content, encoding_errors="replace", workers=workers)
    assert "\ufffd\ufffd\ufffd句话。" in json.loads(written.splitlines()[0])["text"]
    assert "characters left out, 4 bytes replaced)" in capsys.readouterr().err


def test_build_vocab_replaces_bad_bytes_on_demand(tmp_path):
    (tmp_path / "raw.txt").write_bytes("我爱我\n".encode() + b"\xff\n")
    settings = {"input_path": f"{tmp_path}/raw.txt", "output_file": f"{tmp_path}/v.txt", "min_count": 1}
    with pytest.raises(InputError, match=r"raw\.txt:2: not UTF-8"):
        build_vocab(VocabConfig(**settings))
    build_vocab(VocabConfig(**settings, encoding_errors="replace"))
    assert "我" in (tmp_path / "v.txt").read_text("utf-8").split("\n")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le", "gb18030", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_encoding_of_a_text_is_found(tmp_path, encoding, end, capfd):
    lines, path = ["今天下雨，怎么开户", "", "ab 1", "明天会下雨吗"], tmp_path / "in.txt"
    path.write_bytes(end.join([*lines, "\x1a"]).encode(encoding))
    assert [line.decode() for line in read_lines(path)] == lines
    build_vocab(VocabConfig(input_path=str(path), output_file=str(tmp_path / "v.txt"), min_count=1))
    assert {"今", "雨"} <= set((tmp_path / "v.txt").read_text("utf-8").split("\n"))
    assert ("read as" in capfd.readouterr().err) == (encoding != "utf-8-sig")
    documents = list(map(json.loads, convert(tmp_path, path.read_bytes(), min_doc_length=0).splitlines()))
    assert "今天下雨" in documents[0]["text"] or "今天下雨" in documents[1]["text"]


def test_what_is_no_text_of_a_known_encoding_is_told(tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes("今天".encode("utf-16") + b"\x00")
    with pytest.raises(InputError, match=r"in\.txt: its last character is cut short"):
        list(read_lines(path))
    path.write_bytes("臺灣的天氣如何，怎麼開戶？請問銀行卡怎樣辦理".encode("big5"))  # GB18030 decodes it
    with pytest.raises(InputError, match=r"in\.txt is BIG5, .*iconv -f BIG5 -t UTF-8"):
        next(read_lines(path))


def test_one_damaged_byte_is_not_taken_for_another_encoding():
    text = "这一行是中文，只有一个字节坏了，后面还有很多很多"
    line = text.encode().replace("只".encode(), b"\x81\x8f\xaa")
    assert line.decode("gb18030")
    with pytest.raises(InputError, match="byte 22 of the line is 0x81.; fix the line$"):
        decoded("a", 1, line)
    with pytest.raises(InputError, match="looks like GB18030"):
        decoded("a", 1, text.encode("gb18030"))


VARIANTS = {
    "CRLF": lambda c: c.replace(b"\n", b"\r\n"),
    "byte-order mark": lambda c: b"\xef\xbb\xbf" + c,
    "no last line end": lambda c: c.rstrip(b"\n"),
}


@pytest.mark.parametrize("ending", PACKERS)
def test_line_ends_bom_and_compression_do_not_change_output(tmp_path, ending):
    wanted = {}
    for name, vary in {"plain": bytes, **VARIANTS}.items():
        found = make(tmp_path, PACKERS[ending](vary(GOOD * 3)), f"in.jsonl{ending}", overwrite=True)
        ids = sha256((tmp_path / "out_ids.npy").read_bytes()).hexdigest()
        raw = convert(tmp_path, PACKERS[ending](vary(RAW)), f"raw.txt{ending}", overwrite=True)
        assert (found, ids, raw) == wanted.setdefault("plain", (found, ids, raw)), name
    assert len(wanted["plain"][0]) == 3 and wanted["plain"][2].count(b"\n") == 2


def test_a_bom_split_over_zstd_frames_is_still_removed(tmp_path):
    frames = b"".join(zstandard.compress(bytes([byte])) for byte in b"\xef\xbb\xbf" + GOOD)
    assert make(tmp_path, frames, "in.zst") == [["我 爱 北 京"]]


# Long lines


def lines_with(monkeypatch, folder, content, max_bytes, chunk):
    monkeypatch.setattr(file_content, "CHUNK", chunk)
    (folder / "long").write_bytes(content)
    return list(read_lines(folder / "long", max_bytes=max_bytes))


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 10, 1 << 20])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("length", [9, 10, 11, 12, 13, 40])
def test_long_lines_are_detected_at_any_chunk_boundary(monkeypatch, tmp_path, chunk, end, length):
    content = b"ab" + end + b"x" * length + end + b"cd" + end
    first, middle, last = lines_with(monkeypatch, tmp_path, content, 10, chunk)
    assert (first, last) == (b"ab", b"cd")
    assert middle == b"x" * length if length <= 10 else len(middle) > 10


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_a_cr_within_a_long_line_does_not_shorten_it(monkeypatch, tmp_path, chunk):
    _, middle = lines_with(monkeypatch, tmp_path, b"a\n" + b"x" * 10 + b"\rxxxxx\n", 10, chunk)
    assert len(middle) > 10


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_line_above_the_limit_is_treated_as_a_bad_line(tmp_path, workers, ending):
    long = lines_of("我" * 400)
    content = PACKERS[ending](
        b"\xef\xbb\xbf" + (GOOD * 2000 + long + GOOD + b"oops\n").replace(b"\n", b"\r\n")
    )
    name, flags = f"in.jsonl{ending}", {"max_line_bytes": 1000, "workers": workers}
    with pytest.raises(InputError, match=rf"in\.jsonl{ending}:2001: the line is above 1000 bytes; cut it"):
        make(tmp_path, content, name, **flags)
    made = make(tmp_path, content, name, on_bad_line="skip", **flags)
    notes = [json.loads(line) for line in (tmp_path / "out.rejected.jsonl").read_bytes().splitlines()]
    assert [note["line"] for note in notes] == [2001, 2003] and len(made) == 2001
    assert notes[0]["reason"].startswith("the line is above 1000 bytes")


def test_a_line_of_exactly_the_limit_is_accepted(tmp_path):
    limit = len(GOOD) - 1
    assert len(make(tmp_path, GOOD * 2, max_line_bytes=limit)) == 2
    with pytest.raises(InputError, match=f":1: the line is above {limit - 1} bytes"):
        make(tmp_path, GOOD, max_line_bytes=limit - 1, overwrite=True)


def test_a_long_line_or_document_of_raw_text_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"raw\.txt:2: the line is above 60 bytes; cut it, or raise"):
        convert(tmp_path, b"a\n" + b"x" * 61 + b"\n", max_line_bytes=60)
    long_document = b"a\n\n" + (b"x" * 15 + b"\n") * 5
    with pytest.raises(InputError, match=r"raw\.txt:7: here the document grows above 60 bytes; split it"):
        convert(tmp_path, long_document, max_line_bytes=60)
    assert not list(tmp_path.glob("out*"))
    assert convert(tmp_path, (b"x" * 30 + b"\n") * 2 + b"\n" + (b"y" * 30 + b"\n") * 2, max_line_bytes=60)


@pytest.mark.parametrize("ending", PACKERS)
def test_a_line_of_200_million_bytes_takes_little_memory(tmp_path, ending):
    path = tmp_path / f"long{ending}"
    if ending == ".zst":
        path.write_bytes(zstandard.compress(bytes(200_000_000) + b"\nend"))
    elif ending == ".gz":
        with gzip.open(path, "wb", compresslevel=1) as file:
            for _ in range(200):
                file.write(bytes(1_000_000))
            file.write(b"\nend")
    else:
        with open(path, "wb") as file:
            file.seek(200_000_000)
            file.write(b"\nend")
    tracemalloc.start()
    try:
        lines = [(len(line), line[-3:]) for line in read_lines(path, max_bytes=1 << 20)]
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(lines) == 2 and lines[0][0] > 1 << 20 and lines[1] == (3, b"end")
    assert most < 60 << 20


def test_an_overlong_line_is_yielded_before_its_rest_is_read(tmp_path):
    path, read = tmp_path / "long.txt", []
    with open(path, "wb") as file:
        file.truncate(2 << 30)  # sparse: takes no disk space
    lines = read_lines(path, advance=read.append, max_bytes=1 << 20)
    assert len(next(lines)) > 1 << 20 and sum(read) < 4 << 20
    started = time.process_time()
    assert list(lines) == []
    assert sum(read) == 2 << 30 and time.process_time() - started < 10  # an earlier version copied 128 GiB


# Folders and files


def pipe(path):
    os.mkfifo(path)


def link_to_nothing(path):
    path.symlink_to(path.with_name("nothing"))


def link_to_itself(path):
    path.symlink_to(path)


@pytest.mark.parametrize("put", [pipe, link_to_nothing, link_to_itself])
def test_pipes_and_broken_links_are_not_silently_skipped(tmp_path, put):
    data = tmp_path / "data"
    data.mkdir()
    put(data / "b.jsonl")
    fault = "(not a file .*|links to .*nothing, which does not exist|a loop of links)"
    with pytest.raises(InputError, match=rf"b\.jsonl: {fault}; remove it$"):
        make(tmp_path, GOOD, "data/a.jsonl", input_path=str(data))
    (data / "b.jsonl").rename(data / "b.other")
    assert len(make(tmp_path, GOOD, "data/a.jsonl", input_path=str(data))) == 1


def test_a_folder_named_like_a_file_is_read_as_a_folder(tmp_path):
    (tmp_path / "data" / "b.jsonl").mkdir(parents=True)
    (tmp_path / "data" / "b.jsonl" / "c.jsonl").write_bytes(GOOD)
    (tmp_path / "data" / "b.jsonl" / "d.jsonl").mkdir()
    assert len(make(tmp_path, GOOD, "data/a.jsonl", input_path=str(tmp_path / "data"))) == 2


def refusing(path, real):
    """``real``, but failing for one path: root may read everything, so file modes would not do."""

    def call(first, *rest, **settings):
        if str(first) == str(path):
            raise PermissionError(13, "Permission denied")
        return real(first, *rest, **settings)

    return call


@pytest.mark.parametrize("tool", [make, convert])
def test_an_unreadable_file_is_reported(tmp_path, monkeypatch, capsys, tool):
    name = "in.jsonl" if tool is make else "raw.txt"
    (tmp_path / name).write_bytes(GOOD)
    monkeypatch.setattr("builtins.open", refusing(tmp_path / name, open))
    monkeypatch.setattr(Path, "write_bytes", lambda self, content: None)
    assert exit_code_of(lambda: tool(tmp_path, GOOD)) == 2
    message = rf"error: {tmp_path / name}: cannot be read (Permission denied); fix its permissions"
    assert capsys.readouterr().err.startswith(message)
    assert not list(tmp_path.glob("out*"))


def test_an_unreadable_folder_is_not_silently_skipped(tmp_path, monkeypatch):
    (tmp_path / "data" / "sub").mkdir(parents=True)
    (tmp_path / "data" / "a.jsonl").write_bytes(GOOD)
    monkeypatch.setattr(Path, "iterdir", refusing(tmp_path / "data" / "sub", Path.iterdir))
    with pytest.raises(InputError, match=r"data/sub: cannot be read \(Permission denied\)"):
        list_inputs(str(tmp_path / "data"), (".jsonl",))


def test_the_manifest_lists_only_files_with_known_extensions(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for name in ("b.txt", "c.json", "d.jsonl.bak", ".e.jsonl", "f.JSONL", "g.jsonl.draft"):
        (data / name).write_bytes(GOOD)
    make(tmp_path, GOOD, "data/a.jsonl", input_path=str(data))
    manifest = Corpus(tmp_path / "out").manifest
    assert [item["name"] for item in manifest["inputs"]] == ["a.jsonl", "c.json", "f.JSONL"]


@pytest.mark.parametrize(
    "name", ["a b", "it's", ";touch PWNED", "new\nline", "文本", os.fsdecode(b"\xff"), "$(id)"]
)
def test_raw_text_files_of_any_name_are_converted(tmp_path, name):
    (tmp_path / "raw").mkdir()
    output = {"output_path": str(tmp_path / name), "input_path": str(tmp_path / "raw")}
    (tmp_path / "raw" / f"{name}.txt").write_bytes(RAW)
    settings = {"no_shuffle": True, **output}
    trans_to_json(TransConfig(**settings))
    trans_to_json(TransConfig(**settings, no_merge=True))
    merged = (tmp_path / f"{name}.jsonl").read_bytes()
    assert merged == (tmp_path / f"{name}_{name}.txt.jsonl").read_bytes() and merged.count(b"\n") == 2
    assert not list(tmp_path.rglob("PWNED"))


# Interruptions of trans_to_json


def trans(folder, *flags, environment=(), **settings):
    words = ["--input_path", "raw.txt", "--output_path", "out", *flags]
    return subprocess.Popen(
        [sys.executable, "-m", "data_tools.trans_to_json", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **dict(environment)},
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


MANY = RAW * 60_000


def test_a_killed_conversion_leaves_no_output_and_can_be_rerun(tmp_path):
    (tmp_path / "raw.txt").write_bytes(MANY)
    assert trans(tmp_path).wait() == 0
    whole = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "out.jsonl").unlink()
    run = trans(tmp_path)
    until(lambda: list(tmp_path.glob(".out.jsonl.parts-*/0*")))
    run.kill()
    run.communicate()
    assert not list(tmp_path.glob("out*")) and len(list(tmp_path.glob(".out.jsonl.parts-*"))) == 1
    assert trans(tmp_path).wait() == 0
    assert (tmp_path / "out.jsonl").read_bytes() == whole and not list(tmp_path.glob("*.parts*"))


def test_locale_hash_seed_and_workers_do_not_change_the_json(tmp_path):
    (tmp_path / "raw.txt").write_bytes(RAW * 50)
    found = []
    for environment, workers in (
        ({"LANG": "C", "LC_ALL": "C", "PYTHONHASHSEED": "1"}, "1"),
        ({"PYTHONHASHSEED": "2", "PYTHONUTF8": "1"}, "1000"),
    ):
        assert trans(tmp_path, "--workers", workers, "--overwrite", environment=environment).wait() == 0
        found.append((tmp_path / "out.jsonl").read_bytes())
    assert found[0] == found[1] and found[0].count(b"\n") == 51


def test_a_full_disk_ends_the_conversion_without_output(tmp_path):
    (tmp_path / "raw.txt").write_bytes(MANY)
    limit = (1 << 20, 1 << 20)
    run = trans(tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    errors = run.communicate()[1]
    assert run.returncode == 5 and len(errors.splitlines()) == 1 and errors.startswith("error: ")
    assert not list(tmp_path.glob("out*"))


def test_a_second_conversion_to_the_same_output_is_refused(tmp_path):
    parts = tmp_path / own_name(".out.jsonl.parts")
    parts.mkdir()
    with locked(parts / "lock", seconds=0):
        with pytest.raises(MachineError, match=r"another process holds it; wait for that"):
            convert(tmp_path, RAW)
        assert parts.exists()
    assert convert(tmp_path, RAW).count(b"\n") == 2


def test_documents_without_known_tokens_are_counted(tmp_path, capsys):
    assert make(tmp_path, lines_of("我爱北京", "\u200b", "电")) == [["我 爱 北 京"], [TOKENS[-1]]]
    counts = Corpus(tmp_path / "out").manifest["counts"]
    assert (counts["empty_documents"], counts["unknown_tokens"], counts["documents"]) == (1, 1, 2)
    with pytest.raises(InputError, match="3 of 5 tokens are not in it; use the vocabulary"):
        make(tmp_path, lines_of("我爱电脑网"), overwrite=True)
    assert set(hashes(tmp_path)) == {"out_ids.npy", "out_idx.npz", "out.manifest.json"}
    assert "out.shards" not in leftovers(tmp_path)


# Lines that are skipped on demand

# The gap puts the first bad line and the later ones into different shards.
MIXED = b"".join([b"oops\n", b"\n", GOOD * 50_000, b"[]\n", lines_of(" "), GOOD, b'{"text": "abc'])


def rejected(tmp_path):
    return [json.loads(line) for line in (tmp_path / "out.rejected.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize(("line", "message"), BAD.values(), ids=BAD)
def test_a_skipped_bad_line_is_recorded(tmp_path, line, message):
    made = make(tmp_path, GOOD * 2 + line + b"\n" + GOOD, on_bad_line="skip")
    assert made == [["我 爱 北 京"]] * 3
    (note,) = rejected(tmp_path)
    assert (note["file"], note["line"]) == (str(tmp_path / "in.jsonl"), 3)
    assert re.match(message.split(": ", 1)[1], note["reason"])


@pytest.mark.parametrize("change", [*VARIANTS, *PACKERS])
@pytest.mark.parametrize("workers", [1, 2])
def test_line_numbers_are_the_same_in_every_file_format(tmp_path, change, workers):
    content = {**VARIANTS, **PACKERS}[change](MIXED)
    name = f"in.jsonl{change}" if change in PACKERS else "in.jsonl"
    make(tmp_path, content, name, on_bad_line="skip", workers=workers)
    notes = [(note["line"], note["reason"].split(",")[0].split(" {")[0]) for note in rejected(tmp_path)]
    assert notes == [(1, "not JSON"), (50_003, "a list"), (50_006, "not JSON")]


def test_every_line_is_counted_once(tmp_path, capsys):
    make(tmp_path, MIXED, on_bad_line="skip")
    manifest = Corpus(tmp_path / "out").manifest
    counts = manifest["counts"]
    names = ("lines", "blank_lines", "rejected_lines", "documents", "empty_documents")
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


def test_without_bad_lines_the_rejected_file_is_empty(tmp_path, capsys):
    make(tmp_path, GOOD, on_bad_line="skip", max_bad_lines=0)
    assert rejected(tmp_path) == [] and "replaced" not in capsys.readouterr().err


def test_overwriting_a_corpus_removes_its_rejected_file(tmp_path):
    make(tmp_path, GOOD + b"oops\n", on_bad_line="skip")
    with pytest.raises(InputError, match="exists; pass overwrite"):
        make(tmp_path, GOOD)
    make(tmp_path, GOOD, overwrite=True)
    assert not (tmp_path / "out.rejected.jsonl").exists()


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("on_bad_line", ["error", "skip"])
def test_a_truncated_compressed_file_is_always_refused(tmp_path, ending, on_bad_line):
    name, content = f"in.jsonl{ending}", PACKERS[ending](MIXED)
    with pytest.raises(InputError, match=rf"{name}: damaged or cut short, read \d+ bytes"):
        make(tmp_path, content[: len(content) // 2].ljust(20, b"\0")[:-9], name, on_bad_line=on_bad_line)
    assert leftovers(tmp_path) == [name]


def test_unusual_characters_do_not_end_a_line(tmp_path):
    odd = ["我\0爱", "我\x0b爱", "我\r爱", "我\u2028爱", "我\u0085爱", "我\u001e爱", "我\ufeff爱"]
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
    assert [one["name"] for one in Corpus(tmp_path / "out").manifest["inputs"]] == ["a.jsonl", "later.jsonl"]


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
