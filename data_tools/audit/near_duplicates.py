"""Find near-duplicate paragraphs: MinHash finds candidates, the exact Jaccard similarity decides.

A paragraph is the set of its shingles, all substrings of ``shingle`` characters of the normalised text. The
MinHash of `datasketch` (NUM_HASHES numbers) is cut into bands; paragraphs with a band in common are compared:

    threshold 0.8   21 bands of 6: 99.8 % of pairs of similarity 0.8 are compared, 28 % of those of 0.5

Its MinHashLSH would take 7 kB per paragraph; here a band takes 8 bytes, and only bands that occur twice are
examined. Paragraphs come in order, and each is compared with the heads before it: it joins the first that is
similar enough, or becomes a head. So each member of a group is verified against its head. Where very many
share a band, only MOST_HEADS of it are kept and MOST_COMPARED heads compared, those with the most bands in
common first: some pairs are then missed, and the time stays proportional to the text.
"""

from collections import Counter
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from data_tools.audit.paragraphs import code_points
from data_tools.base.optional_import import import_optional

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
    for number, text in enumerate(texts):
        hashes[number] = _minhash(text, rules.shingle)[: bands * rows]
    return _mixed(np.moveaxis(hashes.reshape(len(texts), bands, rows), 2, 0))


def _minhash(text: str, shingle: int) -> np.ndarray:
    """Compute the MinHash of a normalised text: uint64 [NUM_HASHES]."""
    numbers = np.unique(_shingle_hashes(code_points(text), shingle))
    start = _no_shingles()
    minhash = type(start)(hashvalues=start.hashvalues, permutations=start.permutations, hashfunc=int)
    for begin in range(0, len(numbers), _AT_ONCE):
        minhash.update_batch(numbers[begin : begin + _AT_ONCE].tolist())
    return minhash.hashvalues


@lru_cache(maxsize=1)
def _no_shingles():
    return import_optional("datasketch", "audit").MinHash(num_perm=NUM_HASHES)


def _shingle_hashes(points: np.ndarray, shingle: int) -> np.ndarray:
    """Hash each shingle of a text: uint64 [len(points) - shingle + 1] below 2**32."""
    num_shingles = len(points) - shingle + 1
    columns = (points[offset : offset + num_shingles].astype(np.uint64) for offset in range(shingle))
    return _mixed(columns) >> np.uint64(32)


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
