"""Count the n-grams of a corpus, exactly and in bounded memory: the rest is sorted and spilled to disk.

No n-gram crosses the end of a sentence, cuts a word of several pieces, or contains a control token or a
punctuation mark. Files have no name (they vanish with the process, however it ends) and are in TMPDIR.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple, Union

import numpy as np

from data_tools.text.characters import is_letter_or_digit
from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import FileRefusedError, naming, read_regular
from ernie_pair.core.files.json_file import JsonError, parse_json_object


class Scored(NamedTuple):
    """n-grams of one length, the best first: int64, float64 and int64 [K]."""

    keys: np.ndarray
    scores: np.ndarray
    counts: np.ndarray


NOTHING = Scored(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))


def score_ngrams(
    kind: str, token_counts: np.ndarray, length: int, windows: int, keys: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Return the scores, ``kind`` t or pmi, of n-grams of ``length`` tokens: float64 [K].

    ``token_counts``: int64 [V], how often each token is counted; ``windows``: of that length in the text;
    ``keys``, ``counts``: the n-grams and how often each occurs, int64 [K].
    """
    shares = token_counts / max(1, token_counts.sum())
    by_chance, rest = np.ones(len(keys)), keys
    for _ in range(length):
        rest, last = np.divmod(rest, len(shares))
        by_chance *= shares[last]
    share = counts / windows
    if kind == "pmi":
        return np.log(share / by_chance)
    deviation = np.sqrt(share * (1 - share) / windows)
    # If the text is one n-gram only, its deviation is 0: then no score is higher.
    return np.divide(share - by_chance, deviation, out=np.full(len(keys), np.inf), where=deviation > 0)


def merge_best(one: Scored, other: Scored, most: int) -> Scored:
    """Return the ``most`` best of two, the best first; ties by their keys."""
    keys, scores, counts = (np.concatenate(parts) for parts in zip(one, other))
    if len(keys) > most:
        least = np.partition(scores, len(scores) - most)[len(scores) - most]
        near = scores >= least
        keys, scores, counts = keys[near], scores[near], counts[near]
    order = np.lexsort((keys, -scores))[:most]
    return Scored(keys[order], scores[order], counts[order])


KEY_BITS = 63  # of an int64


class NgramTokens(NamedTuple):
    """A vocabulary of V tokens as n-grams see it.

    ``base_ids``: int64 [V], the id that the model reads for each id: X for the `##X` of a Chinese character.
    ``continues``: bool [V], the ids that continue a word of several pieces, which no n-gram cuts.
    ``countable``: bool [V], the ids that n-grams may contain: no control tokens, no punctuation.
    """

    base_ids: np.ndarray
    continues: np.ndarray
    countable: np.ndarray

    @property
    def size(self) -> int:
        """Return V."""
        return len(self.base_ids)


def ngram_tokens(tokenizer: AnyTokenizer) -> NgramTokens:
    """Return the vocabulary of ``tokenizer`` as n-grams see it."""
    base_ids = np.asarray(tokenizer.base_ids, np.int64)
    continues = tokenizer.is_continuation & (base_ids == np.arange(len(base_ids)))
    is_control = [
        len(token) > 2 and token.startswith("[") and token.endswith("]") for token in tokenizer.tokens
    ]
    is_text = [any(map(is_letter_or_digit, token)) for token in tokenizer.tokens]
    return NgramTokens(base_ids, continues, np.array(is_text, bool) & ~np.array(is_control, bool))


