"""Pairs that labelled ones imply: a=b and b=c give a=c, a=b and b/c give a/c.

Never along a chain that a row contradicts, and each text stands in few new pairs of a kind, so that a text
with many equals does not fill the file. What is drawn follows from the seed and the node alone.
"""

from collections import Counter
from typing import Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple

import numpy as np

from ernie_pair.pair.mining.text_graph import Edge, TextGraph, key_of

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
