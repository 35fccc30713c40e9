"""The vectors of every text of an evaluation, bit-identical for any number of processes."""

from typing import Callable, Optional

import numpy as np

from ernie_pair.embedding.text_encoder import TextEncoder
from ernie_pair.inference.embedder import unit_rows
from ernie_pair.inference.token_rows import EncodedPairs
from ernie_pair.pair.model.row_answers import answers_of_rows


def vectors_of_rows(
    model: TextEncoder,
    rows: EncodedPairs,
    batch_size: int,
    process_group,
    asked: Optional[Callable[[int], None]] = None,
) -> np.ndarray:
    """Return the vector of every row, float32 [N, D] of length 1, in their order, on every rank.

    ``asked`` and the batches are those of `answers_of_rows`. Leaves ``model`` in evaluation mode. Raises
    NumbersError for a vector that is not finite.
    """
    vectors = answers_of_rows(model, rows, model.dim, batch_size, process_group, asked)
    return unit_rows(vectors, "the model")
