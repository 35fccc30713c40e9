"""Find paragraphs that duplicate an earlier one, exactly (after normalisation) or nearly."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from data_tools.audit.text_quality import TextPlace
from data_tools.files.installation import import_optional
from data_tools.text.wordpiece import code_points

NUM_HASHES = 128
RECALL = 0.99  # of pairs at the threshold
SHORTEST = 20  # characters of a normalised paragraph; in a shorter one a single change is a large one
MOST_HEADS, MOST_COMPARED = 100, 50
_AT_ONCE = 4096  # shingles: 4 MB for each step of the MinHash
_PRIME, _GOLDEN = np.uint64(0x100000001B3), np.uint64(0x9E3779B97F4A7C15)


class NearRules(NamedTuple):
    """The rules for near duplicates.

    ``threshold``: minimum Jaccard similarity; ``shingle``: characters; ``limit``: maximum of paragraphs.
    """

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


class Member(NamedTuple):
    """A paragraph of a group and its Jaccard similarity to the group's head."""

    paragraph: int
    similarity: float


def bands_of(texts: Sequence[str], rules: NearRules) -> np.ndarray:
    """Compute the bands of normalised texts: uint64 [texts, bands].

    Equal numbers in a column make two texts candidates. MinHash (Broder, "On the resemblance and
    containment of documents", 1997), a band hashed to one number.
    """
    bands, rows = rules.shape
    hashes = np.empty((len(texts), bands * rows), np.uint64)
    start = _no_shingles()
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


@lru_cache(maxsize=1)
def _no_shingles():
    return import_optional("datasketch", "audit").MinHash(num_perm=NUM_HASHES)


def _mixed(columns) -> np.ndarray:
    """Mix the numbers at the same index of each of ``columns``, all of one shape, into one uint64."""
    state: np.ndarray = np.zeros((), np.uint64)
    for column in columns:
        state = (column ^ state) * _PRIME
        state = state ^ (state >> np.uint64(29))
    return state * _GOLDEN


def near_groups(bands: np.ndarray, texts: Sequence[bytes], rules: NearRules) -> Dict[int, List[Member]]:
    """Group near-duplicate texts: {head: its members}.

    ``texts``: normalised, UTF-8; ``bands``: uint64 [texts, bands], from `bands_of`.
    """
    similarity = _similarity_in(texts, rules.shingle)
    heads_of: Dict[int, List[int]] = {}
    groups: Dict[int, List[Member]] = {}
    for paragraph, buckets in _meetings(bands):
        head = _first_alike(paragraph, [heads_of.get(bucket, ()) for bucket in buckets], similarity, rules)
        if head:
            groups.setdefault(head.paragraph, []).append(Member(paragraph, head.similarity))
            continue
        for bucket in buckets:
            heads = heads_of.setdefault(bucket, [])
            if len(heads) < MOST_HEADS:
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


def _first_alike(paragraph: int, known, similarity, rules: NearRules) -> Optional[Member]:
    """Return the head with the most bands in common that is similar enough, the earliest on a tie."""
    common = Counter(head for heads in known for head in heads)
    ranked = sorted(common, key=lambda head: (-common[head], head))
    for head in ranked[:MOST_COMPARED]:
        found = similarity(head, paragraph)
        if found >= rules.threshold:
            return Member(head, found)
    return None


def _similarity_in(texts: Sequence[bytes], shingle: int):
    @lru_cache(maxsize=512)
    def shingles(paragraph: int) -> FrozenSet[str]:
        text = texts[paragraph].decode("utf-8")
        return frozenset(text[begin : begin + shingle] for begin in range(len(text) - shingle + 1))

    def similarity(one: int, other: int) -> float:
        """Return the true Jaccard similarity."""
        common = len(shingles(one) & shingles(other))
        return common / (len(shingles(one)) + len(shingles(other)) - common)

    return similarity


GROUPS = 5  # listed in a report
MEMBERS = 3  # shown of each listed group of near duplicates


class Table(NamedTuple):
    """All paragraphs in order, one row each.

    ``fingerprints`` uint64 of the normalised text, ``lengths`` uint32 in characters, ``compared``
    uint32: those left after normalisation; ``lines``, ``parts`` uint32: the place in the file.
    ``paths`` and ``begins``, int64 [batches + 1]: the file of each batch of rows, and its first row.
    """

    fingerprints: np.ndarray
    lengths: np.ndarray
    compared: np.ndarray
    lines: np.ndarray
    parts: np.ndarray
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

    ``without_text``: paragraphs of punctuation only, which are not compared. ``sizes``: {n: groups of n to
    2 n - 1 paragraphs}.
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
    are not exact duplicates; ``compared`` of them were compared, ``too_short`` others were not. ``sizes``: as
    in ExactRepeats.
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


