"""Vocabularies with a '##' twin for every Chinese character, so that words can be marked in a corpus.

A vocabulary that has none of its own (ERNIE 3.0's) gets them in two ways, which number them differently:

    this package      after the last line, for every character that is a token by itself
    PaddleNLP's tools from the number of distinct tokens on, for the characters from U+4E00 to U+9FA5

If a token occurs twice, PaddleNLP's first twins have the ids of the last lines.
"""

from pathlib import Path
from typing import List

import numpy as np

from data_tools.corpus.format import Corpus
from data_tools.text.folder_tokenizer import AnyTokenizer
from data_tools.text.wordpiece import CONTINUATION, CONTROL_TOKENS, WordPiece, is_cjk
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.arrays import chunks

PADDLENLPS_CHARACTERS = ("\u4e00", "\u9fa5")


def with_twins(tokenizer: WordPiece) -> WordPiece:
    """Return ``tokenizer`` with the missing twins of its characters appended, in the order of ids.

    ERNIE 1.0 has them all; ERNIE 3.0 has none. The ids of ``tokenizer`` do not change, and the twins occur
    only in a corpus: a model sees the plain characters.
    """
    alone = [
        token
        for token, twin in zip(tokenizer.tokens, tokenizer.continuation_ids)
        if twin < 0 and len(token) == 1 and is_cjk(token)
    ]
    return WordPiece(tokenizer.tokens + [CONTINUATION + token for token in alone], tokenizer.lower_case)


def with_paddlenlps_twins(tokenizer: WordPiece) -> WordPiece:
    """Return ``tokenizer`` with the twins of ErnieTokenizer.extend_chinese_char whose ids are free.

    If a token occurs twice, the ids of the last lines belong to both a token and a twin: here they stay
    with the token, and a corpus with such an id is refused.
    """
    free = _paddlenlps_twins(tokenizer)[len(tokenizer.tokens) - len(tokenizer.vocab) :]
    return WordPiece(tokenizer.tokens + free, tokenizer.lower_case)


def _paddlenlps_twins(tokenizer: WordPiece) -> List[str]:
    """Return the twins that PaddleNLP's tools add, in the order of their ids.

    They look at the first len(vocab) ids, and a token that occurs twice has its last id.
    """
    low, high = PADDLENLPS_CHARACTERS
    looked_at = enumerate(tokenizer.tokens[: len(tokenizer.vocab)])
    characters = [t for i, t in looked_at if len(t) == 1 and low <= t <= high and tokenizer.vocab[t] == i]
    return [CONTINUATION + token for token in characters if CONTINUATION + token not in tokenizer.vocab]


def vocabulary_of(corpora: List[Corpus], tokenizer: AnyTokenizer) -> AnyTokenizer:
    """Return ``tokenizer``, or the extension by twins that the corpora were made with.

    Corpora of this package record the vocabulary that they were made with. Others are PaddleNLP's: ids beyond
    ``tokenizer`` are its twins. Raises InputError, which says what to do, if a corpus was made with another
    vocabulary, contains undefined or ambiguous ids, or if two corpora number their twins differently.
    """
    extended = [_extension_of(corpus, tokenizer) for corpus in corpora]
    for corpus, own in zip(corpora, extended):
        corpus.check_ids(own.vocab_size)
    longest = max(extended, key=lambda one: one.vocab_size)
    for corpus, own in zip(corpora, extended):
        if own.tokens != longest.tokens[: own.vocab_size]:
            raise InputError(
                f"{corpus.prefix}: its '##' twins have other ids than those of the corpora beside it; make "
                "it again with ernie-pair prepare and the vocabulary of ernie-pair build vocab "
                "--add_twins_to"
            )
    return longest


def _extension_of(corpus: Corpus, tokenizer: AnyTokenizer) -> AnyTokenizer:
    if not isinstance(tokenizer, WordPiece):
        if corpus.vocab_sha256 not in ("", tokenizer.sha256):
            raise InputError(
                f"{corpus.prefix} was made with another vocabulary than that of the model, or cut by another "
                "rule; make it again with ernie-pair prepare and --vocab_file "
                f"{Path(tokenizer.where).parent}"
            )
        return tokenizer
    if corpus.vocab_sha256:
        for vocabulary in (tokenizer, with_twins(tokenizer)):
            if vocabulary.sha256 == corpus.vocab_sha256:
                return vocabulary
        raise InputError(
            f"{corpus.prefix} was made with another vocabulary than that of the model; make it again with "
            "ernie-pair prepare and the model's vocab.txt"
        )
    base = _without_added_twins(tokenizer)
    # A corpus that marks words contains many twins: one without ids beyond the vocabulary has none at all.
    if corpus.max_id < base.vocab_size:
        return tokenizer
    theirs = with_paddlenlps_twins(base)
    if (
        base is not tokenizer
        and theirs.tokens[: tokenizer.vocab_size] != tokenizer.tokens[: theirs.vocab_size]
    ):
        raise InputError(
            f"{corpus.prefix} does not say how its '##' twins are numbered: PaddleNLP's tools and "
            "ernie-pair build vocab --add_twins_to do it differently for this vocab.txt; make the corpus "
            "again with ernie-pair prepare"
        )
    twins, first = _paddlenlps_twins(base), len(base.vocab)
    doubtful = range(first, min(len(base.tokens), first + len(twins)))
    if doubtful and any(np.isin(chunk, doubtful).any() for chunk in chunks(corpus.ids)):
        twice = next(token for index, token in enumerate(base.tokens) if base.vocab[token] != index)
        raise InputError(
            f"{corpus.prefix}: vocab.txt has {twice!r} twice, so that id {doubtful[0]} of PaddleNLP's tools "
            f"is {base.tokens[doubtful[0]]!r} or {twins[0]!r}; make the corpus again with "
            "ernie-pair prepare and the vocabulary of ernie-pair build vocab --add_twins_to"
        )
    return theirs if theirs.vocab_size > tokenizer.vocab_size else tokenizer


def _without_added_twins(tokenizer: WordPiece) -> WordPiece:
    """Return ``tokenizer`` as it was before ``with_twins``, or unchanged if the twins are its own."""
    size = tokenizer.vocab_size
    while size and tokenizer.tokens[size - 1].startswith(CONTINUATION):
        size -= 1
    if size == tokenizer.vocab_size or not set(CONTROL_TOKENS) <= set(tokenizer.tokens[:size]):
        return tokenizer
    base = WordPiece(tokenizer.tokens[:size], tokenizer.lower_case)
    return base if with_twins(base).tokens == tokenizer.tokens else tokenizer


def check_vocab_size(tokenizer: AnyTokenizer, vocab_size: int) -> None:
    """Raise InputError if a token could reach the model whose id is beyond its ``vocab_size`` rows.

    Only the twins that mark words in a corpus may be beyond the rows: they are turned into plain characters
    before the model sees them.
    """
    beyond = np.flatnonzero(tokenizer.base_ids >= vocab_size)
    if len(beyond):
        raise InputError(
            f"vocab.txt has {tokenizer.vocab_size} tokens and the model {vocab_size} rows: "
            f"{tokenizer.tokens[beyond[0]]!r}, line {beyond[0] + 1}, has none; give the model's own "
            "vocab.txt, which may be longer only by the ## twins of its characters"
        )
