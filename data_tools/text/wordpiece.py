"""Encode text to the WordPiece ids of an ERNIE or BERT vocabulary, as PaddleNLP's ErnieTokenizer does.

Text is classified character by character: a CJK character, a punctuation mark or a symbol is a piece by
itself; control characters and accents are dropped; what is left between them and the spaces is a word,
which the WordPiece model of `tokenizers` (Rust) cuts. The kind of a character does not depend on its
neighbours, so numpy looks it up for a whole text at once, and words are cached. It is that of one version of
Unicode (`characters`), whatever Python knows.

    "C罗2022，" -> kinds  word alone word word word word alone -> c 罗 2022 ，

With a cased vocabulary (``lower_case`` false) case and accents stay: C 罗 2022 ，

One difference is intended: "[MASK]", "[SEP]" and the like in a text are text ([, mask, ]), never
control ids. ErnieTokenizer.tokenize turns them into the ids that only a sample may contain.
"""

import hashlib
import os
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Sequence, Tuple, Union

import numpy as np
from tokenizers.models import WordPiece as WordCutter

from data_tools.text.characters import (
    categories,
    category,
    decomposed,
    in_canonical_order,
    lowered,
    unicode_version,
)
from ernie_pair.core.errors import InputError

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # this package starts its own processes


CONTROL_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")
CONTINUATION = "##"
END_OF_LETTERS = 0x40000  # beyond it are only selectors, tags and private-use characters, which are dropped
MAX_WORD_LENGTH = 100  # characters; to ErnieTokenizer anything longer is unknown
VANISHES, SPACE, ALONE, IN_WORD, COMPOSITE = range(5)
CJK_RANGES = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
COMPATIBLE = (0xF900, 0x2F800)  # the ranges of them that stand for others
# Not S in Unicode, but symbols to ErnieTokenizer, which looks after lower-casing, if it lower-cases.
_ALSO_SYMBOLS = "\u00b2\u00ba\u3007\u00b5\u014b\u014a"
_ALSO_SYMBOLS_CASED = "\u00b2\u00ba\u3007\u00b5\u014b\u00d8\u01b1"
_FAR_MARKS = slice(0xE0100, 0xE01F0)  # the only marks (Mn) beyond END_OF_LETTERS
_REMEMBERED_WORDS = 1 << 17


