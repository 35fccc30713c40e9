"""Characters after the first of each word become '##' continuations, at their places in the text."""

import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools.text import words as chinese_words
from data_tools.text.wordpiece import WordPiece
from data_tools.text.words import in_one_word, mark_words, presegmented, segmenter, word_begins
from ernie_pair.core.errors import InputError

CHARACTERS = list("我爱北京天安门，恤") + ["t", "ok", "2022", "##k", "a"]
TWINS = ["##" + c for c in "我爱北京天安门"]
PIECES = WordPiece(["[PAD]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS, *TWINS, "[UNK]"])


def mark(*words):
    tokenizer = PIECES.tokenize("".join(words))
    marked = mark_words(word_begins(words), tokenizer.ids, tokenizer.starts, PIECES.continuation_ids)
    assert marked.dtype == np.int32
    return " ".join(PIECES.tokens[i] for i in marked)


MARKED = {  # words, separated by /, and their pieces
    "the second and later characters": ("我/爱/北京/天安门", "我 爱 北 ##京 天 ##安 ##门"),
    "repeated ones only within a word": ("北京/，/北/京", "北 ##京 ， 北 京"),
    "a word of any length": ("北京天安门我爱北京", "北 ##京 ##天 ##安 ##门 ##我 ##爱 ##北 ##京"),
    "an unknown one splits no word": ("北/我㐀京", "北 我 [UNK] ##京"),
    "one without a twin is unchanged": ("T恤/我T恤", "t 恤 我 t 恤"),
    "after a letter": ("A京", "a ##京"),
    "a dropped one joins no words": ("我/\u200b北京", "我 北 ##京"),
    "an empty text": ("", ""),
}


@pytest.mark.parametrize("words, pieces", MARKED.values(), ids=MARKED)
def test_characters_inside_words_are_marked(words, pieces):
    assert mark(*words.split("/")) == pieces


@pytest.mark.parametrize("stranger", ["㐀", "OK", "２０２２", " ", "\u200b", "🙂", "2022 ok", "e\u0301"])
def test_other_text_between_words_does_not_shift_the_marks(stranger):
    assert mark(stranger, "北京", stranger, "天安门").count("北 ##京") == 1
    assert mark(stranger, "北京", stranger, "天安门").endswith("天 ##安 ##门")


WORDS = st.lists(st.text(alphabet="我爱北京天安门，恤a2 㐀\u0301\u200b", min_size=1, max_size=5), max_size=8)


@settings(max_examples=200, deadline=None)
@given(WORDS)
def test_removing_the_marks_restores_the_plain_token_ids(words):
    tokenizer = PIECES.tokenize("".join(words))
    marked = mark_words(word_begins(words), tokenizer.ids, tokenizer.starts, PIECES.continuation_ids)
    twins = np.flatnonzero(marked != tokenizer.ids)
    assert np.array_equal(PIECES.base_ids[marked[twins]], tokenizer.ids[twins])


@pytest.mark.parametrize("name", ["rjieba", "jieba"])
@pytest.mark.parametrize(
    "text", ["我爱北京天安门，OK! 1.5元", " 空格　和\t制表 ", "", "Ｑ＆Ａ🙂é\u200b\x00㐀"]
)
def test_segmented_words_join_back_to_the_text(name, text):
    pytest.importorskip(name)
    assert "".join(segmenter(name)(text)) == text


LAC = """
import paddle.fluid as fluid
from paddle.fluid.core import CUT

class LAC:
    def __init__(self, mode):
        self.cut = {"seg": CUT}[mode]

    def run(self, text):
        assert isinstance(text, str)
        return fluid.core.CUT(text)
"""


@pytest.fixture
def fake_lac(tmp_path, monkeypatch):
    """A fake LAC and a fake Paddle that cuts text into pairs of characters; tests may replace the cut."""
    (tmp_path / "LAC.py").write_text(LAC)
    monkeypatch.syspath_prepend(tmp_path)
    core = SimpleNamespace(CUT=lambda text: re.findall("..?", text))
    monkeypatch.setitem(sys.modules, "paddle", ModuleType("paddle"))
    monkeypatch.setitem(sys.modules, "paddle.base", SimpleNamespace(core=core))
    monkeypatch.setitem(sys.modules, "LAC", None)
    monkeypatch.delitem(sys.modules, "LAC")
    monkeypatch.setenv("GLOG_minloglevel", "0")
    chinese_words.segmenter.cache_clear()
    yield core
    chinese_words.segmenter.cache_clear()


def test_lac_segments_each_line_separately(fake_lac):
    words = segmenter("lac")("我爱北\n\n京 天安\n")
    assert words == ["我爱", "北", "\n", "\n", "京 ", "天安", "\n"]
    assert "paddle.fluid" not in sys.modules


def test_long_lines_are_split_before_lac_segments_them(fake_lac):
    lengths = []

    def cut(text):
        lengths.append(len(text))
        return [text]

    fake_lac.CUT = cut
    assert "".join(segmenter("lac")("我" * 25_000)) == "我" * 25_000
    assert lengths == [10_000, 10_000, 5_000]


def test_lac_output_that_alters_the_text_is_an_error(fake_lac):
    fake_lac.CUT = str.split
    with pytest.raises(InputError, match="lac alters the text that it cuts; choose another cn_seg_func"):
        segmenter("lac")("我 爱")


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [("jieba", "jieba", "jieba"), ("lac", "LAC", "--no-deps lac"), ("lac", "paddle.base", "--no-deps lac")],
)
def test_a_missing_segmenter_error_says_how_to_install_it(fake_lac, monkeypatch, name, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    chinese_words.segmenter.cache_clear()
    with pytest.raises(InputError, match=rf"{name} is not installed .*{module}.*; pip install {package},"):
        segmenter(name)


def words_given(separator, text):
    plain, begins = presegmented(separator)(text)
    places = np.flatnonzero(begins).tolist()
    assert places[0] == 0 and places[-1] == len(plain) == len(begins) - 1
    return [plain[begin:end] for begin, end in zip(places, places[1:])]


@pytest.mark.parametrize(("text", "words"), [
    ("我 爱 北京", ["我", "爱", "北京"]),
    ("我 爱 deep learning 2.0 版", ["我", "爱", "deep", " ", "learning", " ", "2.0", "版"]),
    ("你好 , world !", ["你好", ",", "world", "!"]),
    ("  我  爱 ", ["我", "爱"]),
    ("ok \n a  b\n\n我", ["ok", "\n", "a", " ", "b", "\n", "\n", "我"]),
    ("", []),
])  # fmt: skip
def test_presegmented_text_keeps_spaces_only_where_needed(text, words):
    assert words_given(" ", text) == words


def test_presegmented_text_may_use_any_separator():
    assert words_given("/ ", "我/ hello/ world/ 爱") == ["我", "hello", " ", "world", "爱"]
    assert words_given("/ ", "\ue000/ /a/ b") == ["\ue000", "/a", " ", "b"]
    assert words_given("a\n", "ba\nc") == ["ba", "\n", "c"]


@pytest.mark.parametrize("separator", [" ", "a", "\n", "a ", "aa", "\n\n"])
@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="我㐀a2 é，\n\u0660", max_size=12))
def test_presegmented_words_match_a_naive_implementation(separator, text):
    lines = [list(filter(None, line.split(separator))) for line in text.split("\n")]
    words = []
    for line in lines:
        for before, word in zip(["，", *line], line):
            words += [" ", word] if in_one_word(before[-1], word[0]) else [word]
        words.append("\n")
    assert words_given(separator, text) == words[:-1]
