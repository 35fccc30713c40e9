"""Labelled pairs as a graph of their texts: what is known to be equal, known to differ, and what is in doubt.

Texts that are equal when normalised are one node; see `ernie_pair.pair.audit.links`.
"""

from functools import cached_property
from typing import Dict, List, NamedTuple

import numpy as np

from ernie_pair.pair.audit.findings import is_contradicted
from ernie_pair.pair.audit.links import Coded, Links
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
