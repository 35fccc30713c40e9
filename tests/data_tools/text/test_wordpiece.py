"""Word pieces match ErnieTokenizer's, and carry their offsets in the text."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT

from data_tools.text.characters import category
from data_tools.text.wordpiece import END_OF_LETTERS, WordPiece, is_cjk, word_shapes
from ernie_pair.core.errors import InputError

DATA = ROOT.parent / "shared" / "data"
VOCABULARIES = sorted((DATA / "vocab").glob("*.txt"))
TEXTS = sorted((DATA / "text").glob("*.txt"))
CONTROL = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]
TINY = [*CONTROL[:4], *"我 爱 中 ##中 ##爱 恤 a b ##b un ##aff ##able ! $ $".split()]


@pytest.fixture
def tiny(tmp_path):
    return WordPiece.from_file(write(tmp_path, [*TINY, "[UNK]"]))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Our ids and ErnieTokenizer's, with a vocabulary that has every character below U+3400."""
    characters = sorted(
        {c for point in range(33, 0x3400) for c in chr(point).lower()} - set("\x85\u2028\u2029")
    )
    characters = [c for c in characters if not c.isspace()] + list("中文豈")
    tokens = [*CONTROL, *characters, *("##" + c for c in characters)]
    path = write(tmp_path_factory.mktemp("vocab"), tokens)
    return WordPiece.from_file(path).encode, reference(path)


def write(folder, tokens):
    path = folder / "vocab.txt"
    path.write_text("".join(token + "\n" for token in tokens), encoding="utf-8")
    return path


def reference(path):
    transformers = pytest.importorskip("paddlenlp.transformers")
    gram = "gram" in path.name
    tokenizer = (transformers.ErnieGramTokenizer if gram else transformers.ErnieTokenizer)(str(path))
    return lambda text: tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))


