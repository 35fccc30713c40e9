"""JSON lines become a corpus, the same for any number of workers, or a one-line error and no output."""

import gzip
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
import zstandard
from bad_json_lines import BAD
from places import ROOT
from tiny_corpus import TOKENS, command, documents, hashes, leftovers, lines_of, make

from data_tools.corpus.format import Corpus
from data_tools.corpus.shards import CHINESE_END, LATIN_END, LINE_END, DocumentEncoder, EncodingRules
from data_tools.create_pretraining_data import CreateConfig, rules_of
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError
from ernie_pair.core.process_pool import ordered_map

WORDS = {"chinese": True, "cn_whole_word_segment": True}
SPLIT = {**WORDS, "cn_splited": True}

OF_LANGUAGE = ("chinese", "split_sentences", "cn_whole_word_segment")  # that the text can decide


CHINESE, BOTH = {"chinese": True}, {"split_sentences": True}
SLASH = {**SPLIT, "cn_split_dimer": "/"}
TEXTS = [  # flags, a text, its sentences
    ({}, "我爱。北京\n天安门", ["我 爱 。 北 京", "天 安 门"]),
    (CHINESE, "我爱。北京！天", ["我 爱 。", "北 京 ！", "天"]),
    (CHINESE, "“我爱。”北京！”天", ["“ 我 爱 。 ”", "北 京 ！ ”", "天"]),
    (CHINESE, "我。。。爱", ["我 。 。 。", "爱"]),
    (CHINESE, "我 1.2 爱\n\n北 ok? Hello", ["我 1 . 2 爱", "北 ok ? hello"]),
    (BOTH, "ok? Hello world. 1.2 A. Hello ok.我", ["ok ?", "hello world .", "1 . 2 a . hello ok . 我"]),
    ({**WORDS, "cn_seg_func": "rjieba"}, "我爱天安门。OK学习", ["我 爱 天 ##安 ##门 。", "ok 学 ##习"]),
    ({**WORDS, "cn_seg_func": "jieba"}, "我爱天安门。OK学习", ["我 爱 天 ##安 ##门 。", "ok 学 ##习"]),
    (SPLIT, "我 爱 北京 。\n天 安门 hello world 12", ["我 爱 北 ##京 。", "天 安 ##门 hello world 1 ##2"]),
    (SLASH, "我/爱/北京。天/安门/hello/world/12", ["我 爱 北 ##京 。", "天 安 ##门 hello world 1 ##2"]),
]


@pytest.mark.parametrize(("flags", "text", "sentences"), TEXTS)
def test_a_text_is_split_into_sentences_and_words(tmp_path, vocab_file, flags, text, sentences):
    pytest.importorskip(flags.get("cn_seg_func", "rjieba"))
    assert make(tmp_path, lines_of(text, "学"), **flags) == [sentences, ["学"]]


CHOSEN = [  # a text, what follows from it, its sentences
    ("我爱天安门。OK学习\n爱", (True, True, True), ["我 爱 天 ##安 ##门 。", "ok 学 ##习", "爱"]),
    (
        "ok? Hello world. Hello ok 我。爱",
        (False, True, False),
        ["ok ?", "hello world .", "hello ok 我 。", "爱"],
    ),
]


@pytest.mark.parametrize(("text", "chosen", "sentences"), CHOSEN, ids=["Chinese", "English"])
def test_without_flags_the_text_decides_how_it_is_split(
    tmp_path, vocab_file, text, chosen, sentences, capsys
):
    pytest.importorskip("rjieba")
    content, unset = lines_of(text, "我爱" if chosen[0] else "ok"), dict.fromkeys(OF_LANGUAGE)
    assert make(tmp_path, content, **unset)[0] == sentences
    line, *_ = capsys.readouterr().err.splitlines()
    flags = dict(zip(OF_LANGUAGE, chosen))
    said = " ".join(f"--{name} {str(value).lower()}" for name, value in flags.items())
    assert re.fullmatch(rf".*in.jsonl: \d+% of the words .* so {said}; give these flags .*", line), line
    before = hashes(tmp_path)
    arguments = Corpus(tmp_path / "out").manifest["arguments"]
    assert {name: arguments[name] for name in OF_LANGUAGE} == flags
    # One that is made with these flags is the same, and is not made again.
    make(tmp_path, content, **unset)
    make(tmp_path, content, **flags)
    assert capsys.readouterr().err.count("nothing to do") == 2 and hashes(tmp_path) == before
    make(tmp_path, content, overwrite=True, **flags)
    assert "words looked at" not in capsys.readouterr().err and hashes(tmp_path) == before


