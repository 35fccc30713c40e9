"""Encode the texts of documents to the ids of their sentences.

Texts are encoded several at a time, joined by line ends: nothing here looks past a line end, so the ids
of a document do not depend on the texts around it.
"""

import re
from dataclasses import dataclass
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np

from data_tools.text.folder_tokenizer import open_vocabulary
from data_tools.text.wordpiece import code_points
from data_tools.text.words import Lexicon, mark_words, presegmented, segmenter, word_begins
from ernie_pair.core.errors import InputError

CHARACTERS_AT_ONCE = 1 << 15  # few enough that they, their words and ids stay in the CPU's cache
LINE_END = "\n"
CHINESE_END = "[。！？；…]+[”’」』）》〉】]*"
# A capital before the point is an initial, as in J. Smith; a new sentence begins with a capital or a digit.
LATIN_END = r"(?<!\b[A-Z])[.!?]+[\"')\]”’]*(?=\s+[\"'(“‘]?[A-Z0-9])"


@dataclass(frozen=True)
class EncodingRules:
    """All that determines the ids of a document; small enough to send to a worker.

    ends       regular expression of sentence ends
    segmenter  name of the word segmenter (`words.segmenter`); None: words are not marked
    separator  separator between the words of text that is already split; None: it is not split
    lexicon    file of words that are never split, by any segmenter (`Lexicon`); None: there is none
    """

    vocab_file: str
    ends: str = LINE_END
    segmenter: Optional[str] = None
    separator: Optional[str] = None
    max_sentence_length: int = 510
    lexicon: Optional[str] = None


class Encoded(NamedTuple):
    """The ids of several texts.

    ids    int32 [tokens], of all texts end to end
    lens   int32 [sentences], tokens of each sentence
    sizes  int64 [texts], sentences of each text; 0 when it has no tokens
    marks  uint8 [tokens], the lexicon's (`Lexicon.find_marks`); [0] without a lexicon
    """

    ids: np.ndarray
    lens: np.ndarray
    sizes: np.ndarray
    marks: np.ndarray
    num_cut: int
    num_lexicon_words: int


class DocumentEncoder:
    """Encodes texts to ids by ``rules`` alone. Raises InputError without '##' twins to mark words with."""

    def __init__(self, rules: EncodingRules):
        self.rules = rules
        self.tokenizer = open_vocabulary(rules.vocab_file)
        self._ends = re.compile(rules.ends)
        self._words_of = segmenter(rules.segmenter) if rules.segmenter else None
        self._given_words_of = presegmented(rules.separator) if rules.separator else None
        self.lexicon = Lexicon.from_file(rules.lexicon) if rules.lexicon else None
        if (rules.segmenter or rules.separator) and (self.tokenizer.continuation_ids < 0).all():
            cure = "give the vocabulary of an ERNIE or a BERT"
            if self.tokenizer.is_word_piece:
                cure = "add them with build_vocab --add_twins_to"
            raise InputError(
                f"{rules.vocab_file} has no '##' twins of Chinese characters, which "
                f"--cn_whole_word_segment needs; {cure}"
            )

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode texts, one document each, to ids and their division into sentences.

        The concatenated ids of a text's sentences are those of the text, except for '##' twins of words.
        """
        parts = [self._encode(group) for group in _groups(texts)]
        *arrays, num_cut, num_found = zip(*parts)
        joined: Any = [*map(np.concatenate, arrays), sum(num_cut), sum(num_found)]
        return Encoded(*joined)

    def _encode(self, texts: Sequence[str]) -> Encoded:
        text, words = "\n".join(texts), None
        if self._words_of:
            words = word_begins(self._words_of(text))
        elif self._given_words_of:
            text, words = self._given_words_of(text)
        ids, starts, _ = self.tokenizer.tokenize(text)
        # Where each of the texts ends: splitting into words keeps the lines.
        line_ends = np.append(np.flatnonzero(code_points(text) == ord("\n")), len(text))
        lines = np.cumsum([part.count("\n") + 1 for part in texts], dtype=np.int64)
        text_ends = line_ends[lines - 1].astype(np.int32)
        sentence_ends = [match.end() for match in self._ends.finditer(text)]
        ends = np.unique(np.concatenate([sentence_ends, text_ends]).astype(np.int32))
        marks, num_found = np.zeros(0, np.uint8), 0
        if words is not None:
            if self.lexicon:
                found = self.lexicon.find(text)
                self.lexicon.keep_whole(words, found)
                marks, num_found = self.lexicon.find_marks(starts, found), len(found)
            words[ends] = True  # a word may extend over a sentence end
            ids = mark_words(words, ids, starts, self.tokenizer.continuation_ids)
        bounds = np.unique(np.append(0, np.searchsorted(starts, ends)))
        cuts = self._cuts(ids, bounds)
        bounds = np.sort(np.concatenate([bounds, *cuts]))
        text_bounds = np.append(0, np.searchsorted(starts, text_ends))
        sizes = np.diff(np.searchsorted(bounds, text_bounds))
        return Encoded(ids, np.diff(bounds).astype(np.int32), sizes, marks, len(cuts), num_found)

    def _cuts(self, ids: np.ndarray, bounds: np.ndarray) -> List[List[int]]:
        """Return where each too long sentence is cut, inside a word only if that is too long itself."""
        limit = self.rules.max_sentence_length
        cuts: List[List[int]] = []
        for sentence in np.flatnonzero(np.diff(bounds) > limit).tolist():
            begin, end = bounds[sentence : sentence + 2].tolist()
            cuts.append([])
            while end - begin > limit:
                word_starts = np.flatnonzero(
                    ~self.tokenizer.is_continuation[ids[begin + 1 : begin + limit + 1]]
                )
                begin += int(word_starts[-1]) + 1 if len(word_starts) else limit
                cuts[-1].append(begin)
        return cuts


def _groups(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield ``texts`` in groups, at least one, in order; none but the last is below CHARACTERS_AT_ONCE."""
    first, size = 0, 0
    for number, text in enumerate(texts):
        if size >= CHARACTERS_AT_ONCE:
            yield texts[first:number]
            first, size = number, 0
        size += len(text)
    yield texts[first:]
