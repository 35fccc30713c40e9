"""A vocabulary with a '##' twin for every Chinese character, so that words can be marked in a corpus."""

from data_tools.wordpiece import CONTINUATION, WordPiece, is_cjk


def with_twins(pieces: WordPiece) -> WordPiece:
    """``pieces`` and, after them, the twin of each character that has none, in the order of ids.

    ERNIE 1.0 has them all; ERNIE 3.0 has none. The ids of ``pieces`` stay what they are, and the twins
    stand in a corpus only: a model sees the plain characters.
    """
    alone = [
        token
        for token, twin in zip(pieces.tokens, pieces.twin_of)
        if twin < 0 and len(token) == 1 and is_cjk(token)
    ]
    return WordPiece(pieces.tokens + [CONTINUATION + token for token in alone])
