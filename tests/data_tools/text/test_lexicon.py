"""The words of a user's lexicon are found in the text and kept whole."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools.text.words import Lexicon, LexiconEntry, word_begins
from ernie_pair.core.errors import InputError


def lexicon(*words, **kinds):
    return Lexicon(
        {**dict.fromkeys(words, LexiconEntry()), **{word: LexiconEntry(kind) for word, kind in kinds.items()}}
    )


def cut(lexicon, *words):
    """The words of the text when those of the lexicon are kept whole."""
    text, begins = "".join(words), word_begins(words)
    lexicon.keep_whole(begins, lexicon.find(text))
    places = np.flatnonzero(begins).tolist()
    return [text[begin:end] for begin, end in zip(places, places[1:])]


def read(tmp_path, content, name="words.txt"):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return Lexicon.from_file(tmp_path / name)


KEPT = {  # words of the lexicon, of the text, and what it is cut into
    "over other boundaries": ("京天安", "我爱/北京/天安门", "我爱/北/京天安/门"),
    "without any": ("学习", "我爱/北京", "我爱/北京"),
    "longest from the left": ("北京/北京大学/大学生/学生", "北/京/大/学/生/北/京", "北京大学/生/北京"),
    "every occurrence": ("北京", "北/京/北/京/我/北/京", "北京/北京/我/北京"),
    "one of one character": ("北/北京", "我北/北京北", "我/北/北京/北"),
    "case": ("GPT模型", "我/G/p/t/模/型/了", "我/Gpt模型/了"),
    "width": ("gpt模型", "我/Ｇ/ＰＴ模/型/了", "我/ＧＰＴ模型/了"),
    "not inside a Latin word": ("ok/5g网络", "book/ /ok3/ ok/北5g网络", "book/ /ok3/ /ok/北/5g网络"),
    "with spaces": ("deep learning", "用/deep/ /learning/了", "用/deep learning/了"),
    "with symbols": ("c++", "和/C/++/写", "和/C++/写"),
    "after longer lower case": ("北京", "İ/北/京", "İ/北京"),
}


@pytest.mark.parametrize("entries, words, expected", KEPT.values(), ids=KEPT)
def test_words_of_the_lexicon_are_kept_whole(entries, words, expected):
    assert cut(lexicon(*entries.split("/")), *words.split("/")) == expected.split("/")
    assert lexicon("5g网络").find("15g网络") == [] and cut(lexicon("学习")) == []


def test_words_of_kind_character_are_split_into_characters():
    assert cut(lexicon("天安门", 北京="character"), "我北京", "天", "安门") == ["我", "北", "京", "天安门"]


def test_case_matching_does_not_depend_on_the_context():
    words = lexicon("ΑΣ")
    for text, found in (("ΑΣ", "ΑΣ"), ("İ ας", "ας"), ("ασ。İ", "ασ")):
        assert [text[start:end] for start, end, _ in words.find(text)] == [found]


def test_each_piece_carries_the_mark_of_its_lexicon_entry():
    words = Lexicon(
        {"北京": LexiconEntry("entity", 2.0), "安": LexiconEntry(), "门天": LexiconEntry("entity", 2.0)}
    )
    assert words.marks == [LexiconEntry("entity", 2.0), LexiconEntry()]
    found = words.find("北京天安门天")
    assert words.find_marks(np.array([0, 1, 2, 3, 4, 5]), found).tolist() == [1, 1, 0, 2, 1, 1]
    assert words.find_marks(np.array([1, 2, 5]), found).tolist() == [1, 0, 1]
    assert words.find_marks(np.array([0, 1]), []).tolist() == [0, 0]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text("甲乙丙", min_size=1, max_size=4), min_size=1, max_size=5),
    st.lists(st.text("甲乙丙a", min_size=1, max_size=5), max_size=6),
)
def test_cut_words_join_to_the_text_and_include_all_matches(entries, words):
    known, text = lexicon(*entries), "".join(words)
    kept = cut(known, *words)
    found = [text[start:end] for start, end, _ in known.find(text)]
    assert "".join(kept) == text
    assert all(kept.count(word) >= found.count(word) for word in found)
    assert found == by_hand(known.entries, text)


def by_hand(entries, text):
    found, place = [], 0
    while place < len(text):
        fits = [word for word in entries if text.startswith(word, place)]
        if fits:
            found.append(max(fits, key=len))
        place += len(found[-1]) if fits else 1
    return found


def test_a_line_may_give_kind_and_weight(tmp_path):
    content = "\ufeff北京大学\tentity\t2.5\r\n\r\n 自然语言 \n甲乙\tcharacter\n丙\t\t0\n自然语言\n"
    assert read(tmp_path, content).entries == {
        "北京大学": LexiconEntry("entity", 2.5),
        "自然语言": LexiconEntry("phrase", 1.0),
        "甲乙": LexiconEntry("character", 1.0),
        "丙": LexiconEntry("phrase", 0.0),
    }
    assert read(tmp_path, gzip.compress("北京".encode()), "words.gz").find("在北京")[0][:2] == (1, 3)


@pytest.mark.parametrize(("line", "message"), [
    ("京\tperson", "the kind 'person' is not known; write character, phrase, entity"),
    ("京\tentity\theavy", "the weight 'heavy' is not a number of 0 or more"),
    ("京\tentity\t-1", "the weight '-1' is not"),
    ("京\tentity\tnan", "the weight 'nan' is not"),
    ("京\tentity\tinf", "the weight 'inf' is not"),
    ("京\tentity\t1\t2", "not a word, TAB kind, TAB weight"),
    ("\tentity", "not a word, TAB kind, TAB weight"),
    ("网点 entity", "a blank before 'entity'; put a TAB between a word and its kind"),
    ("我\tentity", "我 has another kind or weight in line 1; keep one"),
    (b"\xb1\xb1\xbe\xa9", r"not UTF-8 \(byte 1 of the line is 0xb1\); it looks like GB18030"),
])  # fmt: skip
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_bad_line_is_reported(tmp_path, line, message, end):
    line = line if isinstance(line, bytes) else line.encode("utf-8")
    with pytest.raises(InputError, match=rf"words\.txt:3: {message}"):
        read(tmp_path, f"我{end}{end}".encode() + line + end.encode())


def test_more_than_255_kind_and_weight_pairs_are_refused(tmp_path):
    lines = [f"{chr(0x4E00 + number)}\tentity\t{number}" for number in range(256)]
    assert len(read(tmp_path, "\n".join(lines[:255])).marks) == 255
    with pytest.raises(InputError, match=r"words\.txt: 256 different pairs .* above 255; round the weights"):
        read(tmp_path, "\n".join(lines))


def test_a_lexicon_in_the_form_of_jieba_has_its_words_alone(tmp_path, capsys):
    path = tmp_path / "userdict.txt"
    path.write_text("创新办 3 i\n云计算 5\n凱特琳 nz\n台中\n")
    assert list(Lexicon.from_file(path).entries) == ["创新办", "云计算", "凱特琳", "台中"]
    assert "its words are used, and frequencies and tags are not" in capsys.readouterr().err
    path.write_text(
        "deep learning\nopen api\niphone 5\n北京大学\tentity\n"
    )  # words with blanks, and no frequency
    assert list(Lexicon.from_file(path).entries) == ["deep learning", "open api", "iphone 5", "北京大学"]
