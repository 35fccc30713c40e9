"""The texts of labelled pairs as numbers, and the rows A=B as a graph of them; numpy and scipy, no paddle."""

from dataclasses import dataclass
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional

import numpy as np

from data_tools.audit.text_quality import normalised, quote
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


EXAMPLES = 5
QUANTILES = (0, 5, 25, 50, 75, 95, 99, 100)


@dataclass(frozen=True)
class Finding:
    """One kind of finding: ``rows`` of ``of`` rows of ``file`` (train, dev, test) are what ``says`` says.

    The texts are compared normalised; ``exact``: how many rows also match unnormalised, where counted.
    """

    file: str
    kind: str
    rows: int
    of: int
    says: str
    examples: List[str]
    exact: Optional[int] = None


def findings_of(files: Dict[str, Coded], same: Optional[int]) -> List[Finding]:
    """Return everything that was found, in the order of a report.

    ``same``: the class of A=B, where there is one. Files without labels are only compared with train.
    """
    found: List[Finding] = []
    for name, file in files.items():
        if file.pairs.labels is not None:
            found += _of_one_file(name, file, same)
    for name in [name for name in files if name != "train"]:
        found += _of_two_files(name, files[name], files["train"])
    return [finding for finding in found if finding.rows]


def _of_one_file(name: str, file: Coded, same: Optional[int]) -> Iterator[Finding]:
    def finding(kind: str, find: Callable[[Coded], np.ndarray], says: str, show=_examples) -> Finding:
        where = find(file)
        exact = int((where & find(file.by_characters)).sum())
        return Finding(name, kind, int(where.sum()), len(file.pairs), says, show(file, where), exact)

    yield finding(
        "repeated", lambda f: is_repeated(f) & ~is_contradicted(f), "repeating an earlier pair and its label"
    )
    yield finding("contradicted", is_contradicted, "with a pair that has two labels", _examples_of_groups)
    yield finding("reversed", _is_reversed, "with an earlier pair in the other order")
    if same is not None:
        yield finding(
            "alike",
            lambda f: (f.left == f.right) & (f.pairs.labels != same),
            "labelled as different although the texts are equal",
        )
        yield _broken_transitivity(name, file, same)


def is_contradicted(file: Coded) -> np.ndarray:
    """Return whether each pair stands elsewhere in the file with another label, bool [rows].

    The order of its two texts does not matter.
    """
    _, group = np.unique(file.unordered, return_inverse=True)
    labels = file.pairs.known_labels
    lowest = np.full(group.max() + 1, labels.max())
    highest = np.full_like(lowest, labels.min())
    np.minimum.at(lowest, group, labels)
    np.maximum.at(highest, group, labels)
    return (lowest != highest)[group]


def is_repeated(file: Coded) -> np.ndarray:
    """Return whether an earlier row is the same pair in the same order, bool [rows]."""
    return _repeats(file.ordered)


def _is_reversed(file: Coded) -> np.ndarray:
    return _repeats(file.unordered) & ~_repeats(file.ordered) & ~is_contradicted(file)


def is_shared(file: Coded, others: List[Coded]) -> np.ndarray:
    """Return whether each pair stands in one of the other files, in either order, bool [rows]."""
    if not others:
        return np.zeros(len(file.pairs), dtype=bool)
    return np.isin(file.unordered, np.concatenate([other.unordered for other in others]))


def _repeats(keys: np.ndarray) -> np.ndarray:
    is_first = np.zeros(len(keys), dtype=bool)
    is_first[np.unique(keys, return_index=True)[1]] = True
    return ~is_first


def _broken_transitivity(name: str, file: Coded, same: int) -> Finding:
    """Find rows A/C whose texts are joined by a chain A=B=...=C of other rows."""
    is_same = (file.pairs.labels == same) & (file.left != file.right)
    links = Links(file, np.flatnonzero(is_same))
    broken = (file.pairs.labels != same) & (file.left != file.right)
    broken &= links.group[file.left] == links.group[file.right]
    broken &= ~np.isin(file.unordered, file.unordered[is_same])  # those are contradicted already
    examples = []
    for row in np.flatnonzero(broken)[:EXAMPLES].tolist():
        path = links.path(file.left[row], file.right[row])
        texts = " = ".join(quote(text) for text in path)
        examples.append(f"{file.pairs.where(row)} says they differ, but {texts}")
    says = "labelled as different although rows labelled as the same connect their texts"
    return Finding(name, "intransitive", int(broken.sum()), len(file.pairs), says, examples)


def _of_two_files(name: str, file: Coded, train: Coded) -> Iterator[Finding]:
    rows = len(file.pairs)
    shared = is_shared(file, [train])
    examples = []
    for row in np.flatnonzero(shared)[:EXAMPLES].tolist():
        there = int(np.argmax(train.unordered == file.unordered[row]))
        examples.append(f"{_example(file, row)}  is  {_example(train, there)}")
    exact = int(is_shared(file.by_characters, [train.by_characters]).sum())
    says = "with a pair of the training file, in either order"
    yield Finding(name, "shared", int(shared.sum()), rows, says, examples, exact)
    known = np.concatenate([train.left, train.right])
    left, right = np.isin(file.left, known), np.isin(file.right, known)
    for kind, where, says in (
        ("1 text seen", left ^ right, "with one text of the training file"),
        ("2 texts seen", left & right & ~shared, "with two texts of the training file, from different pairs"),
    ):
        yield Finding(name, kind, int(where.sum()), rows, says, [])
    if file.pairs.labels is not None and file.pairs.labels.dtype.kind == "i":  # a score may well be new
        unseen = ~np.isin(file.pairs.labels, train.pairs.known_labels)
        says = "with a label that no training pair has"
        yield Finding(name, "unseen label", int(unseen.sum()), rows, says, _examples(file, unseen))


def _examples(file: Coded, where: np.ndarray) -> List[str]:
    return [_example(file, row) for row in np.flatnonzero(where)[:EXAMPLES].tolist()]


def _examples_of_groups(file: Coded, where: np.ndarray) -> List[str]:
    """Return a line per pair that was found, with up to three of its rows side by side."""
    rows = np.flatnonzero(where)
    rows = rows[np.argsort(file.unordered[rows], kind="stable")]
    keys = file.unordered[rows]
    groups = np.split(rows, np.flatnonzero(np.diff(keys)) + 1) if len(rows) else []
    return ["  and  ".join(_example(file, row) for row in group[:3].tolist()) for group in groups[:EXAMPLES]]


def _example(file: Coded, row: int) -> str:
    pairs = file.pairs
    label = "" if pairs.labels is None else f" | {pairs.labels[row]}"
    return f"{pairs.where(row)}  {quote(pairs.left[row])} | {quote(pairs.right[row])}{label}"


def quantiles(lengths: np.ndarray) -> Dict[str, int]:
    """Return {percent: length} of lengths int64 [rows], for the percents in QUANTILES."""
    found = np.percentile(lengths, QUANTILES, method="lower")
    return {str(percent): int(length) for percent, length in zip(QUANTILES, found)}