@pytest.mark.parametrize("name", OF_LANGUAGE[:2])
@pytest.mark.parametrize("value", [True, False])
def test_one_flag_of_the_language_leaves_the_others_false(tmp_path, vocab_file, name, value, capsys):
    make(tmp_path, lines_of("我爱北京。天安门", "学"), **{**dict.fromkeys(OF_LANGUAGE), name: value})
    arguments = Corpus(tmp_path / "out").manifest["arguments"]
    assert {key: arguments[key] for key in OF_LANGUAGE} == {**dict.fromkeys(OF_LANGUAGE, False), name: value}
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_words_are_marked_where_the_vocabulary_can_mark_them(tmp_path, vocab_file, capsys):
    plain = write(tmp_path / "plain.txt", "\n".join(t for t in TOKENS if t[:2] != "##").encode())
    unset = dict.fromkeys(OF_LANGUAGE)
    assert make(tmp_path, lines_of("我爱。北京"), vocab_file=str(plain), **unset)
    said = capsys.readouterr().err
    assert "--cn_whole_word_segment false (" in said and "plain.txt has no '##' twins" in said


def test_rejected_lines_of_a_corpus_are_not_read_as_input(tmp_path, vocab_file):
    (tmp_path / "raw").mkdir()
    flags = {"output_prefix": str(tmp_path / "raw" / "c1"), "on_bad_line": "skip"}
    assert make(tmp_path, lines_of("我爱") + b"no\n", "raw/in.jsonl", **flags) == [["我 爱"]]
    assert (tmp_path / "raw" / "c1.rejected.jsonl").exists()
    assert make(tmp_path, lines_of("学习"), "raw/in.jsonl", input_path=str(tmp_path / "raw")) == [["学 习"]]


@pytest.mark.parametrize("name", ["out.rejected.jsonl", "out_marks.npy"])
def test_a_users_file_that_is_not_written_is_not_deleted(tmp_path, vocab_file, name):
    (tmp_path / name).write_text("mine")
    for text in ("我爱", "学习"):
        make(tmp_path, lines_of(text), overwrite=True)
        assert (tmp_path / name).read_text() == "mine"


def test_a_corpus_of_standard_input_names_no_temporary_file(tmp_path, vocab_file):
    made = []
    for _ in range(2):
        words = command("--on_bad_line", "skip", "--overwrite", "true", input_path="-")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        content = lines_of("我爱") + b"no\n"
        subprocess.run(words, cwd=tmp_path, env=environment, input=content, check=True, timeout=120)
        rejected = json.loads((tmp_path / "out.rejected.jsonl").read_text())
        made.append((rejected["file"], (tmp_path / "out.manifest.json").read_bytes()))
    assert made[0] == made[1] and made[0][0] == "standard input"
    assert json.loads(made[0][1])["arguments"]["input_path"] == "-"


def test_a_separator_that_occurs_nowhere_is_refused(tmp_path, vocab_file):
    with pytest.raises(InputError, match="in.jsonl: cn_split_dimer='/' occurs nowhere, so every line"):
        make(tmp_path, lines_of("我爱 北京", "学习"), **SLASH)
    assert leftovers(tmp_path) == []
    tabs = lines_of("我爱\t北京", "学习")
    assert make(tmp_path, tabs, cn_split_dimer="\t", **SPLIT) == [["我 ##爱 北 ##京"], ["学 ##习"]]


