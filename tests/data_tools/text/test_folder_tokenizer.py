import io
import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from data_tools.text.folder_tokenizer import FolderTokenizer, open_folder_tokenizer, open_vocabulary
from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.errors import InputError

CHARACTERS = list("abcé5¥中文")
TOKENS = [*"[PAD] [UNK] [CLS] [SEP] [MASK]".split(), *CHARACTERS, *map("##{}".format, CHARACTERS)]
TOKENS += ["[", "]", "mask"]


def write_bert(folder, settings=None, config=None):
    """A folder as transformers writes one, with a vocab.txt and no tokenizer.json."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS), encoding="utf-8")
    (folder / "config.json").write_text(
        json.dumps({"model_type": "bert", "transformers_version": "4.49.0", **(config or {})})
    )
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_unigram(folder):
    pieces = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    pieces += [("▁a", -1.0), ("▁b", -1.0), ("▁", -2.0)]
    made = Tokenizer(models.Unigram(pieces, unk_id=3))
    made.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    return folder


def tokens_of(tokenizer, text):
    return [tokenizer.tokens[index] for index in tokenizer.encode(text)]


def test_bert_keeps_symbols_in_words_and_ernie_splits_them_off(tmp_path):
    folder = write_bert(tmp_path / "bert")
    theirs = open_folder_tokenizer(folder / "vocab.txt", "bert")
    assert tokens_of(theirs, "5¥ 中文a") == ["5", "##¥", "中", "文", "a"]
    assert tokens_of(WordPiece.from_file(folder / "vocab.txt"), "5¥ 中文a") == ["5", "¥", "中", "文", "a"]


@pytest.mark.parametrize("settings, expected", [
    (None, ["[UNK]"]),
    ({"do_lower_case": False}, ["é"]),
    ({"strip_accents": False}, ["é"]),
    ({"tokenize_chinese_chars": False}, ["[UNK]"]),
])  # fmt: skip
def test_case_and_accents_are_those_of_tokenizer_config(tmp_path, settings, expected):
    theirs = open_folder_tokenizer(write_bert(tmp_path / "bert", settings) / "vocab.txt", "bert")
    assert tokens_of(theirs, "é") == expected
    cut = ["中", "##文"] if settings == {"tokenize_chinese_chars": False} else ["中", "文"]
    assert tokens_of(theirs, "中文") == cut


def test_tokenizer_config_wins_for_the_classes_of_bert(tmp_path):
    folder = write_bert(tmp_path / "bert")
    (folder / "tokenizer.json").write_text(open_folder_tokenizer(folder / "vocab.txt", "bert").to_json())
    (folder / "tokenizer_config.json").write_text(
        '{"do_lower_case": false, "tokenizer_class": "BertTokenizer"}'
    )
    assert not open_folder_tokenizer(folder / "tokenizer.json").lower_case
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false, "tokenizer_class": "Other"}')
    assert open_folder_tokenizer(folder / "tokenizer.json").lower_case


def test_a_rule_has_one_hash_whichever_file_it_comes_from(tmp_path):
    folder = write_bert(tmp_path / "bert")
    of_vocab = open_folder_tokenizer(folder / "vocab.txt", "bert")
    (folder / "tokenizer.json").write_text(of_vocab.to_json())
    assert open_folder_tokenizer(folder / "tokenizer.json", "bert").sha256 == of_vocab.sha256
    assert WordPiece.from_file(folder / "vocab.txt").sha256 != of_vocab.sha256
    cased = write_bert(tmp_path / "cased", {"do_lower_case": False})
    assert open_folder_tokenizer(cased / "vocab.txt", "bert").sha256 != of_vocab.sha256


def test_control_tokens_are_control_ids_unless_in_a_corpus(tmp_path):
    folder = write_bert(tmp_path / "bert")
    assert tokens_of(open_folder_tokenizer(folder / "vocab.txt", "bert"), "[MASK]a") == ["[MASK]", "a"]
    corpus = open_vocabulary(folder)
    assert isinstance(corpus, FolderTokenizer) and tokens_of(corpus, "[MASK]a") == ["[", "mask", "]", "a"]
    split = write_bert(tmp_path / "split", {"split_special_tokens": True})
    assert tokens_of(open_folder_tokenizer(split / "vocab.txt", "bert"), "[MASK]") == ["[", "mask", "]"]


def test_a_vocab_txt_and_a_folder_of_paddlenlp_mean_ernies_rule(tmp_path):
    folder = write_bert(tmp_path / "theirs")
    assert isinstance(open_vocabulary(folder / "vocab.txt"), WordPiece)
    paddle = write_bert(tmp_path / "paddle", config={"paddlenlp_version": "2.8.1"})
    assert isinstance(open_vocabulary(paddle), WordPiece)


def test_offsets_are_characters_of_the_text(tmp_path):
    theirs = open_folder_tokenizer(write_bert(tmp_path / "bert") / "vocab.txt", "bert")
    text = "中 A5¥\ud800文"  # half a character is dropped, as an unknown character is
    ids, starts, ends = theirs.tokenize(text)
    assert [text[a:b] for a, b in zip(starts, ends)] == ["中", "A", "5", "¥", "文"]
    assert ids.tolist() == theirs.encode(text) and ids.dtype == starts.dtype == np.int32


def test_a_second_separator_and_a_pad_of_another_name_are_found(tmp_path):
    theirs = open_folder_tokenizer(write_unigram(tmp_path / "xlmr") / "tokenizer.json", "xlm-roberta")
    assert theirs.pair_specials == ([0], [2, 2], [2]) and theirs.text_specials == ([0], [2])
    assert (theirs.pad_id, theirs.has_segments, theirs.mask_id) == (1, False, -1)
    assert tokens_of(theirs, "a  b") == ["▁a", "▁", "▁b"]


@pytest.mark.parametrize("settings, reason", [
    ({"tokenizer_class": "AlbertTokenizer"}, "does not cut words by vocab.txt alone"),
    ({"do_lower_case": "yes"}, "do_lower_case is .*yes"),
    ({"truncation_side": "left"}, "truncation_side left"),
    ({"pad_token": "<none>"}, "no <none>"),
])  # fmt: skip
def test_settings_that_cannot_be_followed_are_refused(tmp_path, settings, reason):
    folder = write_bert(tmp_path / "bert", settings)
    with pytest.raises(InputError, match=reason) as refused:
        open_folder_tokenizer(folder / "vocab.txt", "bert")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b"{" * 5000])
def test_a_damaged_tokenizer_json_is_refused_in_one_line(tmp_path, content):
    folder = write_bert(tmp_path / "bert")
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(InputError, match="tokenizer.json: it cannot be read"):
        open_folder_tokenizer(folder / "tokenizer.json", "bert")


@pytest.mark.parametrize("content", [b"", b"no model"])
def test_a_damaged_model_of_sentencepiece_is_refused(tmp_path, content):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(content)
    with pytest.raises(InputError, match="sentencepiece"):
        open_folder_tokenizer(tmp_path / "sentencepiece.bpe.model", "xlm-roberta")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_the_pieces_of_sentencepiece_are_read_and_cut_alike(tmp_path, kind):
    sentencepiece = pytest.importorskip("sentencepiece")
    lines = ["".join(row) for row in np.random.default_rng(0).choice(list("今天气好 ab"), (300, 12))]
    path, written = tmp_path / "sentencepiece.bpe.model", io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=written, vocab_size=40, model_type=kind, minloglevel=2
    )
    path.write_bytes(written.getvalue())
    if kind == "bpe":
        with pytest.raises(InputError, match="no Unigram model of sentencepiece"):
            open_folder_tokenizer(path, "xlm-roberta")
        return
    theirs, ours = sentencepiece.SentencePieceProcessor(str(path)), open_folder_tokenizer(path, "xlm-roberta")
    for line in [*lines[:50], "Ａｂ　①天", "x今"]:  # full width: normalized
        ids = [piece + 1 if piece else 3 for piece in theirs.encode(" ".join(line.split()))]
        assert ours.encode(line) == ids
