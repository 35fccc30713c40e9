"""The n-grams of a text that are one unit, in a human-readable file: ngrams.txt.

    # ernie-pair ngrams 1 {"vocab_sha256": "...", "score": "t", "min_count": 5, "sizes": [10000, 10000]}
    人 工<TAB>123.457<TAB>15342

A line for each n-gram: its tokens, its score, how often it was counted. Those of two tokens come first, then
those of three, each the best first; the number of an n-gram is that of its line, from 0.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple, Union

import numpy as np

from data_tools.base.errors import InputError
from data_tools.base.regular_file import FileRefusedError, read_regular
from data_tools.files.json_file import JsonError, parse_json_object
from data_tools.ngrams.ngram_scores import Scored
from data_tools.ngrams.ngram_tokens import (
    NgramTokens,
    ids_of_key,
    longest_countable,
    ngram_tokens,
    uncut_windows,
    window_keys,
)
from data_tools.text.folder_tokenizer import AnyTokenizer

HEAD = "# ernie-pair ngrams 1 "
MOST_BYTES = 1 << 28
SHORTEST = 2  # tokens
_CURE = "make it with ernie-pair build-ngrams"


class FoundNgrams(NamedTuple):
    """Non-overlapping n-grams in a sequence of tokens: int64 [N] each, ascending."""

    starts: np.ndarray
    ends: np.ndarray
    numbers: np.ndarray


class NgramLexicon:
    """K n-grams of a vocabulary, each with a number from 0 to K - 1.

    ``ngrams``: their ids, each a tuple; ``content``: the bytes of their file. ``sha256``: of the n-grams in
    their order, without their scores.
    """

    def __init__(self, ngrams: Sequence[Tuple[int, ...]], tokens: NgramTokens, content: bytes = b""):
        self.ngrams, self.tokens, self.content = list(ngrams), tokens, content
        self.sha256 = hashlib.sha256(repr(self.ngrams).encode()).hexdigest()
        self._keys: Dict[int, Tuple[np.ndarray, np.ndarray]] = {}
        for length in sorted({len(ngram) for ngram in self.ngrams}):
            numbers = np.array([n for n, ngram in enumerate(self.ngrams) if len(ngram) == length], np.int64)
            rows = np.array([self.ngrams[number] for number in numbers], np.int64)
            keys = np.array([window_keys(row, length, tokens.size)[0] for row in rows])
            order = np.argsort(keys)
            self._keys[length] = keys[order], numbers[order]

    def __len__(self) -> int:
        return len(self.ngrams)

    def find(self, tokens: np.ndarray) -> FoundNgrams:
        """Return the n-grams in ``tokens``, int64 [S]: from the left, the longest at each position.

        That is the maximum matching of the paper. None cuts a word of several pieces.
        """
        plain, continues = self.tokens.base_ids[tokens], self.tokens.continues[tokens]
        lengths, numbers = np.zeros((2, len(tokens)), np.int64)
        for length, (keys, of_keys) in self._keys.items():  # longer ones last, overwriting shorter ones
            wanted = window_keys(plain, length, self.tokens.size)
            places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            hits = np.flatnonzero((keys[places] == wanted) & uncut_windows(continues, length))
            lengths[hits], numbers[hits] = length, of_keys[places[hits]]
        kept, free = [], 0
        begins = np.flatnonzero(lengths)
        for begin, end in zip(begins.tolist(), (begins + lengths[begins]).tolist()):
            if begin >= free:
                kept.append(begin)
                free = end
        starts = np.array(kept, np.int64)
        return FoundNgrams(starts, starts + lengths[starts], numbers[starts])


def lexicon_lines(best: Sequence[Scored], tokenizer: AnyTokenizer, about: Dict[str, object]) -> Iterator[str]:
    """Yield the lines of a lexicon: ``best`` n-grams of 2 tokens, of 3, ...; ``about``: for its head."""
    head = {"vocab_sha256": tokenizer.sha256, **about}
    yield f"{HEAD}{json.dumps(head, sort_keys=True)}\n"
    for length, scored in enumerate(best, start=SHORTEST):
        for key, score, count in zip(*(part.tolist() for part in scored)):
            ids = ids_of_key(key, length, tokenizer.vocab_size)
            yield f"{' '.join(tokenizer.tokens[index] for index in ids)}\t{score:.6g}\t{count}\n"


def read_ngrams(path: Union[str, Path], flag: str, *vocabularies: AnyTokenizer) -> NgramLexicon:
    """Read the lexicon in the file ``path``, given by ``flag``.

    ``vocabularies``: that of the corpora, then others whose ids mean the same, such as the model's; it must
    be made with one of them. Raises InputError, with the line, for anything but a lexicon of these.
    """
    try:
        content = read_regular(path, MOST_BYTES)
        lines = content.decode("utf-8").splitlines()
    except FileRefusedError as error:
        raise InputError(f"{flag} {path}: {error}; {_CURE}") from None
    except UnicodeDecodeError:
        raise InputError(f"{flag} {path}: not UTF-8, so not a lexicon; {_CURE}") from None
    made_with = _read_head(lines[:1], f"{flag} {path}:1").get("vocab_sha256")
    if made_with not in [vocabulary.sha256 for vocabulary in vocabularies]:
        raise InputError(
            f"{flag} {path}:1: it was made with another vocabulary than that of the model; {_CURE} and the "
            "model's vocab.txt"
        )
    tokens = vocabularies[0]
    return NgramLexicon(_read_lines(lines, f"{flag} {path}", tokens), ngram_tokens(tokens), content)


def holds_same_ngrams(path: Path, lexicon: NgramLexicon) -> bool:
    """Return whether the file ``path`` has the n-grams of ``lexicon``, in their order; scores may differ."""
    try:
        content = read_regular(path, MOST_BYTES)
    except FileRefusedError:
        return False
    theirs, ours = (
        [line.partition(b"\t")[0] for line in each.splitlines()[1:]] for each in (content, lexicon.content)
    )
    return theirs == ours


def _read_head(lines: List[str], where: str) -> Dict[str, Any]:
    if not lines or not lines[0].startswith(HEAD):
        raise InputError(f"{where}: does not begin with '{HEAD.strip()}'; {_CURE}")
    try:
        return parse_json_object(lines[0][len(HEAD) :])
    except JsonError as error:
        raise InputError(f"{where}: {error}; {_CURE}") from None


def _read_lines(lines: List[str], where: str, tokenizer: AnyTokenizer) -> List[Tuple[int, ...]]:
    longest = longest_countable(tokenizer.vocab_size)
    found: Dict[Tuple[int, ...], int] = {}
    for number, line in enumerate(lines[1:], start=2):
        columns = line.split("\t")
        ids = tuple(tokenizer.vocab.get(token, -1) for token in columns[0].split(" "))
        fault = ""
        if len(columns) != 3 or not SHORTEST <= len(ids) <= longest:
            fault = f"not {SHORTEST} to {longest} tokens, TAB score, TAB count"
        elif min(ids) < 0:
            fault = "contains a token that is not in the vocabulary"
        elif ids in found:
            fault = f"is already in line {found[ids]}"
        if fault:
            raise InputError(f"{where}:{number}: {fault}; {_CURE}")
        found[ids] = number
    if not found:
        raise InputError(f"{where}: holds no n-gram; {_CURE} and a larger corpus, or a smaller --min_count")
    return list(found)
