"""Count the n-grams of a corpus, exactly and in bounded memory: the rest is sorted and spilled to disk.

No n-gram crosses the end of a sentence, cuts a word of several pieces, or contains a control token or a
punctuation mark. Files have no name (they vanish with the process, however it ends) and are in TMPDIR.
"""

import tempfile
from typing import Dict, Iterator, List, NamedTuple, Tuple

import numpy as np

from data_tools.ngrams.ngram_tokens import NgramTokens, uncut_windows, window_keys

Counts = Tuple[np.ndarray, np.ndarray]  # keys ascending and how often each occurs, int64 [K] each


class Text(NamedTuple):
    """Whole sentences: ``ids``, integers [S], and ``lens``, tokens of each sentence."""

    ids: np.ndarray
    lens: np.ndarray


class TextCounts(NamedTuple):
    """The counts of a text: int64 [V] of its tokens, and the n-grams of each length."""

    tokens: np.ndarray
    ngrams: Dict[int, Counts]


def count_text(text: Text, tokens: NgramTokens, longest: int) -> TextCounts:
    """Count the tokens of ``text`` and its n-grams of 2 to ``longest`` tokens."""
    ids = np.asarray(text.ids, np.int64)
    plain, continues = tokens.base_ids[ids], tokens.continues[ids]
    sentence = np.repeat(np.arange(len(text.lens)), text.lens)
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
    return TextCounts(counted.astype(np.int64), ngrams)


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
                self._runs.append(self._on_disk(self._parts.pop()))
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

    def _on_disk(self, counts: Counts) -> Counts:
        """Return ``counts`` mapped from a file without a name, which vanishes with the arrays."""
        size = len(counts[0])
        with tempfile.TemporaryFile() as file:
            for array in counts:
                file.write(np.ascontiguousarray(array, np.int64).data)
            file.flush()
            keys, times = (
                np.memmap(file, np.int64, "r", offset=8 * size * half, shape=(size,)) for half in range(2)
            )
        return keys, times


def _added(parts: List[Counts]) -> Counts:
    """Return the sum of counts."""
    keys = np.concatenate([part[0] for part in parts] or [np.zeros(0, np.int64)])
    counts = np.concatenate([part[1] for part in parts] or [np.zeros(0, np.int64)])
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    firsts = np.flatnonzero(np.append([True], keys[1:] != keys[:-1])[: len(keys)])
    return keys[firsts], np.add.reduceat(counts, firsts) if len(firsts) else counts
