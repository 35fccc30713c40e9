"""The logits of every row of a file, bit-identical for any number of processes."""

from typing import Callable, Optional

import numpy as np

from data_tools.base.errors import NumbersError
from ernie_pair.inference.token_rows import EncodedPairs
from ernie_pair.pair.model.classifier import PairClassifier
from ernie_pair.pair.model.row_answers import answers_of_rows


def logits_of(
    model: PairClassifier,
    rows: EncodedPairs,
    batch_size: int,
    process_group,
    asked: Optional[Callable[[int], None]] = None,
) -> np.ndarray:
    """Return the logits of every row, float32 [N, C], in the order of the file, on every rank.

    ``asked`` and the batches are those of `answers_of_rows`. Leaves ``model`` in evaluation mode. Raises
    NumbersError for a logit that is not finite.
    """
    logits = answers_of_rows(model, rows, model.num_classes, batch_size, process_group, asked)
    if not np.isfinite(logits).all():
        row = int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
        raise NumbersError(
            f"the logits of row {row} are {logits[row].tolist()}; the weights are damaged, train again"
        )
    return logits
