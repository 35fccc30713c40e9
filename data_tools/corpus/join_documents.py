"""Join short documents into longer ones: each to the previous one as long as both fit."""

from dataclasses import dataclass
from typing import List, Literal

import numpy as np


@dataclass(frozen=True)
class Joining:
    """Which documents are joined, and the maximum number of tokens of a joined one.

    none          none of them
    one_sentence  consecutive ones of one sentence
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