@pytest.mark.parametrize("given", [{"cn_seg_func": "rjieba"}, {"cn_splited": True, "cn_split_dimer": "/"}])
def test_lexicon_words_override_any_other_word_boundaries(tmp_path, vocab_file, given, capsys):
    words = write(tmp_path / "words.txt", "爱北京\tentity\t2\n天安门学习\n门学".encode())
    text = (
        "我爱北京天安门学习。天安门。我爱北京"
        if "cn_seg_func" in given
        else "我爱/北京/天安门/学习。/天安门。/我/爱北/京"
    )
    flags = {**WORDS, "user_lexicon": str(words), **given}
    assert make(tmp_path, lines_of(text), **flags) == [
        ["我 爱 ##北 ##京 天 ##安 ##门 ##学 ##习 。", "天 ##安 ##门 。", "我 爱 ##北 ##京"]
    ]
    assert Corpus(tmp_path / "out").manifest["counts"]["lexicon_words"] == 3
    assert "3 words of the lexicon" in capsys.readouterr().err


def test_a_lexicon_word_does_not_cross_a_sentence_end(tmp_path, vocab_file):
    words = write(tmp_path / "words.txt", "北京。天安门".encode())
    flags = {**WORDS, "user_lexicon": str(words)}
    assert make(tmp_path, lines_of("北京。天安门"), **flags) == [["北 ##京 。", "天 ##安 ##门"]]


def test_a_bad_lexicon_is_reported_and_leaves_no_output(tmp_path, vocab_file):
    words = write(tmp_path / "words.txt", "北京\n天安门\tplace".encode())
    flags = {**WORDS, "user_lexicon": str(words)}
    with pytest.raises(InputError, match=r"words\.txt:2: the kind 'place' is not known"):
        make(tmp_path, lines_of("北京"), **flags)
    assert leftovers(tmp_path) == ["words.txt"]


def test_a_long_sentence_is_cut_between_words_and_counted(tmp_path, vocab_file, capsys):
    flags = {**SPLIT, "max_sentence_length": 4}
    content = lines_of("我 爱 北京 天安门 学习", "我爱北京天安门")
    expected = [["我 爱 北 ##京", "天 ##安 ##门", "学 ##习"], ["我 ##爱 ##北 ##京", "##天 ##安 ##门"]]
    assert make(tmp_path, content, **flags) == expected
    assert "2 sentences cut at 4" in capsys.readouterr().err


def test_empty_documents_and_blank_lines_are_counted(tmp_path, vocab_file, capsys):
    content = lines_of("我", " \u200b ", "爱\n京") + b"\n  \n" + lines_of("")
    assert make(tmp_path, content) == [["我"], ["爱", "京"]]
    counts = Corpus(tmp_path / "out").manifest["counts"]
    parts = ("lines", "blank_lines", "documents", "empty_documents", "one_sentence_documents")
    assert [counts[part] for part in parts] == [6, 2, 2, 2, 1]
    assert "2 documents from 6 lines (2 blank, 2 without text, 1 of one sentence)" in capsys.readouterr().err


def test_a_control_token_in_the_text_never_becomes_its_id(tmp_path, vocab_file):
    make(tmp_path, lines_of("我爱北京[SEP]天安门[MASK]我爱学习[PAD]学习"))
    assert Corpus(tmp_path / "out").ids.min() > 3


def test_plain_and_compressed_files_are_read_in_order(tmp_path, vocab_file):
    (tmp_path / "data" / "sub").mkdir(parents=True)
    (tmp_path / "data" / "b.jsonl.gz").write_bytes(gzip.compress(lines_of("爱")))
    (tmp_path / "data" / "sub" / "c.jsonl.zst").write_bytes(zstandard.compress(lines_of("北")))
    (tmp_path / "data" / "notes.txt").write_text("no")
    made = make(tmp_path, lines_of("我"), "data/a.jsonl", input_path=str(tmp_path / "data"))
    assert made == [["我"], ["爱"], ["北"]]
    inputs = Corpus(tmp_path / "out").manifest["inputs"]
    assert {item["name"]: item["documents"] for item in inputs} == dict.fromkeys(
        ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst"), 1
    )


