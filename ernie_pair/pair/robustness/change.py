"""What a rule is given and what it returns; a rule is a function of the two that knows no model."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ernie_pair.pair.robustness.words import is_hanzi, is_name, words_of

UNKNOWN = -1  # in place of a label that does not follow from that of the original pair


class Change(NamedTuple):
    """A changed pair. ``how`` says which rule of its kind made it; ``label`` may be UNKNOWN."""

    left: str
    right: str
    label: int
    how: str


class Untouched(NamedTuple):
    """A pair of the file as a rule sees it, and ``rng``, which belongs to this row and kind alone."""

    left: str
    right: str
    label: int
    rng: np.random.Generator

    def on_a_side(self, rewrite: Callable[[str], Optional[str]], label: int, how: str) -> Optional[Change]:
        """Return the pair with ``rewrite`` of a text that is drawn, or of the other where that is None."""
        for is_right in (True, False) if self.rng.integers(2) else (False, True):
            changed = rewrite(self.right if is_right else self.left)
            if changed is not None:
                texts = (self.left, changed) if is_right else (changed, self.right)
                return Change(*texts, label, how)
        return None


@dataclass(frozen=True)
class Facts:
    """What rules know of the whole file: its texts, and of its classes those that mean equal and not.

    ``same`` and ``different`` are None where the classes do not say so: with more than two of them.
    """

    texts: Sequence[str]
    same: Optional[int]
    different: Optional[int]

    @cached_property
    def characters(self) -> Dict[str, int]:
        """Return how often each Chinese character stands in the texts."""
        counts = Counter("".join(self.texts))
        return {one: count for one, count in counts.items() if is_hanzi(one)}

    @cached_property
    def names(self) -> Dict[str, int]:
        """Return how often each name of a person stands in the texts."""
        counts = Counter(word.text for text in self.texts for word in words_of(text) if is_name(word))
        return dict(sorted(counts.items()))


Rule = Callable[[Untouched, Facts], Optional[Change]]


def draw_weighted(rng: np.random.Generator, counted: Sequence[Tuple[str, int]]) -> str:
    """Return a text of ``counted``, drawn in proportion to its count."""
    ends = np.cumsum([count for _, count in counted])
    return counted[int(np.searchsorted(ends, rng.integers(ends[-1]), side="right"))][0]
