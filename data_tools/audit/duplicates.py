"""Find paragraphs that duplicate an earlier one, exactly (after normalisation) or nearly."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Sequence, Tuple, Union

import numpy as np

from data_tools.audit.text_quality import TextPlace
from data_tools.text.wordpiece import code_points
from ernie_pair.core.installation import import_optional

NUM_HASHES = 128
RECALL = 0.99  # of pairs at the threshold
SHORTEST = 20  # characters of a normalised paragraph; in a shorter one a single change is a large one
MAX_HEADS, MAX_COMPARED = 100, 50
_AT_ONCE = 4096  # shingles: 4 MB for each step of the MinHash
_PRIME, _GOLDEN = np.uint64(0x100000001B3), np.uint64(0x9E3779B97F4A7C15)


class NearRules(NamedTuple):
    """The rules: minimum Jaccard ``threshold``, characters of a ``shingle``, ``limit`` of the paragraphs."""

    threshold: float
    shingle: int
    limit: int

    @property
    def shortest(self) -> int:
        """Return the minimum length, in characters, of a normalised paragraph that is compared."""
        return max(SHORTEST, self.shingle)

    @property
    def shape(self) -> Tuple[int, int]:
        """Return (bands, hashes per band): the longest bands that find RECALL of pairs at the threshold."""
        for rows in range(NUM_HASHES, 1, -1):
            bands = NUM_HASHES // rows
            if 1 - (1 - self.threshold**rows) ** bands >= RECALL:
                return bands, rows
        return NUM_HASHES, 1


def compute_bands(texts: Sequence[str], rules: NearRules) -> np.ndarray:
    """Compute the bands of normalised texts: uint64 [texts, bands].

    Equal numbers in a column make two texts candidates. MinHash (Broder, "On the resemblance and
    containment of documents", 1997), a band hashed to one number.
    """
    bands, rows = rules.shape
    hashes = np.empty((len(texts), bands * rows), np.uint64)
    start = import_optional("datasketch").MinHash(num_perm=NUM_HASHES)
    for number, text in enumerate(texts):
        points = code_points(text)
        num_shingles = len(points) - rules.shingle + 1
        columns = (points[at : at + num_shingles].astype(np.uint64) for at in range(rules.shingle))
        numbers = np.unique(_mixed(columns) >> np.uint64(32))  # a hash of each shingle, below 2**32
        minhash = type(start)(hashvalues=start.hashvalues, permutations=start.permutations, hashfunc=int)
        for begin in range(0, len(numbers), _AT_ONCE):
            minhash.update_batch(numbers[begin : begin + _AT_ONCE].tolist())
        hashes[number] = minhash.hashvalues[: bands * rows]
    return _mixed(np.moveaxis(hashes.reshape(len(texts), bands, rows), 2, 0))


def _mixed(columns) -> np.ndarray:
    """Mix the numbers at the same index of each of ``columns``, all of one shape, into one uint64."""
    state: np.ndarray = np.zeros((), np.uint64)
    for column in columns:
        state = (column ^ state) * _PRIME
        state = state ^ (state >> np.uint64(29))
    return state * _GOLDEN


def near_groups(bands: np.ndarray, texts: Sequence[bytes], rules: NearRules) -> Dict[int, Dict[int, float]]:
    """Group near-duplicate texts: {head: {member: its Jaccard similarity to the head}}.

    ``texts``: normalised, UTF-8; ``bands``: uint64 [texts, bands], from `compute_bands`.
    """

    @lru_cache(maxsize=512)
    def shingles(paragraph: int) -> FrozenSet[str]:
        text, length = texts[paragraph].decode("utf-8"), rules.shingle
        return frozenset(text[begin : begin + length] for begin in range(len(text) - length + 1))

    heads_of: Dict[int, List[int]] = {}
    groups: Dict[int, Dict[int, float]] = {}
    for paragraph, buckets in _meetings(bands):
        common = Counter(head for bucket in buckets for head in heads_of.get(bucket, ()))
        # First the head with the most bands in common, the earliest on a tie.
        for head in sorted(common, key=lambda head: (-common[head], head))[:MAX_COMPARED]:
            ours, theirs = shingles(head), shingles(paragraph)
            similarity = len(ours & theirs) / len(ours | theirs)
            if similarity >= rules.threshold:
                groups.setdefault(head, {})[paragraph] = similarity
                break
        else:
            for bucket in buckets:
                heads = heads_of.setdefault(bucket, [])
                if len(heads) < MAX_HEADS:
                    heads.append(paragraph)
    return groups


def _meetings(bands: np.ndarray) -> Iterator[Tuple[int, List[int]]]:
    """Yield (paragraph, its buckets) in order, for those that share a band with another one."""
    paragraphs, buckets, num_buckets = [], [], 0
    for column in bands.T:
        _, bucket, sizes = np.unique(column, return_inverse=True, return_counts=True)
        meet = np.flatnonzero(sizes[bucket] > 1)
        paragraphs.append(meet)
        buckets.append(bucket[meet] + num_buckets)
        num_buckets += len(sizes)
    joined = np.concatenate(paragraphs)
    order = np.argsort(joined, kind="stable")
    pairs = zip(joined[order].tolist(), np.concatenate(buckets)[order].tolist())
    for paragraph, found in groupby(pairs, key=itemgetter(0)):
        yield paragraph, [bucket for _, bucket in found]


GROUPS = 5  # listed in a report
MEMBERS = 3  # shown of each listed group of near duplicates


class Table(NamedTuple):
    """All paragraphs in order, one row each.

    ``fingerprints`` uint64 of the normalised text, ``lengths`` uint32 in characters, ``compared`` uint32:
    those left after normalisation; ``lines``, ``parts`` uint32: the place in the file. ``is_empty`` bool.
    ``paths`` and ``begins``, int64 [batches + 1]: the file of each batch of rows, and its first row.
    """

    fingerprints: np.ndarray
    lengths: np.ndarray
    compared: np.ndarray
    lines: np.ndarray
    parts: np.ndarray
    is_empty: np.ndarray
    paths: List[str]
    begins: np.ndarray

    def place(self, row: int) -> TextPlace:
        """Return the place of paragraph ``row``: file, line, part."""
        batch = int(np.searchsorted(self.begins, row, side="right")) - 1
        return TextPlace(self.paths[batch], int(self.lines[row]), int(self.parts[row]))


@dataclass(frozen=True)
class Repeated:
    """A paragraph that occurs ``times`` times in the text, first ``at`` file:line."""

    times: int
    at: str
    text: str


@dataclass(frozen=True)
class ExactRepeats:
    """The exact duplicates: ``paragraphs`` duplicate an earlier one, ``characters`` of them in all.

    ``without_text``: of punctuation only, not compared. ``sizes``: {n: groups of n to 2 n - 1 paragraphs}.
    """

    paragraphs: int
    characters: int
    groups: int
    without_text: int
    sizes: Dict[int, int]
    most_repeated: List[Repeated]


@dataclass(frozen=True)
class NearMember:
    """A near duplicate of the first paragraph of its group; ``similarity``: their Jaccard similarity."""

    at: str
    similarity: float
    text: str


@dataclass(frozen=True)
class NearGroup:
    """A group of ``size`` near duplicates; ``at`` and ``text`` are those of the first."""

    size: int
    at: str
    text: str
    members: List[NearMember]


@dataclass(frozen=True)
class NearRepeats:
    """The near duplicates among the distinct paragraphs: ``paragraphs`` are similar to an earlier one.

    ``characters``: of these paragraphs. ``candidates`` have at least ``shortest`` characters to compare and
    are not exact duplicates; ``compared`` of them were, ``too_short`` not. ``sizes``: see ExactRepeats.
    """

    threshold: float
    shingle: int
    shortest: int
    too_short: int
    candidates: int
    compared: int
    paragraphs: int
    characters: int
    groups: int
    sizes: Dict[int, int]
    largest: List[NearGroup]


def listed_firsts(times: np.ndarray) -> List[int]:
    """Return which distinct paragraphs are the most frequent, at most GROUPS, none that occurs once."""
    ranked = np.argsort(-times, kind="stable")[:GROUPS]
    return ranked[times[ranked] > 1].tolist()


def exact_repeats(
    table: Table, firsts: np.ndarray, times: np.ndarray, texts: Dict[TextPlace, str]
) -> ExactRepeats:
    """Count the exact duplicates; ``firsts``, ``times``: row, how often; ``texts``: {place: its quote}."""
    has_text = table.compared > 0
    repeated = times[times > 1]
    listed = [(int(times[number]), table.place(firsts[number])) for number in listed_firsts(times)]
    return ExactRepeats(
        paragraphs=int(has_text.sum()) - len(firsts),
        characters=int(table.lengths[has_text].sum() - table.lengths[firsts].sum()),
        groups=len(repeated),
        without_text=int((~has_text & ~table.is_empty).sum()),
        sizes=doubling(repeated),
        most_repeated=[Repeated(count, str(place), texts[place]) for count, place in listed],
    )


class Comparison(NamedTuple):
    """The near duplicates in a ``sample`` of the ``candidates``, both int64 rows of a `Table`.

    ``groups``: see `near_groups`; heads and members are indices into ``sample``.
    """

    candidates: np.ndarray
    sample: np.ndarray
    groups: Dict[int, Dict[int, float]]

    @property
    def listed(self) -> Dict[int, List[int]]:
        """Return {head: the members that a report shows} of the largest groups, the largest first."""
        heads = sorted(self.groups, key=lambda head: (-len(self.groups[head]), head))
        return {head: list(self.groups[head])[:MEMBERS] for head in heads[:GROUPS]}


def near_repeats(
    table: Table, num_firsts: int, found: Comparison, rules: NearRules, texts: Dict[TextPlace, str]
) -> NearRepeats:
    """Count the near duplicates of ``num_firsts`` distinct paragraphs; ``texts``: {place: its quote}."""
    candidates, sample, groups = found
    members = [member for of_head in groups.values() for member in of_head]
    largest = []
    for head, listed in found.listed.items():
        first, *others = (table.place(sample[row]) for row in (head, *listed))
        examples = [
            NearMember(str(place), round(groups[head][member], 4), texts[place])
            for place, member in zip(others, listed)
        ]
        largest.append(NearGroup(1 + len(groups[head]), str(first), texts[first], examples))
    return NearRepeats(
        threshold=rules.threshold,
        shingle=rules.shingle,
        shortest=rules.shortest,
        too_short=num_firsts - len(candidates),
        candidates=len(candidates),
        compared=len(sample),
        paragraphs=len(members),
        characters=int(table.lengths[sample[members]].sum()),
        groups=len(groups),
        sizes=doubling([1 + len(of_head) for of_head in groups.values()]),
        largest=largest,
    )


def doubling(values: Union[np.ndarray, Sequence[int]]) -> Dict[int, int]:
    """Count positive numbers by powers of two: {1: how many are 1, 2: are 2 or 3, 4: are 4 to 7, ...}."""
    bars = np.bincount(np.floor(np.log2(np.asarray(values, np.float64))).astype(np.int64))
    return {2**bar: int(count) for bar, count in enumerate(bars) if count}
