"""A ratio such as 949,50,1 -> the document ranges of training, validation and test."""

from typing import Dict

import numpy as np

from data_tools.base.errors import InputError

NAMES = ("train", "valid", "test")


def document_ranges(split: str, num_documents: int) -> Dict[str, range]:
    """Cut ``num_documents`` documents in the order of the corpus by the three weights of ``split``.

    Returns {name of NAMES: its documents}. Raises InputError when ``split`` is not three weights, or when a
    part with a weight above zero gets no document; a weight of 0 gives an empty range.
    """
    weights = _weights_of(split)
    ends = np.rint(np.cumsum(weights) / sum(weights) * num_documents).astype(int)
    starts = np.concatenate([[0], ends[:-1]])
    ranges = {name: range(start, end) for name, start, end in zip(NAMES, starts.tolist(), ends.tolist())}
    for name, weight in zip(NAMES, weights):
        if weight > 0 and not ranges[name]:
            raise InputError(
                f"--split {split} leaves no document for {name} out of {num_documents}; give it more, "
                f"for example --split {_example(num_documents)}"
            )
    return ranges


def _example(num_documents: int) -> str:
    """Return a split that leaves no part empty, or none but training when there are too few documents."""
    share = -(-num_documents // 20)
    return f"{num_documents - 2 * share},{share},{share}" if num_documents > 2 else "1,0,0"


def _weights_of(split: str) -> list:
    try:
        weights = [float(part) for part in split.split(",")]
    except ValueError:
        weights = []
    sound = len(weights) == 3 and np.isfinite(sum(weights)) and min(weights) >= 0 and weights[0] > 0
    if not sound:
        raise InputError(
            f"--split {split} is not three weights for train,valid,test; write for example 949,50,1"
        )
    return weights