class Firsts(NamedTuple):
    """The first row of each of n distinct paragraphs, in order, and how often each occurs in the text.

    Both are int64 [n].
    """

    rows: np.ndarray
    times: np.ndarray


def firsts_of(table: Table) -> Firsts:
    """Find the distinct paragraphs of ``table`` that have characters to compare."""
    rows = np.flatnonzero(table.compared)
    _, first, times = np.unique(table.fingerprints[rows], return_index=True, return_counts=True)
    order = np.argsort(first)
    return Firsts(rows[first[order]], times[order])


def listed_firsts(firsts: Firsts) -> np.ndarray:
    """Return the indices in ``firsts`` of the most frequent ones, at most GROUPS, none that occurs once."""
    ranked = np.argsort(-firsts.times, kind="stable")[:GROUPS]
    return ranked[firsts.times[ranked] > 1]


def near_candidates(table: Table, firsts: Firsts, rules: NearRules) -> np.ndarray:
    """Return the rows of ``firsts`` that are long enough to compare, int64 [candidates]."""
    return firsts.rows[table.compared[firsts.rows] >= rules.shortest]


def near_sample(table: Table, candidates: np.ndarray, limit: int) -> np.ndarray:
    """Return at most ``limit`` rows of ``candidates``, int64, in order; their texts alone decide which."""
    if len(candidates) <= limit:
        return candidates
    smallest = np.argpartition(table.fingerprints[candidates], limit - 1)[:limit]
    return candidates[np.sort(smallest)]


def exact_repeats(
    table: Table, is_empty: np.ndarray, firsts: Firsts, texts: Dict[TextPlace, str]
) -> ExactRepeats:
    """Count the exact duplicates in ``table``.

    ``is_empty``: bool [rows]; ``texts``: the quote at each listed place.
    """
    has_text = table.compared > 0
    repeated = firsts.times[firsts.times > 1]
    return ExactRepeats(
        paragraphs=int(has_text.sum()) - len(firsts.rows),
        characters=int(table.lengths[has_text].sum() - table.lengths[firsts.rows].sum()),
        groups=len(repeated),
        without_text=int((~has_text & ~is_empty).sum()),
        sizes=doubling(repeated),
        most_repeated=[
            Repeated(int(firsts.times[number]), str(place), texts[place])
            for number in listed_firsts(firsts).tolist()
            for place in [table.place(firsts.rows[number])]
        ],
    )


def near_repeats(
    table: Table,
    num_firsts: int,
    candidates: np.ndarray,
    sample: np.ndarray,
    groups: Dict[int, List[Member]],
    rules: NearRules,
    texts: Dict[TextPlace, str],
) -> NearRepeats:
    """Count the near duplicates among the ``sample`` of the ``candidates``, both int64 rows of ``table``.

    ``groups``: {head: members}, indices into ``sample``, see `near_groups`; ``texts``: the
    quote at each listed place; ``num_firsts``: the number of distinct paragraphs.
    """
    members = [member.paragraph for found in groups.values() for member in found]
    largest = []
    for head in listed_heads(groups):
        first, *others = (
            table.place(sample[row]) for row in [head, *(m.paragraph for m in groups[head][:MEMBERS])]
        )
        examples = [
            NearMember(str(place), round(member.similarity, 4), texts[place])
            for place, member in zip(others, groups[head])
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
        sizes=doubling([1 + len(found) for found in groups.values()]),
        largest=largest,
    )


def listed_heads(groups: Dict[int, List[Member]]) -> List[int]:
    """Return the heads of the largest groups, at most GROUPS, the largest first."""
    return sorted(groups, key=lambda head: (-len(groups[head]), head))[:GROUPS]


def listed_near(groups: Dict[int, List[Member]]) -> Iterator[int]:
    """Yield the paragraphs of `near_groups` that the report shows."""
    for head in listed_heads(groups):
        yield head
        yield from (member.paragraph for member in groups[head][:MEMBERS])


def doubling(values: Union[np.ndarray, Sequence[int]]) -> Dict[int, int]:
    """Count positive numbers by powers of two: {1: how many are 1, 2: are 2 or 3, 4: are 4 to 7, ...}."""
    bars = np.bincount(np.floor(np.log2(np.asarray(values, np.float64))).astype(np.int64))
    return {2**bar: int(count) for bar, count in enumerate(bars) if count}
