"""The types of what helpers.cpp compiles to."""

from typing import Tuple

import numpy as np
from numpy.typing import NDArray

def cut_documents(
    bounds: NDArray[np.int64],
    lens: NDArray[np.int32],
    target_length: int,
    threshold: int,
    stream: int,
    min_sentences: int,
) -> NDArray[np.int64]: ...
def hide_words(
    tokens: NDArray[np.int64],
    order: NDArray[np.int64],
    chances: NDArray[np.float64],
    plain_of: NDArray[np.int64],
    goes_on: NDArray[np.bool_],
    random_ids: NDArray[np.int64],
    borders: NDArray[np.float64],
    cls_id: int,
    sep_id: int,
    mask_id: int,
    whole_words: bool,
    budget: int,
) -> Tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]: ...
def turns(parts: NDArray[np.int64]) -> NDArray[np.uint16]: ...
