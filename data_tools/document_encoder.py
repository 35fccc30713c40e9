"""The text of a document to the ids of its sentences."""

import re
from dataclasses import dataclass
from itertools import chain
from typing import List, NamedTuple, Optional, Tuple

import numpy as np

from data_tools.chinese_words import mark_words, presegmented, segmenter
from data_tools.errors import InputError
from data_tools.user_lexicon import Lexicon
from data_tools.wordpiece import WordPiece

LINE_END = "\n"
CHINESE_END = "[。！？；…]+[”’」』）》〉】]*"
# A capital before the point is an initial, as in J. Smith; a sentence goes on with a capital or a digit.
LATIN_END = r"(?<!\b[A-Z])[.!?]+[\"')\]”’]*(?=\s+[\"'(“‘]?[A-Z0-9])"


@dataclass(frozen=True)
class Rules:
    """All that decides which ids a document becomes; small enough to travel to a worker.

    ends       regular expression of what ends a sentence
    segmenter  who finds the words (`chinese_words.segmenter`); None: words are not marked
    separator  what stands between the words of text that has them apart; None: it has not
    lexicon    file of words that stay whole whoever finds the others (`user_lexicon`); None: there is none
    """

    vocab_file: str
    ends: str = LINE_END
    segmenter: Optional[str] = None
    separator: Optional[str] = None
    max_sentence_length: int = 510
    lexicon: Optional[str] = None


class EncodedDocument(NamedTuple):
    """int32 ids of each sentence that has any; the sentences that were cut, the lexicon's words found."""

    sentences: List[np.ndarray]
    num_cut: int
    num_lexicon_words: int


class DocumentEncoder:
    """A pure function of text and rules.

    Raises InputError when words are to be marked and the vocabulary has no '##' twin to mark with.
    """

    def __init__(self, rules: Rules):
        self.rules = rules
        self.pieces = WordPiece.from_file(rules.vocab_file)
        self._ends = re.compile(rules.ends)
        self._words_of = segmenter(rules.segmenter) if rules.segmenter else None
        self._given_words_of = presegmented(rules.separator) if rules.separator else None
        self._lexicon = Lexicon.from_file(rules.lexicon) if rules.lexicon else None
        if (rules.segmenter or rules.separator) and (self.pieces.twin_of < 0).all():
            raise InputError(
                f"{rules.vocab_file} has no '##' twin of a Chinese character, which "
                "--cn_whole_word_segment needs; use ERNIE 1.0's vocabulary or make one by build_vocab"
            )

    def encode(self, text: str) -> EncodedDocument:
        """The ids of all sentences end to end are those of the whole text, up to the '##' twins of words."""
        text, words = self._text_and_words(text)
        ids, starts, _ = self.pieces.pieces(text)
        ends = [match.end() for match in self._ends.finditer(text)]
        bounds = np.searchsorted(starts, [0, *ends, len(text)])
        num_found = 0
        if words is not None:
            if self._lexicon:
                words, num_found = self._lexicon.keep_whole(words, text)
            plain, ids = ids, mark_words(words, ids, starts, self.pieces.twin_of)
            firsts = bounds[bounds < len(ids)]
            ids[firsts] = plain[firsts]  # a word may reach over a sentence end
        spans = [ids[begin:end] for begin, end in zip(bounds, bounds[1:]) if begin < end]
        parts = [self._cut(sentence) for sentence in spans]
        num_cut = sum(len(part) > 1 for part in parts)
        return EncodedDocument(list(chain.from_iterable(parts)), num_cut, num_found)

    def _text_and_words(self, text: str) -> Tuple[str, Optional[List[str]]]:
        if self._words_of:
            return text, self._words_of(text)
        if self._given_words_of:
            words: List[str] = []
            for line in text.split("\n"):
                words += self._given_words_of(line)
                words.append("\n")
            return "".join(words), words
        return text, None

    def _cut(self, sentence: np.ndarray) -> List[np.ndarray]:
        """Parts of at most ``max_sentence_length`` tokens; inside a word only when it is longer than that."""
        limit, parts = self.rules.max_sentence_length, []
        while len(sentence) > limit:
            word_starts = np.flatnonzero(~self.pieces.is_continuation[sentence[1 : limit + 1]])
            cut = int(word_starts[-1]) + 1 if len(word_starts) else limit
            parts.append(sentence[:cut])
            sentence = sentence[cut:]
        return [*parts, sentence]
