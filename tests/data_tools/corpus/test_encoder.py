"""A document gets the same ids in any batch, and its sentences hold all of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_corpus import TOKENS, write_vocab

from data_tools.corpus import shards
from data_tools.corpus.shards import CHINESE_END, LATIN_END, LINE_END, DocumentEncoder, EncodingRules

CHINESE = f"{LINE_END}|{CHINESE_END}"
LEXICON = "北京。我\tentity\t2\n爱北\tcharacter\nok\nασ"
SETTINGS = {
    "lines": {},
    "sentences": {"ends": f"{CHINESE}|{LATIN_END}"},
    "found words": {"ends": CHINESE, "segmenter": "rjieba"},
    "given words": {"ends": CHINESE, "separator": " "},
    "a lexicon": {"ends": CHINESE, "separator": "/", "lexicon": "words.txt"},
    "short sentences": {"ends": CHINESE, "separator": " ", "max_sentence_length": 2},
}
STRANGERS = ["ok", "Σ", "İ", "é", "\u0301", "\U0001d15e", "㐀"]
ALPHABET = list("我爱北京天安门学习。，！”a1A.? /\n\r\u200b") + STRANGERS
TEXTS = st.lists(st.lists(st.sampled_from(ALPHABET), max_size=12).map("".join), max_size=8)


@pytest.fixture(scope="module")
def encoders(module_path):
    (module_path / "words.txt").write_text(LEXICON, encoding="utf-8")
    vocab = write_vocab(module_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(module_path)
        return {name: DocumentEncoder(EncodingRules(vocab, **rules)) for name, rules in SETTINGS.items()}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("at_once", [1, 5, 1 << 15])
@settings(max_examples=60, deadline=None)
@given(texts=TEXTS)
def test_a_batch_of_texts_is_encoded_like_each_text_alone(encoders, name, at_once, texts):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "CHARACTERS_AT_ONCE", at_once)
        gather_results = encoders[name].encode(texts)
    alone = [encoders[name].encode([text]) for text in ["", *texts]]
    for field in ("ids", "lens", "sizes", "marks"):
        parts, whole = [getattr(one, field) for one in alone], getattr(gather_results, field)
        parts[0] = parts[0][:0]  # an empty document contributes only its dtype
        assert whole.dtype == parts[0].dtype and np.array_equal(whole, np.concatenate(parts)), field
    assert gather_results.num_cut == sum(one.num_cut for one in alone)
    assert gather_results.num_lexicon_words == sum(one.num_lexicon_words for one in alone)


@settings(max_examples=60, deadline=None)
@given(texts=TEXTS)
@pytest.mark.parametrize("name", SETTINGS)
def test_sentences_hold_all_ids_and_none_is_empty_or_too_long(encoders, name, texts):
    encoded = encoders[name].encode(texts)
    assert encoded.lens.sum() == len(encoded.ids) and encoded.sizes.sum() == len(encoded.lens)
    assert len(encoded.sizes) == len(texts)
    assert encoded.lens.min(initial=1) > 0
    assert encoded.lens.max(initial=0) <= encoders[name].rules.max_sentence_length


def test_each_piece_carries_the_mark_of_its_word(encoders):
    encoded = encoders["a lexicon"].encode(["我/北京。我", "爱北okok/ok"])
    assert " ".join(TOKENS[i] for i in encoded.ids) == "我 北 ##京 。 我 爱 北 [UNK] ok"
    assert encoded.marks.tolist() == [0, 1, 1, 1, 1, 2, 2, 0, 3]
    assert encoded.sizes.tolist() == [2, 1] and encoded.num_lexicon_words == 3


def test_an_empty_text_has_no_sentences(encoders):
    encoded = encoders["lines"].encode(["", "我\n爱", "\n \n", "京"])
    assert encoded.sizes.tolist() == [0, 2, 0, 1] and encoded.lens.tolist() == [1, 1, 1]
    assert np.array_equal(encoders["lines"].encode([]).sizes, [])
