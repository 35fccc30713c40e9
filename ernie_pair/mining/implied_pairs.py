"""Labelled pairs as a graph of their texts: what is known to be equal, known to differ, and what is in doubt.

Texts that are equal when normalised are one node; see `ernie_pair.pair.audit.findings`.
"""

from collections import Counter
from functools import cached_property
from typing import Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple

import numpy as np

from ernie_pair.pair.audit.findings import Coded, Links, is_contradicted
from ernie_pair.pair.data.pair_file import Pairs


class Edge(NamedTuple):
    """A labelled row between two nodes, that to ``node`` seen from the other; ``row`` is its first row."""

    node: int
    row: int


class TextGraph:
    """The graph of a labelled file; ``same`` is its class of equal texts.

    ``group`` int64 [nodes] is equal for texts that a chain of rows labelled the same joins, contradicted rows
    among them: two texts of one group are never called different. ``is_sound`` bool [groups]: no row
    contradicts the chains of the group, so they may be followed.
    """

    def __init__(self, file: Coded, same: int):
        self.file, pairs = file, file.pairs
        is_same = pairs.known_labels == same
        is_loop = file.left == file.right
        doubtful = is_contradicted(file)
        self.equal_rows = np.flatnonzero(is_same & ~is_loop & ~doubtful)
        self.different_rows = np.flatnonzero(~is_same & ~is_loop & ~doubtful)
        self.group = Links(file, np.flatnonzero(is_same & ~is_loop)).group
        inside = self.group[file.left] == self.group[file.right]
        self.is_sound = np.ones(int(self.group.max()) + 1, dtype=bool)
        self.is_sound[self.group[file.left[inside & ~is_same]]] = False
        self.is_sound[self.group[file.left[doubtful]]] = False
        self.is_sound[self.group[file.right[doubtful]]] = False

    @property
    def num_nodes(self) -> int:
        """Return the number of different texts."""
        return len(self.group)

    @property
    def pairs(self) -> Pairs:
        """Return the labelled pairs."""
        return self.file.pairs

    @cached_property
    def texts(self) -> List[str]:
        """Return the text of each node, as it stands first in the file."""
        found = [""] * self.num_nodes
        for numbers, side in ((self.file.right, self.pairs.right), (self.file.left, self.pairs.left)):
            for node, text in zip(numbers[::-1].tolist(), reversed(side)):
                found[node] = text
        return found

    @cached_property
    def labelled(self) -> Dict[int, int]:
        """Return {key of two nodes: the first row that labels them}; see `key_of`."""
        keys, rows = np.unique(self.file.unordered, return_index=True)
        return dict(zip(keys.tolist(), rows.tolist()))

    @cached_property
    def equals(self) -> Dict[int, List[Edge]]:
        """Return {node: its neighbours by sure rows that are labelled the same}, in the order of the file."""
        found: Dict[int, Dict[int, int]] = {}
        for row in self.equal_rows.tolist():
            left, right = int(self.file.left[row]), int(self.file.right[row])
            found.setdefault(left, {}).setdefault(right, row)
            found.setdefault(right, {}).setdefault(left, row)
        return {node: [Edge(*edge) for edge in edges.items()] for node, edges in found.items()}

    def is_sound_node(self, node: int) -> bool:
        """Return whether the chains of the text's group may be followed."""
        return bool(self.is_sound[self.group[node]])


def key_of(one: int, other: int) -> int:
    """Return a number for two nodes, the same in either order, as ``Coded.unordered`` has it."""
    return (min(one, other) << 32) | max(one, other)


TRIES = 50  # pairs looked at for each that a text may have: a hub of thousands ends the search there
_TRANSITIVE, _IMPLIED = 1, 2  # set the draws of the kinds apart


class Mined(NamedTuple):
    """A new pair of two nodes. ``is_same``: its label; ``rows``: what it follows from."""

    left: int
    right: int
    is_same: bool
    kind: str
    rows: Tuple[int, ...]
    similarity: float = 0.0


class MiningRules(NamedTuple):
    """How many new pairs of a kind a text may stand in, how long chains may be, and the seed."""

    per_text: int
    hops: int
    seed: int


class Quota:
    """Which pairs may be added yet: not labelled, not added, their texts below ``per_text`` pairs."""

    def __init__(self, graph: TextGraph, per_text: int, taken: Set[int]):
        self._labelled, self._per_text, self._taken = graph.labelled, per_text, taken
        self._counts: Dict[int, int] = Counter()

    def is_full(self, node: int) -> bool:
        """Return whether the text has all the new pairs that it may have."""
        return self._counts[node] >= self._per_text

    def take(self, one: int, other: int) -> bool:
        """Count a pair of two nodes, if it may be added; return whether it may."""
        key = key_of(one, other)
        if one == other or key in self._labelled or key in self._taken:
            return False
        if self.is_full(one) or self.is_full(other):
            return False
        self._taken.add(key)
        for node in (one, other):
            self._counts[node] += 1
        return True


def transitive_pairs(graph: TextGraph, rules: MiningRules, taken: Set[int]) -> Iterator[Mined]:
    """Yield equal pairs whose texts a chain of 2 to ``hops`` sure rows joins; ``taken`` grows by them."""
    quota = Quota(graph, rules.per_text, taken)
    for node in sorted(graph.equals):
        if graph.is_sound_node(node) and not quota.is_full(node):
            rng = np.random.default_rng([rules.seed, _TRANSITIVE, node])
            for tries, (other, rows) in enumerate(_reached(graph, node, rules.hops, rng)):
                if quota.take(node, other):
                    yield Mined(node, other, True, "transitive", rows)
                if quota.is_full(node) or tries >= TRIES * rules.per_text:
                    break


def _reached(
    graph: TextGraph, begin: int, hops: int, rng: np.random.Generator
) -> Iterator[Tuple[int, Tuple[int, ...]]]:
    """Yield the nodes at 2 to ``hops`` rows from ``begin``, each once, nearer ones first, and the rows."""
    seen: Set[int] = {begin}
    ring: List[Tuple[int, Tuple[int, ...]]] = [(begin, ())]
    for hop in range(1, hops + 1):
        following: List[Tuple[int, Tuple[int, ...]]] = []
        for node, rows in ring:
            for edge in _rotated(graph.equals[node], rng):
                if edge.node not in seen:
                    seen.add(edge.node)
                    following.append((edge.node, (*rows, edge.row)))
                    if hop > 1:
                        yield following[-1]
        ring = following


def _rotated(edges: Sequence[Edge], rng: np.random.Generator) -> Iterator[Edge]:
    """Yield ``edges`` from a drawn one on: a permutation would look at all of a hub's."""
    first = int(rng.integers(len(edges)))
    for place in range(len(edges)):
        yield edges[(first + place) % len(edges)]


def implied_differences(graph: TextGraph, rules: MiningRules, taken: Set[int]) -> Iterator[Mined]:
    """Yield different pairs: a row a/c says it of the equals of a beside c, and of those of c beside a."""
    quota = Quota(graph, rules.per_text, taken)
    order = np.random.default_rng([rules.seed, _IMPLIED]).permutation(graph.different_rows)
    for row in order.tolist():
        ends = int(graph.file.left[row]), int(graph.file.right[row])
        if not all(map(graph.is_sound_node, ends)):
            continue
        for one, other in (ends, ends[::-1]):
            for tries, edge in enumerate(graph.equals.get(one, ())):
                if quota.is_full(other) or tries >= TRIES * rules.per_text:
                    break
                if quota.take(edge.node, other):
                    yield Mined(edge.node, other, False, "implied", (edge.row, row))
