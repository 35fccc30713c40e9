"""Corpora made by PaddleNLP's tools, with '##' twins numbered by ErnieTokenizer, are decoded correctly."""

import numpy as np
import pytest

from data_tools.corpus.format import open_corpus
from data_tools.corpus.twin_vocab import vocabulary_of, with_paddlenlps_twins, with_twins
from data_tools.corpus.writer import CorpusWriter
from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.errors import InputError

CONTROL = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
CHARACTERS = list("天地玄黄宇宙洪荒日月")
VOCABULARIES = {
    "no twins": [*CONTROL, *CHARACTERS, "[UNK]"],
    "some twins": [*CONTROL, *CHARACTERS, "##地", "##月", "[UNK]"],
    "a character beyond U+9FA5": [*CONTROL, "\u9fb1", "\u3400", *CHARACTERS, "[UNK]"],
    "a token twice": [*CONTROL, "$", *CHARACTERS, "$", "x", "[UNK]"],
    "two tokens twice": [*CONTROL, "$", "天", *CHARACTERS, "$", "y", "x", "[UNK]"],
}
TEXT = [["天", "##地", "玄", "##黄", "宇"], ["日", "##月", "##洪"]]


@pytest.fixture
def vocabulary(tmp_path):
    def write(name):
        path, tokens = tmp_path / "vocab.txt", VOCABULARIES[name] if isinstance(name, str) else name
        path.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
        return path

    return write


def theirs(path):
    """ErnieTokenizer with the twins that its tools add."""
    from paddlenlp.transformers import ErnieTokenizer

    paddles = ErnieTokenizer(str(path))
    paddles.verbose = False
    paddles.extend_chinese_char()
    return paddles


def written(folder, sentences):
    """A corpus as PaddleNLP's tools write it: nothing records its vocabulary."""
    with CorpusWriter(folder / "text", vocab_size=2**16) as writer:
        writer.add(sentences)
    (folder / "text.manifest.json").unlink()
    return open_corpus(folder / "text")


def written_by_theirs(folder, path, sentences=TEXT):
    paddles = theirs(path)
    return written(folder, [paddles.convert_tokens_to_ids(sentence) for sentence in sentences])


def ours(path):
    return WordPiece.from_file(path)


def test_added_twins_leave_a_cased_vocabulary_cased(vocabulary):
    cased = WordPiece.from_file(vocabulary("no twins"), lower_case=False)
    assert not with_twins(cased).lower_case and not with_paddlenlps_twins(cased).lower_case


@pytest.mark.parametrize("name", VOCABULARIES)
def test_base_vocabulary_ids_match_ernie_tokenizer(name, vocabulary):
    paddles, tokenizer = theirs(vocabulary(name)), ours(vocabulary(name))
    ids = {token: paddles.convert_tokens_to_ids(token) for token in VOCABULARIES[name]}
    assert ids == {token: tokenizer.vocab[token] for token in VOCABULARIES[name]}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_twins_are_numbered_as_in_ernie_tokenizer(name, vocabulary):
    paddles, tokenizer = theirs(vocabulary(name)), ours(vocabulary(name))
    extended = with_paddlenlps_twins(tokenizer)
    added = {token: i for token, i in paddles.added_tokens_encoder.items() if i >= tokenizer.vocab_size}
    assert added == {extended.tokens[i]: i for i in range(tokenizer.vocab_size, extended.vocab_size)}


@pytest.mark.parametrize("name", ["no twins", "some twins", "a character beyond U+9FA5"])
def test_a_paddlenlp_corpus_is_decoded_as_by_paddlenlp(name, vocabulary, tmp_path):
    path = vocabulary(name)
    corpus = written_by_theirs(tmp_path, path)
    tokenizer = vocabulary_of([corpus], ours(path))
    assert [[tokenizer.tokens[i] for i in sentence] for sentence in corpus] == TEXT
    plain = [[tokenizer.tokens[tokenizer.base_ids[i]] for i in sentence] for sentence in corpus]
    assert plain == [[token[-1] for token in sentence] for sentence in TEXT]


@pytest.mark.parametrize("name", ["a token twice", "two tokens twice"])
def test_an_ambiguous_id_is_refused_with_a_remedy(name, vocabulary, tmp_path):
    path = vocabulary(name)
    added = theirs(path).added_tokens_encoder
    corpus = written_by_theirs(tmp_path, path, [*TEXT, ["玄", min(added, key=added.get)]])
    with pytest.raises(InputError, match=r"vocab.txt has '\$' twice, so that id \d+ .*add_twins_to$"):
        vocabulary_of([corpus], ours(path))


@pytest.mark.parametrize("name", ["a token twice", "two tokens twice"])
def test_unambiguous_twins_are_read_despite_a_duplicate_token(name, vocabulary, tmp_path):
    path = vocabulary(name)
    text = [["宇", "##宙", "洪", "##荒"]]
    corpus = written_by_theirs(tmp_path, path, text)
    tokenizer = vocabulary_of([corpus], ours(path))
    assert [[tokenizer.tokens[i] for i in sentence] for sentence in corpus] == text


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_corpus_without_twins_keeps_its_vocabulary(name, vocabulary, tmp_path):
    tokenizer = ours(vocabulary(name))
    corpus = written(tmp_path, [[tokenizer.unk_id, tokenizer.vocab["天"]]])
    assert vocabulary_of([corpus], tokenizer) is tokenizer


def test_our_twins_are_refused_if_numbered_unlike_paddlenlp(vocabulary, tmp_path):
    """Ids that are off by one would go unnoticed."""
    path = vocabulary("a token twice")
    corpus = written_by_theirs(tmp_path, path)
    added = vocabulary(with_twins(ours(path)).tokens)
    with pytest.raises(InputError, match="does not say how its '##' twins are numbered"):
        vocabulary_of([corpus], ours(added))


def test_our_twins_are_used_if_numbered_like_paddlenlp(vocabulary, tmp_path):
    path = vocabulary("no twins")
    corpus = written_by_theirs(tmp_path, path)
    added = ours(vocabulary(with_twins(ours(path)).tokens))
    assert vocabulary_of([corpus], added) is added


def test_corpora_with_different_twin_ids_are_refused_together(vocabulary, tmp_path):
    path = vocabulary("a character beyond U+9FA5")
    corpus = written_by_theirs(tmp_path, path)
    extended = with_twins(ours(path))
    about = {"vocab_sha256": extended.sha256}
    with CorpusWriter(tmp_path / "own", vocab_size=extended.vocab_size, about=about) as writer:
        writer.add([[extended.vocab["天"], extended.vocab["##地"]]])
    own = open_corpus(tmp_path / "own")
    assert vocabulary_of([own], ours(path)).tokens == extended.tokens
    with pytest.raises(InputError, match="have other ids than those of the corpora beside it"):
        vocabulary_of([corpus, own], ours(path))


def test_an_id_beyond_all_twins_is_refused(vocabulary, tmp_path):
    path = vocabulary("no twins")
    corpus = written(tmp_path, [[5, 6], [len(VOCABULARIES["no twins"]) + len(CHARACTERS)]])
    with pytest.raises(InputError, match="is not below the vocabulary size 25; use the vocabulary"):
        vocabulary_of([corpus], ours(path))
    assert np.max(corpus.ids) == 25