def longest_countable(vocab_size: int) -> int:
    """Return the maximum tokens of an n-gram for its key to fit an int64."""
    return int(KEY_BITS // np.log2(max(2, vocab_size)))


def window_keys(plain: np.ndarray, length: int, vocab_size: int) -> np.ndarray:
    """Return the keys of the windows of ``length`` ids in ``plain``, int64 [S]: int64 [S - length + 1].

    The ids are the digits of a number of base ``vocab_size``.
    """
    windows = max(0, len(plain) - length + 1)
    keys = np.zeros(windows, np.int64)
    for place in range(length):
        keys = keys * vocab_size + plain[place : place + windows]
    return keys


def uncut_windows(continues: np.ndarray, length: int) -> np.ndarray:
    """Return which windows of ``length`` of bool [S] begin and end with words: bool [S - length + 1]."""
    windows = max(0, len(continues) - length + 1)
    cut_after = np.append(continues[length:], False)[:windows]
    return ~continues[:windows] & ~cut_after


Counts = Tuple[np.ndarray, np.ndarray]  # keys ascending and how often each occurs, int64 [K] each


def count_text(
    text: Tuple[np.ndarray, np.ndarray], tokens: NgramTokens, longest: int
) -> Tuple[int, np.ndarray, Dict[int, Counts]]:
    """Count the tokens of ``text`` and its n-grams of 2 to ``longest`` tokens.

    ``text``: whole sentences, their ids, integers [S], and the tokens of each. Returns S, how often each
    token occurs, int64 [V], and {length: the n-grams}.
    """
    ids, lens = np.asarray(text[0], np.int64), text[1]
    plain, continues = tokens.base_ids[ids], tokens.continues[ids]
    sentence = np.repeat(np.arange(len(lens)), lens)
    # A word does not continue over a sentence end: what begins a sentence continues no word.
    continues &= np.append([False], sentence[1:] == sentence[:-1])[: len(ids)]
    usable = tokens.countable[plain]
    counted = np.bincount(plain[usable], minlength=tokens.size)
    ngrams = {}
    for length in range(2, longest + 1):
        windows = max(0, len(ids) - length + 1)
        held = uncut_windows(continues, length) & (sentence[:windows] == sentence[len(sentence) - windows :])
        for place in range(length):
            held &= usable[place : place + windows]
        found = np.unique(window_keys(plain, length, tokens.size)[held], return_counts=True)
        ngrams[length] = (found[0], found[1].astype(np.int64))
    return len(ids), counted.astype(np.int64), ngrams


class NgramCounts:
    """Accumulated counts, with at most ``most`` n-grams in memory between calls."""

    def __init__(self, most: int):
        self.most = most
        self.total = 0  # windows
        self._parts: List[Counts] = []
        self._held = 0
        self._runs: List[Counts] = []

    def add(self, counts: Counts) -> None:
        """Add counts."""
        self._parts.append(counts)
        self._held += len(counts[0])
        self.total += int(counts[1].sum())
        if self._held > self.most:
            self._parts = [_added(self._parts)]
            self._held = len(self._parts[0][0])
            if self._held > self.most // 2:  # merging no longer frees much
                size = self._held
                # Without a name: it vanishes with the arrays.
                with naming(tempfile.gettempdir()), tempfile.TemporaryFile() as file:
                    for array in self._parts.pop():
                        file.write(np.ascontiguousarray(array, np.int64).data)
                    file.flush()
                    keys, times = (
                        np.memmap(file, np.int64, "r", offset=8 * size * half, shape=(size,))
                        for half in range(2)
                    )
                self._runs.append((keys, times))
                self._held = 0

    def blocks(self) -> Iterator[Counts]:
        """Yield all counts in ascending order of keys, each n-gram once, at most ``most`` at a time."""
        runs = [*self._runs, _added(self._parts)]
        begins = [0] * len(runs)
        step = max(1, self.most // len(runs))
        while any(begin < len(run[0]) for begin, run in zip(begins, runs)):
            ends = [min(begin + step, len(run[0])) for begin, run in zip(begins, runs)]
            lasts = [run[0][end - 1] for end, run in zip(ends, runs) if end < len(run[0])]
            parts = []
            for place, (begin, (keys, counts)) in enumerate(zip(begins, runs)):
                end = int(np.searchsorted(keys, min(lasts), side="right")) if lasts else len(keys)
                parts.append((np.array(keys[begin:end]), np.array(counts[begin:end])))
                begins[place] = max(begin, end)
            yield _added(parts)


def _added(parts: List[Counts]) -> Counts:
    keys = np.concatenate([part[0] for part in parts] or [np.zeros(0, np.int64)])
    counts = np.concatenate([part[1] for part in parts] or [np.zeros(0, np.int64)])
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    firsts = np.flatnonzero(np.append([True], keys[1:] != keys[:-1])[: len(keys)])
    return keys[firsts], np.add.reduceat(counts, firsts) if len(firsts) else counts


HEAD = "# ernie-pair ngrams 1 "
MAX_BYTES = 1 << 28
SHORTEST = 2  # tokens
_CURE = "make it with ernie-pair build ngrams"


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

    def find(self, tokens: np.ndarray) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the n-grams in ``tokens``, int64 [S]: from the left, the longest at each position.

        That is the maximum matching of the paper. None cuts a word of several pieces. Returns their starts,
        ends and numbers, int64 [N] each, ascending.
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
        return starts, starts + lengths[starts], numbers[starts]


def lexicon_lines(best: Sequence[Scored], tokenizer: AnyTokenizer, about: Dict[str, object]) -> Iterator[str]:
    """Yield the lines of a lexicon: ``best`` n-grams of 2 tokens, of 3, ...; ``about``: for its head."""
    head = {"vocab_sha256": tokenizer.sha256, **about}
    yield f"{HEAD}{json.dumps(head, sort_keys=True)}\n"
    for length, scored in enumerate(best, start=SHORTEST):
        for key, score, count in zip(*(part.tolist() for part in scored)):
            ids: List[int] = []
            for _ in range(length):
                key, last = divmod(key, tokenizer.vocab_size)
                ids.insert(0, last)
            yield f"{' '.join(tokenizer.tokens[index] for index in ids)}\t{score:.6g}\t{count}\n"


def read_ngrams(path: Union[str, Path], flag: str, *vocabularies: AnyTokenizer) -> NgramLexicon:
    """Read the lexicon in the file ``path``, given by ``flag``.

    ``vocabularies``: that of the corpora, then others whose ids mean the same, such as the model's; it must
    be made with one of them. Raises InputError, with the line, for anything but a lexicon of these.
    """
    try:
        content = read_regular(path, MAX_BYTES)
        lines = content.decode("utf-8").splitlines() or [""]
        made_with = parse_json_object(lines[0].removeprefix(HEAD)).get("vocab_sha256")
    except (FileRefusedError, UnicodeDecodeError, JsonError) as error:
        raise InputError(f"{flag} {path}: not a lexicon ({error}); {_CURE}") from None
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
        content = read_regular(path, MAX_BYTES)
    except FileRefusedError:
        return False
    theirs, ours = (
        [line.partition(b"\t")[0] for line in each.splitlines()[1:]] for each in (content, lexicon.content)
    )
    return theirs == ours


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