def code_points(text: str) -> np.ndarray:
    """Return the code point of every character of ``text``, halves of pairs included: uint32 [len(text)]."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


class TokenizedText(NamedTuple):
    """The n pieces of a text: their ids, and the offsets of each, text[start:end]; all int32 [n]."""

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


class WordPiece:
    """A WordPiece tokenizer: a vocabulary, and how to cut text with it.

    tokens            the token of every id; vocab the id of every token (the last, if it occurs twice)
    vocab_size        the number of ids, one per line of the file
    continuation_ids  int32[vocab_size]: the id of '##X' for the id of a CJK character X, otherwise -1
    base_ids          int32[vocab_size]: the id of X for the id of '##X', any other id for itself
    is_continuation   bool[vocab_size]: the token begins with '##'
    lower_case        false: case and accents of a text are kept, as a cased BERT needs
    sha256            of the tokens, one per line, of `cased` after them, and of the version of Unicode
    """

    truncation = "slow"  # of pairs that are too long, see `inference.token_rows.kept_lengths`
    is_word_piece = has_segments = True

    def __init__(self, tokens: Sequence[str], lower_case: bool = True):
        self.tokens, self.lower_case = list(tokens), lower_case
        self.vocab_size = len(self.tokens)
        self.vocab = {token: index for index, token in enumerate(self.tokens)}
        self.pad_id, self.cls_id, self.sep_id, self.mask_id, self.unk_id = map(
            self.vocab.__getitem__, CONTROL_TOKENS
        )
        self.text_specials = [self.cls_id], [self.sep_id]
        self.pair_specials = [self.cls_id], [self.sep_id], [self.sep_id]
        named = [*self.tokens, "", *(() if lower_case else ["cased"]), f"unicode {unicode_version()}"]
        self.sha256 = hashlib.sha256("\n".join(named).encode("utf-8")).hexdigest()
        self.continuation_ids, self.base_ids = find_twins(self.tokens, self.vocab)
        self.is_continuation = np.array([token.startswith(CONTINUATION) for token in self.tokens])
        self._cutter = WordCutter(self.vocab, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_LENGTH)
        self._ids_alone = np.full(0x110000, self.unk_id, dtype=np.int32)  # of pieces of a single character
        for token, index in self.vocab.items():
            if len(token) == 1:
                self._ids_alone[ord(token)] = index
        for point, shape in _ruling(lower_case)[1].items():
            self._ids_alone[point] = self.vocab.get(shape, self.unk_id)
        self._remembered: Dict[str, Tuple[List[int], List[int], List[int]]] = {}

    @classmethod
    def from_file(cls, path: Union[str, Path], lower_case: bool = True) -> "WordPiece":
        """Read a vocab.txt: a token per line, its id the line's number from 0.

        A token may occur twice (ERNIE-Gram's `$` does): the later id is used, as in PaddleNLP.
        Raises InputError for a file that is missing, empty, not UTF-8 (file:line), or lacks a control token.
        """
        tokens = read_tokens(Path(path))
        missing = [token for token in CONTROL_TOKENS if token not in tokens]
        if missing:
            raise InputError(
                f"{path}: no {' '.join(missing)} among its {len(tokens)} tokens; "
                "give the vocab.txt of an ERNIE model (one token per line, UTF-8 without BOM)"
            )
        return cls(tokens, lower_case)

    def without_control_tokens(self) -> "WordPiece":
        """Return itself, to which "[MASK]" and its like in a text are text."""
        return self

    def encode(self, text: str) -> List[int]:
        """Encode ``text`` to its token ids, without [CLS] and [SEP]."""
        return self.tokenize(text).ids.tolist()

    def encode_batch(self, texts: Iterable[str]) -> List[List[int]]:
        """Encode each of ``texts`` to its token ids, without [CLS] and [SEP]."""
        return [found.ids.tolist() for found in self.tokenize_batch(list(texts))]

    def tokenize_batch(self, texts: List[str]) -> List[TokenizedText]:
        """Cut each of ``texts``, as ``tokenize`` does, in one call: faster for short texts."""
        ids, starts, ends = self.tokenize("\n".join(texts))
        begins = np.cumsum([0] + [len(text) + 1 for text in texts])
        cuts = np.searchsorted(starts, begins)
        spans = [slice(first, last) for first, last in zip(cuts, cuts[1:])]
        return [TokenizedText(ids[s], starts[s] - begin, ends[s] - begin) for s, begin in zip(spans, begins)]

    def tokenize(self, text: str) -> TokenizedText:
        """Cut ``text`` into n pieces, in their order in the text: ids, starts and ends, each int32 [n]."""
        points = code_points(text)
        kinds = character_kinds(self.lower_case)[points]
        if (kinds == COMPOSITE).any():
            # One of the dozen musical notes that NFD splits into a symbol and a letter.
            parts = [_plain_shape(c) if character_kinds()[ord(c)] == COMPOSITE else c for c in text]
            origin = np.repeat(np.arange(len(text), dtype=np.int32), [len(part) for part in parts])
            ids, starts, ends = self.tokenize("".join(parts))
            return TokenizedText(ids, origin[starts], origin[ends - 1] + np.int32(1))
        alone = np.flatnonzero(kinds == ALONE).astype(np.int32)
        words = self._cut_words(text, kinds)
        singles = TokenizedText(self._ids_alone[points[alone]], alone, alone + np.int32(1))
        if not len(words.ids):
            return singles
        order = np.argsort(np.concatenate([singles.starts, words.starts]), kind="stable")
        return TokenizedText(*(np.concatenate(pair)[order] for pair in zip(singles, words)))

    def _cut_words(self, text: str, kinds: np.ndarray) -> TokenizedText:
        """Cut the words of a text into pieces; each distinct word is cut once, the rest is numpy."""
        begins, ends = _spans_of_words(kinds)
        words = [text[begin:end] for begin, end in zip(begins.tolist(), ends.tolist())]
        different = {word: number for number, word in enumerate(dict.fromkeys(words))}
        cuts = []
        for word in different:
            found = self._remembered.get(word)  # another thread may clear them
            if found is None:
                if len(self._remembered) >= _REMEMBERED_WORDS:
                    self._remembered.clear()
                found = self._remembered[word] = self._cut_word(word)
            cuts.append(found)
        columns = [np.array(list(chain.from_iterable(column)), dtype=np.int32) for column in zip(*cuts)]
        number_of_word = np.fromiter(map(different.__getitem__, words), dtype=np.int64, count=len(words))
        sizes = np.array([len(ids) for ids, _, _ in cuts], dtype=np.int64)
        firsts, counts = (np.cumsum(sizes) - sizes)[number_of_word], sizes[number_of_word]
        place = np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        ids, starts, ends = (column[place] for column in columns or [np.zeros(0, np.int32)] * 3)
        begin_of_piece = np.repeat(begins.astype(np.int32), counts)
        return TokenizedText(ids, begin_of_piece + starts, begin_of_piece + ends)

    def _cut_word(self, word: str) -> Tuple[List[int], List[int], List[int]]:
        """Return the ids of a word's pieces, and where in it each of them starts and ends."""
        shape, origin = _shape_of(word, self.lower_case)
        if not shape:
            return [], [], []
        pieces = self._cutter.tokenize(shape)
        if len(pieces) == 1:
            return [pieces[0].id], [0], [len(word)]
        lengths = [len(piece.value) - (len(CONTINUATION) if n else 0) for n, piece in enumerate(pieces)]
        ends = list(accumulate(lengths))
        starts = [0, *ends[:-1]]
        return [p.id for p in pieces], [origin[cut] for cut in starts], [origin[cut - 1] + 1 for cut in ends]


def character_kinds(lower_case: bool = True) -> np.ndarray:
    """Return the kind of each character of Unicode: VANISHES, SPACE, ... in uint8 [0x110000]."""
    return _ruling(lower_case)[0]


def is_cjk(character: str) -> bool:
    """Return whether ``character`` is one of those that are a token by themselves."""
    if "\u4e00" <= character <= "\u9fff":  # nearly all of them, and faster to check
        return True
    return character >= "\u3400" and any(low <= ord(character) <= high for low, high in CJK_RANGES)


def word_shapes(text: str) -> List[str]:
    """Return the normalised words of a text, 'Été在2022' -> ['ete', '在', '2022']: to build vocabularies."""
    kinds = character_kinds()[code_points(text)]
    alone = ((index, index + 1) for index in np.flatnonzero(kinds == ALONE).tolist())
    begins, ends = _spans_of_words(kinds)
    spans = sorted([*alone, *zip(begins.tolist(), ends.tolist())])
    return ["".join(map(_plain_shape, text[begin:end])) for begin, end in spans]


def read_tokens(path: Path) -> List[str]:
    """Return the tokens of a vocab.txt, its lines. Raises InputError if it is missing or not UTF-8."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; give the vocab.txt of the model")
    content = path.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: not UTF-8; save the vocabulary as UTF-8") from None
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def find_twins(tokens: List[str], vocab: Dict[str, int]) -> Tuple[np.ndarray, np.ndarray]:
    """Return continuation_ids and base_ids of a vocabulary, see `WordPiece`."""
    continuation_ids = np.full(len(tokens), -1, dtype=np.int32)
    base_ids = np.arange(len(tokens), dtype=np.int32)
    for index, token in enumerate(tokens):
        if len(token) == 1 and is_cjk(token):
            continuation_ids[index] = vocab.get(CONTINUATION + token, -1)
        elif len(token) == 3 and token.startswith(CONTINUATION) and is_cjk(token[2]):
            base_ids[index] = vocab.get(token[2], index)
    return continuation_ids, base_ids


def _spans_of_words(kinds: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Return where each run of IN_WORD starts and ends; what is dropped does not end a word."""
    kept = np.flatnonzero(kinds != VANISHES)
    in_word = np.zeros(len(kept) + 2, dtype=np.int8)
    in_word[1:-1] = kinds[kept] == IN_WORD
    edges = np.flatnonzero(np.diff(in_word))
    return kept[edges[0::2]], kept[edges[1::2] - 1] + 1


def _shape_of(word: str, lower_case: bool) -> Tuple[str, Sequence[int]]:
    """Return the normalised form of a word, and for each of its characters the index of the original."""
    if not lower_case:
        kept = [index for index, character in enumerate(word) if not _is_control(character)]
        return "".join(word[index] for index in kept), kept
    if word.isascii() and word.isprintable():
        return word.lower(), range(len(word))
    shapes = [_plain_shape(character) for character in word]
    # Accents of several characters are reordered together, which keeps their number.
    return in_canonical_order("".join(shapes)), [index for index, part in enumerate(shapes) for _ in part]


def _plain_shape(character: str) -> str:
    """Lower the case of a character and drop its accents: 'É' -> 'e'; '' for what is dropped."""
    lower = "".join(c for c in lowered(character) if not _is_control(c))
    return "".join(c for c in decomposed(lower) if category(c) != "Mn")


def _is_control(character: str) -> bool:
    return character == "\ufffd" or (category(character)[0] == "C" and character not in "\t\n\r")


@lru_cache(maxsize=2)
def _ruling(lower_case: bool = True) -> Tuple[np.ndarray, Dict[int, str]]:
    """Return the kind of each character, uint8 [0x110000], and {piece by itself: its other form, if any}."""
    major, minor = categories()[:END_OF_LETTERS].view("S1").reshape(-1, 2).T
    vanishes = major == b"C"
    if lower_case:
        vanishes |= (major == b"M") & (minor == b"n")
    kinds = np.full(END_OF_LETTERS, IN_WORD, dtype=np.uint8)
    kinds[(major == b"P") | (major == b"S")] = ALONE
    kinds[list(map(ord, _ALSO_SYMBOLS if lower_case else _ALSO_SYMBOLS_CASED))] = ALONE
    for low, high in CJK_RANGES:
        kinds[low : high + 1] = ALONE
    kinds[major == b"Z"] = SPACE
    kinds[vanishes] = VANISHES
    kinds[0xFFFD] = VANISHES
    kinds[[ord(space) for space in "\t\n\r"]] = SPACE
    kinds = np.concatenate([kinds, np.full(0x110000 - END_OF_LETTERS, VANISHES, dtype=np.uint8)])
    reshaped: Dict[int, str] = {}
    if not lower_case:
        kinds[_FAR_MARKS] = IN_WORD
        return kinds, reshaped
    has_forms = kinds == ALONE
    for low, high in CJK_RANGES:
        has_forms[low : high + 1] &= low in COMPATIBLE  # a unified ideograph is what it is
    for point in np.flatnonzero(has_forms).tolist():
        if decomposed(lowered(chr(point))) != chr(point):
            reshaped[point] = _plain_shape(chr(point))
    kinds[[point for point, shape in reshaped.items() if len(shape) > 1]] = COMPOSITE
    return kinds, reshaped