def write(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(("line", "message"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("place", [1, 4, 7])
def test_a_bad_line_is_reported_and_leaves_no_output(tmp_path, vocab_file, line, message, place):
    good = [lines_of("我爱北京")] * 6
    content = b"".join([*good[: place - 1], line + b"\n", *good[place - 1 :]])
    with pytest.raises(InputError, match=rf"in\.jsonl:{place}{message}"):
        make(tmp_path, content)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz", "in.zst"])
def test_several_workers_report_the_same_first_bad_line(tmp_path, vocab_file, name):
    lines = [lines_of("我爱北京" * 500)] * 1000
    lines[777], lines[901] = b"oops\n", b"[]\n"
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(Path(name).suffix, bytes)
    messages = []
    for workers in (1, 2):
        with pytest.raises(InputError) as caught:
            make(tmp_path, pack(b"".join(lines)), name, workers=workers)
        messages.append(str(caught.value))
    assert f"{name}:778:1: not JSON" in messages[0] and messages[0] == messages[1]
    assert set(leftovers(tmp_path)) <= {name}


@pytest.mark.parametrize("content", [b"", b"\n\n", lines_of(""), lines_of(" \u200b")])
def test_an_input_without_text_is_refused(tmp_path, vocab_file, content):
    with pytest.raises(InputError, match="no tokens to write; give an input that contains text"):
        make(tmp_path, content)
    assert leftovers(tmp_path) == []


def test_errors_give_one_line_and_exit_code_2(tmp_path, vocab_file, capsys):
    assert exit_code_of(lambda: make(tmp_path, b'{"text"\n: 1}')) == 2
    assert exit_code_of(lambda: make(tmp_path, b"", input_path=str(tmp_path / "no\nfile"))) == 2
    errors = capsys.readouterr().err.split("\n")
    assert len(errors) == 3 and all(line.startswith("error: ") and ";" in line for line in errors[:2])


def test_bad_input_keeps_the_corpus_that_it_would_overwrite(tmp_path, vocab_file):
    make(tmp_path, lines_of("我"))
    with pytest.raises(InputError, match="not JSON"):
        make(tmp_path, b"oops", overwrite=True)
    assert documents(tmp_path / "out") == [["我"]]


def test_the_vocabulary_may_come_from_a_model_folder(tmp_path, vocab_file):
    assert make(tmp_path, lines_of("我"), model_name=str(tmp_path / "model")) == [["我"]]
    with pytest.raises(InputError, match="model_name ernie-1.0 is not a folder with a vocab.txt"):
        make(tmp_path, lines_of("我"), model_name="ernie-1.0", overwrite=True)


def test_words_cannot_be_marked_without_twins(tmp_path):
    path = write(tmp_path / "plain.txt", "\n".join([*TOKENS[:25], "[UNK]"]).encode("utf-8"))
    with pytest.raises(InputError, match=r"plain\.txt has no '##' twin"):
        DocumentEncoder(EncodingRules(str(path), segmenter="rjieba"))


def test_every_flag_of_the_recipe_has_an_effect():
    def rules(**flags):
        return rules_of(CreateConfig(input_path="a", output_prefix="b", vocab_file="v", **flags))

    assert rules() == EncodingRules("v")
    assert rules(split_sentences=True).ends == f"{LINE_END}|{CHINESE_END}|{LATIN_END}"
    words = WORDS
    assert rules(**words).segmenter == "rjieba" and rules(cn_seg_func="jieba", **words).segmenter == "jieba"
    given = rules(cn_splited=True, cn_split_dimer="/", max_sentence_length=9, **words)
    assert (given.segmenter, given.separator, given.max_sentence_length) == (None, "/", 9)


def test_progress_lines_appear_only_with_log_interval(tmp_path, vocab_file, capsys):
    make(tmp_path, lines_of("我", "爱"), log_interval=1)
    assert capsys.readouterr().err.startswith("2 documents\n")
    make(tmp_path, lines_of("我", "爱"), overwrite=True)
    assert len(capsys.readouterr().err.splitlines()) == 1


def die(item):
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_a_killed_worker_gives_exit_code_5(capsys):
    assert exit_code_of(lambda: list(ordered_map(die, range(9), workers=2)) and 0) == 5
    assert capsys.readouterr().err.startswith("error: a worker died")
