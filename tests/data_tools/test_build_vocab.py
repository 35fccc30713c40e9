"""A vocabulary made from text has ERNIE's layout and is the same every time."""

import gzip
import json

import pytest
import zstandard
from children import output_of

from data_tools.build_vocab import VocabConfig, build_vocab
from data_tools.corpus.shards import DocumentEncoder, EncodingRules
from data_tools.text.wordpiece import CONTROL_TOKENS, WordPiece, is_cjk
from ernie_pair.core.errors import InputError

TEXT = "我爱北京，我爱学习。\nLearning is fun, learning learns 2022 2022.\n我的Learner学习\n罕\n"


def make(tmp_path, content=TEXT, name="text.txt", **flags):
    source = tmp_path / name
    source.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    build_vocab(VocabConfig(input_path=str(source), output_file=str(tmp_path / "vocab.txt"), **flags))
    return WordPiece.from_file(tmp_path / "vocab.txt")


def test_the_layout_is_that_of_ernie(tmp_path):
    tokenizer = make(tmp_path)
    tokens, vocab = tokenizer.tokens, tokenizer.vocab
    assert tuple(tokens[:4]) == CONTROL_TOKENS[:4] and tokens[-1] == "[UNK]"
    assert len(vocab) == len(tokens) and {"learn", "2022"} <= set(vocab)
    characters = [token for token in tokens if len(token) == 1 and is_cjk(token)]
    twins = [tokens[tokenizer.continuation_ids[vocab[character]]] for character in characters]
    assert characters and twins == [f"##{character}" for character in characters]


def test_characters_are_ordered_by_frequency(tmp_path):
    tokens = make(tmp_path, "乙乙乙甲甲甲甲丙丙\n" * 2).tokens
    assert tokens[4:7] == ["甲", "乙", "丙"]


def test_characters_rarer_than_min_count_have_no_token(tmp_path):
    assert "罕" not in make(tmp_path).vocab
    tokenizer = make(tmp_path, min_count=1, overwrite=True)
    assert {"罕", "l", "##l", "2", "##2", "，"} <= set(tokenizer.vocab) and "##，" not in tokenizer.vocab
    assert tokenizer.unk_id not in tokenizer.encode(TEXT)


@pytest.mark.parametrize("vocab_size", [6, 9, 20, 45, 1000])
def test_the_vocabulary_never_exceeds_the_requested_size(tmp_path, vocab_size):
    assert make(tmp_path, vocab_size=vocab_size).vocab_size <= vocab_size


@pytest.mark.parametrize("name", ["docs.json", "docs.zst", "docs.gz", "docs.txt"])
def test_json_lines_of_any_name_make_the_same_vocabulary(tmp_path, name):
    content = "\n \n" + "".join(f'{{ "text": "{line}"}}\n' for line in TEXT.splitlines())
    pack = {"docs.zst": zstandard.compress, "docs.gz": gzip.compress}.get(name, bytes)
    packed = make(tmp_path, pack(content.encode()), name).tokens
    assert packed == make(tmp_path, overwrite=True).tokens
    flags = {"json_key": "body", "workers": 2, "overwrite": True}
    assert make(tmp_path, json.dumps({"body": TEXT}) + "\n", "text.jsonl", **flags).tokens == packed


def test_text_that_begins_with_a_brace_stays_text(tmp_path):
    assert "{" in make(tmp_path, "{{引用}}我\n" * 3).vocab


def test_every_process_makes_the_same_bytes(tmp_path):
    words = " ".join(f"{a}{b}{c}" for a in "abcd" for b in "efgh" for c in "ijkl")
    expected = make(tmp_path, f"{words}\n{words}\n").sha256
    program = (
        "import sys; from data_tools.build_vocab import *;"
        "build_vocab(VocabConfig(input_path=sys.argv[1], output_file=sys.argv[2]))"
    )
    for number in range(3):
        output = tmp_path / f"{number}.txt"
        output_of("-c", program, tmp_path / "text.txt", output)
        assert WordPiece.from_file(output).sha256 == expected


@pytest.mark.parametrize(("content", "name", "message"), [
    ("", "text.txt", "no text; give"),
    (b"ok\n\xff\n", "text.txt", r"text\.txt:2: not UTF-8"),
    ('{"text": "a"}\n{"txt": "b"}\n', "text.jsonl", r"text\.jsonl:2: no key 'text', it has txt"),
])  # fmt: skip
def test_bad_text_is_reported_and_leaves_no_output(tmp_path, content, name, message):
    with pytest.raises(InputError, match=message):
        make(tmp_path, content, name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


TWINLESS = [*CONTROL_TOKENS, "我", "##爱", "爱", "，", "a", "##a", "$", "$", "北", "[UNUSED]"]


def add_twins(folder, tokens, **flags):
    source = folder / "plain.txt"
    source.write_bytes("".join(token + "\n" for token in tokens).encode("utf-8"))
    build_vocab(VocabConfig(add_twins_to=str(source), output_file=str(folder / "vocab.txt"), **flags))
    return WordPiece.from_file(folder / "vocab.txt")


def test_missing_chinese_twins_are_appended(tmp_path, capsys):
    assert add_twins(tmp_path, TWINLESS).tokens == [*TWINLESS, "##我", "##北"]
    told = capsys.readouterr().err
    assert f"the {len(TWINLESS)} tokens of" in told and "2 '##' twins" in told and told.count("\n") == 1


def test_added_twins_mark_words_and_keep_the_model_input_ids(tmp_path):
    without = [token for token in TWINLESS if token != "##爱"]
    plain = WordPiece(without)
    twinned = add_twins(tmp_path, without)
    rules = {"segmenter": None, "separator": " "}
    with pytest.raises(InputError, match=r"plain\.txt has no '##' twin"):
        DocumentEncoder(EncodingRules(str(tmp_path / "plain.txt"), **rules))
    ids = DocumentEncoder(EncodingRules(str(tmp_path / "vocab.txt"), **rules)).encode(["我爱 北 a"]).ids
    assert [twinned.tokens[i] for i in ids] == ["我", "##爱", "北", "a"]
    assert twinned.base_ids[ids].tolist() == plain.encode("我爱 北 a")
    assert twinned.base_ids.max() < plain.vocab_size


@pytest.mark.parametrize(("tokens", "reason"), [
    ([*CONTROL_TOKENS, "我", "##我", "a"], "no Chinese character without a '##' twin"),
    (["[PAD]", "[CLS]", "[SEP]", "[UNK]"], r"no \[MASK\] among its 4 tokens"),
])  # fmt: skip
def test_a_vocabulary_that_takes_no_twins_is_refused(tmp_path, tokens, reason):
    with pytest.raises(InputError, match=rf"plain\.txt: {reason}"):
        add_twins(tmp_path, tokens)
    assert not (tmp_path / "vocab.txt").exists()


def test_text_or_a_vocabulary_is_needed():
    with pytest.raises(InputError, match="give input_path .* or add_twins_to .*, one of the two"):
        VocabConfig(output_file="b")
