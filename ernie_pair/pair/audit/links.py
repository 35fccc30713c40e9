"""The texts of labelled pairs as numbers, and the rows A=B as a graph of them; numpy and scipy, no paddle."""

from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional

import numpy as np

from data_tools.audit.paragraphs import normalised
from ernie_pair.pair.data.pair_file import Pairs


class Coded(NamedTuple):
    """A file whose texts are numbers, equal for equal texts in all files; int64 [rows].

    Texts are equal here when they are so normalised; in ``exact``, which is the file once more, when they are
    so character by character.
    """

    pairs: Pairs
    left: np.ndarray
    right: np.ndarray
    exact: Optional["Coded"] = None

    @property
    def by_characters(self) -> "Coded":
        """Return the file by the numbers of its texts as they stand: itself, where it is that already."""
        return self if self.exact is None else self.exact

    @property
    def ordered(self) -> np.ndarray:
        """Return a key per row, that of its two texts in their order, int64 [rows]."""
        return (self.left << 32) | self.right

    @property
    def unordered(self) -> np.ndarray:
        """Return a key per row, the same for (A, B) and (B, A), int64 [rows]."""
        return (np.minimum(self.left, self.right) << 32) | np.maximum(self.left, self.right)


def coded(files: Dict[str, Pairs]) -> Dict[str, Coded]:
    """Return the files under their names, with a number for each of their texts."""
    exact, alike = _numbered(files, iter), _numbered(files, compared_texts)
    return {name: file._replace(exact=exact[name]) for name, file in alike.items()}


def _numbered(files: Dict[str, Pairs], compared: Callable[[List[str]], Iterable[str]]) -> Dict[str, Coded]:
    numbers: Dict[str, int] = {}

    def number(side: List[str]) -> np.ndarray:
        return np.array([numbers.setdefault(text, len(numbers)) for text in compared(side)], dtype=np.int64)

    return {name: Coded(pairs, number(pairs.left), number(pairs.right)) for name, pairs in files.items()}


def compared_texts(texts: List[str]) -> Iterator[str]:
    """Return the texts as they are compared when normalised; punctuation alone is compared as it stands."""
    short = normalised([text.replace("\n", " ") for text in texts])
    return (left or text.strip() for left, text in zip(short, texts))


class Links:
    """The rows A=B as a graph of texts; ``group[text]`` is equal for texts that a chain joins."""

    def __init__(self, file: Coded, rows: np.ndarray):
        from scipy.sparse import coo_matrix
        from scipy.sparse.csgraph import connected_components

        self.file, self.rows = file, rows
        size = int(max(file.left.max(), file.right.max())) + 1
        ends = file.left[rows], file.right[rows]
        self.graph = coo_matrix((np.ones(len(rows)), ends), shape=(size, size)).tocsr()
        self.group = connected_components(self.graph, directed=False)[1]

    def path(self, begin: int, end: int) -> List[str]:
        """Return the texts of a shortest chain between two texts, given by their numbers."""
        from scipy.sparse.csgraph import breadth_first_order

        _, before = breadth_first_order(self.graph, begin, directed=False)
        passed = [end]
        while passed[-1] != begin:
            passed.append(before[passed[-1]])
        return [self._text_of(number) for number in reversed(passed)]

    def _text_of(self, number: int) -> str:
        for side, texts in ((self.file.left, self.file.pairs.left), (self.file.right, self.file.pairs.right)):
            rows = np.flatnonzero(side == number)
            if len(rows):
                return texts[rows[0]]
        raise AssertionError(f"text {number} stands in no row")
