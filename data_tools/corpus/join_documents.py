"""Short documents made into longer ones: each joined to the one before it while both fit."""

from dataclasses import dataclass
from typing import List, Literal

import numpy as np


@dataclass(frozen=True)
class Joining:
    """The documents that are joined, and how many tokens a joined one has at most.

    none          each stays by itself
    one_sentence  those of one sentence, with those of one sentence beside them
    short         any that fit
    """

    which: Literal["none", "one_sentence", "short"] = "none"
    max_tokens: int = 509


def join_documents(sizes: np.ndarray, lens: np.ndarray, joining: Joining) -> np.ndarray:
    """Join documents; return the number of sentences of each, int64 [documents after joining].

    ``sizes`` int64 [documents]: the sentences of each; ``lens`` int32 [sentences]: the tokens of each.
    """
    if joining.which == "none":
        return sizes
    tokens = np.diff(np.append(0, np.cumsum(lens, dtype=np.int64))[np.append(0, np.cumsum(sizes))])
    joined: List[int] = []
    room = 0
    for size, count in zip(sizes.tolist(), tokens.tolist()):
        may_join = joining.which == "short" or size == 1
        if may_join and count <= room:
            joined[-1] += size
            room -= count
        else:
            joined.append(size)
            room = joining.max_tokens - count if may_join else 0
    return np.array(joined, dtype=np.int64)
