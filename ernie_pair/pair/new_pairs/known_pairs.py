"""The pairs of the files that measure, which no new training pair may repeat."""

from typing import Dict, Iterable, List, Sequence, Set, Tuple

import numpy as np

from ernie_pair.pair.audit.links import compared_texts
from ernie_pair.pair.data.pair_file import Pairs


class KnownPairs:
    """The pairs of ``files``, {dev or test: its pairs}; texts are compared normalised, as by the audit.

    Counts what it was asked about: ``dropped`` {file: pairs of it}, ``half_known`` of what may be written.
    """

    def __init__(self, files: Dict[str, Pairs]):
        self._pairs = {name: {*_keys(file.left, file.right)} for name, file in files.items()}
        self._texts: Set[str] = {text for pairs in self._pairs.values() for pair in pairs for text in pair}
        self.dropped = dict.fromkeys(files, 0)
        self.half_known = 0

    def unknown(self, left: Sequence[str], right: Sequence[str]) -> np.ndarray:
        """Return which pairs stand in none of the files, in either order, bool [N], and count them."""
        mask = np.ones(len(left), dtype=bool)
        for row, pair in enumerate(_keys(left, right)):
            found = next((name for name, pairs in self._pairs.items() if pair in pairs), None)
            if found is not None:
                mask[row] = False
                self.dropped[found] += 1
            elif not self._texts.isdisjoint(pair):
                self.half_known += 1
        return mask

    def lines(self, what: str = "new pairs") -> List[str]:
        """Return how many of ``what`` were found, a line per file and one on single texts.

        There are none where no file was given.
        """
        if not self._pairs:
            return []
        lines = [
            f"{count} {what} are in the {name} file and were left out" for name, count in self.dropped.items()
        ]
        of = " or ".join(self._pairs)
        return [*lines, f"{self.half_known} other {what} share one text with the {of} file and are kept"]


def first_places(left: Sequence[str], right: Sequence[str]) -> List[int]:
    """Return the places, rising, of the pairs that repeat no earlier one, in either order."""
    found: Dict[Tuple[str, str], int] = {}
    for place, pair in enumerate(_keys(left, right)):
        found.setdefault(pair, place)
    return list(found.values())


def _keys(left: Sequence[str], right: Sequence[str]) -> Iterable[Tuple[str, str]]:
    """Yield the two texts of each pair as they are compared, the smaller one first."""
    for pair in zip(compared_texts(list(left)), compared_texts(list(right))):
        yield (min(pair), max(pair))
