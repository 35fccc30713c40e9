"""A text with [MASK] as token ids, and the positions of its masks."""

import re
from typing import List, NamedTuple

from data_tools.base.errors import InputError
from data_tools.text.folder_tokenizer import AnyTokenizer
from data_tools.text.wordpiece import CONTINUATION

MASK = "[MASK]"


class Slot(NamedTuple):
    """A run of adjacent masks: one word or a part of one.

    The slot is text[start:end], at ``positions`` of the token ids.
    """

    start: int
    end: int
    positions: List[int]


class MaskedText(NamedTuple):
    """A text, its token ids with [CLS] and [SEP], and its slots in their order."""

    text: str
    ids: List[int]
    slots: List[Slot]

    def filled(self, slot: Slot, word: str) -> str:
        """Return the text with ``word`` in place of ``slot``; other masks stay."""
        return f"{self.text[: slot.start]}{word}{self.text[slot.end :]}"


def parse_masked_text(text: str, tokenizer: AnyTokenizer, max_positions: int, where: str = "") -> MaskedText:
    """Tokenize ``text``, each [MASK] as one token; masks with only spaces between them are one slot.

    Raises InputError, which begins with ``where``, for a text without [MASK] or of more tokens than
    ``max_positions``.
    """
    named = f"{where}: " if where else ""
    ids, last = [tokenizer.cls_id], 0
    slots: List[Slot] = []
    for found in re.finditer(re.escape(MASK), text):
        between = tokenizer.encode(text[last : found.start()])
        ids += between
        if slots and not between:
            slots[-1] = Slot(slots[-1].start, found.end(), [*slots[-1].positions, len(ids)])
        else:
            slots.append(Slot(found.start(), found.end(), [len(ids)]))
        ids.append(tokenizer.mask_id)
        last = found.end()
    ids += [*tokenizer.encode(text[last:]), tokenizer.sep_id]
    if not slots:
        raise InputError(f"{named}no {MASK} in {text[:40]!r}; write {MASK} where a token is to be predicted")
    if len(ids) > max_positions:
        raise InputError(f"{named}{len(ids)} tokens, and the model has {max_positions} positions; shorten it")
    return MaskedText(text, ids, slots)


def join_tokens(tokens: List[str]) -> str:
    """Return the text of ``tokens``: ##X continues the word before it, spaces separate words of letters."""
    joined = ""
    for token in tokens:
        if token.startswith(CONTINUATION) and len(token) > len(CONTINUATION):
            joined += token[len(CONTINUATION) :]
        else:
            apart = joined[-1:].isascii() and joined[-1:].isalnum() and token[:1].isascii()
            joined += f" {token}" if apart and token[:1].isalnum() else token
    return joined
