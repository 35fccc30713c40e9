"""Find paragraphs that duplicate an earlier one, exactly (after normalisation) or nearly."""

from dataclasses import dataclass
from typing import Dict, Iterator, List, NamedTuple, Sequence, Union

import numpy as np

from data_tools.audit.near_duplicates import Member, NearRules
from data_tools.audit.paragraphs import TextPlace

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
            _repeated(int(firsts.times[number]), table.place(firsts.rows[number]), texts)
            for number in listed_firsts(firsts).tolist()
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

    ``groups``: {head: members}, indices into ``sample``, see `near_duplicates.near_groups`; ``texts``: the
    quote at each listed place; ``num_firsts``: the number of distinct paragraphs.
    """
    members = [member.paragraph for found in groups.values() for member in found]
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
        largest=[_group(table, sample, head, groups[head], texts) for head in listed_heads(groups)],
    )


def listed_heads(groups: Dict[int, List[Member]]) -> List[int]:
    """Return the heads of the largest groups, at most GROUPS, the largest first."""
    return sorted(groups, key=lambda head: (-len(groups[head]), head))[:GROUPS]


def listed_near(groups: Dict[int, List[Member]]) -> Iterator[int]:
    """Yield the paragraphs of `near_groups` that the report shows."""
    for head in listed_heads(groups):
        yield head
        yield from (member.paragraph for member in groups[head][:MEMBERS])


def _group(
    table: Table, sample, head: int, members: Sequence[Member], texts: Dict[TextPlace, str]
) -> NearGroup:
    examples = []
    for paragraph, similarity in members[:MEMBERS]:
        place = table.place(sample[paragraph])
        examples.append(NearMember(str(place), round(similarity, 4), texts[place]))
    place = table.place(sample[head])
    return NearGroup(1 + len(members), str(place), texts[place], examples)


def _repeated(times: int, place: TextPlace, texts: Dict[TextPlace, str]) -> Repeated:
    return Repeated(times, str(place), texts[place])


def doubling(values: Union[np.ndarray, Sequence[int]]) -> Dict[int, int]:
    """Count positive numbers by powers of two: {1: how many are 1, 2: are 2 or 3, 4: are 4 to 7, ...}."""
    bars = np.bincount(np.floor(np.log2(np.asarray(values, np.float64))).astype(np.int64))
    return {2**bar: int(count) for bar, count in enumerate(bars) if count}