@pytest.mark.skipif(not VOCABULARIES, reason="no shared data")
@pytest.mark.parametrize("each", [pytest.param(1, marks=pytest.mark.slow), 30], ids="one in {}".format)
@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=[path.stem for path in VOCABULARIES])
def test_real_paragraphs_get_the_same_ids_as_in_paddlenlp(vocabulary, each):
    expected, tokenizer = reference(vocabulary), WordPiece.from_file(vocabulary)
    lines = [line for path in TEXTS for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    assert len(lines) > 90_000
    differ = [line for line in lines[::each] if tokenizer.encode(line) != expected(line)]
    assert not differ, differ[:3]


def is_same_here(character):
    """Whether PaddleNLP, which asks this Python, gives the character the class of the newest Unicode."""
    return unicodedata.category(character) == category(character)


def test_every_kind_of_character_matches_ernie_tokenizer(both):
    ours, theirs = both
    points = [*range(0x3000), *range(0x3000, 0x110000, 211), *range(0x1D15E, 0x1D165), *range(0xF900, 0xFB10)]
    for point in points:
        if not 0xD800 <= point < 0xE000 and is_same_here(chr(point)):
            text = f"a{chr(point)}b 中{chr(point)}\u0316"
            assert ours(text) == theirs(text), hex(point)


HARD = list(
    "aBéÉşΣς中豈ａ１ 1　\t\n\r。！$^²ªµŊØﬁ한か゛\u0301\u0316\u200b\xad\u2028\x85\x00\ufffd🙂𠀀𝅘𝅥\ue000"
)


@settings(max_examples=300, deadline=None)
@given(
    text=st.lists(
        st.one_of(st.sampled_from(HARD), st.characters(codec="utf-8").filter(is_same_here)), max_size=40
    ).map("".join)
)
def test_any_text_gets_the_same_ids_as_in_ernie_tokenizer(both, text):
    ours, theirs = both
    assert ours(text) == theirs(text)


@pytest.mark.parametrize("length", [99, 100, 101])
def test_words_above_100_characters_are_unknown_as_in_ernie(both, length):
    ours, theirs = both
    for text in ("a" * length, "é" * length, "한" * (length // 3), "a" * 60 + "\u0301" * 60):
        assert ours(text) == theirs(text)


@pytest.mark.parametrize("control", CONTROL)
def test_control_tokens_in_the_text_are_plain_text(tiny, control):
    assert set(tiny.encode(f"我{control}爱")) <= {tiny.vocab["我"], tiny.vocab["爱"], tiny.unk_id}
    assert len(tiny.encode(control)) == 3


def with_offsets(tokenizer, text):
    ids, starts, ends = tokenizer.tokenize(text)
    return ids, np.stack([starts, ends], axis=1)


def test_offsets_give_the_span_of_each_piece(tiny):
    text = " 我\u200b爱Unáffable！中 "
    ids, offsets = with_offsets(tiny, text)
    assert [text[start:end] for start, end in offsets] == ["我", "爱", "Un", "áff", "able", "！", "中"]
    assert [tiny.tokens[i] for i in ids] == ["我", "爱", "un", "##aff", "##able", "[UNK]", "中"]


def test_an_unknown_word_has_the_offsets_of_the_whole_word(tiny):
    ids, offsets = with_offsets(tiny, "我xyz爱")
    assert ids[1] == tiny.unk_id and offsets.tolist() == [[0, 1], [1, 4], [4, 5]]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_offsets_rise_and_stay_inside_the_text(text):
    _, offsets = with_offsets(WordPiece([*CONTROL, "a", "##b", "中"]), text)
    assert (np.diff(offsets, axis=1) > 0).all() and (np.diff(offsets[:, 0]) >= 0).all()
    assert not len(offsets) or (offsets.min() >= 0 and offsets.max() <= len(text))


def test_a_batch_is_encoded_like_its_texts_one_by_one(tiny):
    texts = ["我爱", "", " ", "unaffable 中\n爱", "b", "a"]
    assert tiny.encode_batch(texts) == [tiny.encode(text) for text in texts]
    assert tiny.encode_batch([]) == []
    for tokenizer, text in zip(tiny.tokenize_batch(texts), texts):
        assert all(np.array_equal(one, other) for one, other in zip(tokenizer, tiny.tokenize(text)))


def test_twins_join_a_character_and_its_continuation(tiny):
    vocab = tiny.vocab
    assert tiny.continuation_ids[vocab["中"]] == vocab["##中"] and tiny.continuation_ids[vocab["恤"]] == -1
    assert tiny.continuation_ids[vocab["b"]] == -1, "Latin letters have no twin: their ## form is a piece"
    assert tiny.base_ids[vocab["##中"]] == vocab["中"] and tiny.base_ids[vocab["##b"]] == vocab["##b"]
    assert tiny.base_ids.dtype == tiny.continuation_ids.dtype == np.int32
    assert tiny.is_continuation.tolist() == [token.startswith("##") for token in tiny.tokens]


def test_a_duplicate_token_has_its_last_id_as_in_paddlenlp(tiny, tmp_path):
    first, last = (index for index, token in enumerate(TINY) if token == "$")
    assert tiny.encode("$") == [last] and tiny.tokens[first] == "$"
    assert reference(tmp_path / "vocab.txt")("$") == [last]
    assert tiny.vocab_size == len(TINY) + 1


@pytest.mark.skipif(not VOCABULARIES, reason="no shared data")
def test_every_chinese_character_of_ernie_has_its_twin():
    tokenizer = WordPiece.from_file(DATA / "vocab" / "ernie_1.0_zh.txt")
    characters = [index for index, token in enumerate(tokenizer.tokens) if len(token) == 1 and is_cjk(token)]
    assert (tokenizer.continuation_ids[characters] >= 0).all() and len(characters) == 5896
    ids = [getattr(tokenizer, f"{role}_id") for role in ("pad", "cls", "sep", "mask", "unk")]
    assert ids == [0, 1, 2, 3, 17963]


def test_crlf_line_ends_give_the_same_vocabulary(tmp_path, tiny):
    path = tmp_path / "crlf.txt"
    path.write_bytes("\r\n".join([*TINY, "[UNK]"]).encode("utf-8"))
    assert WordPiece.from_file(path).sha256 == tiny.sha256


@pytest.mark.parametrize(("content", "message"), [
    (None, r"vocab\.txt: no such file; give"),
    (b"", r"vocab\.txt: no .* among its 0 tokens"),
    (b"[PAD]\n[CLS]\n\xff\n", r"vocab\.txt:3: not UTF-8; save"),
    (b"[PAD]\n[SEP]\n[MASK]\n", r"vocab\.txt: no \[CLS\] \[UNK\] among its 3 tokens; give"),
    ("\ufeff[PAD]\n[CLS]\n[SEP]\n[MASK]\n[UNK]\n".encode(), r"no \[PAD\] .* without BOM"),
])  # fmt: skip
def test_an_invalid_vocabulary_file_is_refused(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        WordPiece.from_file(path)


def test_word_shapes_are_the_normalised_words_of_a_text():
    assert word_shapes("Été在2022，\u200b ok\u0301") == ["ete", "在", "2022", "，", "ok"]


def test_characters_beyond_the_last_letter_are_dropped(tiny):
    categories = {category(chr(point)) for point in range(END_OF_LETTERS, 0x110000)}
    assert categories <= {"Cn", "Cf", "Co", "Mn"}
    assert len(tiny.encode("".join(map(chr, range(END_OF_LETTERS, 0x110000, 997))))) == 0


def test_a_repeated_word_is_cut_the_same_way_each_time(tiny):
    ids, offsets = with_offsets(tiny, "unaffable b 我 unaffable ab\u0301 b")
    assert [tiny.tokens[i] for i in ids] == "un ##aff ##able b 我 un ##aff ##able a ##b b".split()
    assert offsets.tolist()[:4] == [[0, 2], [2, 5], [5, 9], [10, 11]]
    assert offsets.tolist()[4:] == [[12, 13], [14, 16], [16, 19], [19, 23], [24, 25], [25, 26], [28, 29]]
