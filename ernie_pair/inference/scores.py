"""The output of a model without classes as the score that is shown."""

from typing import Optional, Tuple

import numpy as np


def scores_of(outputs: np.ndarray, label_range: Optional[Tuple[float, float]]) -> np.ndarray:
    """Return the scores float64 [N] of outputs [N, 1], in the range of the labels where it is known."""
    scores = outputs[:, 0].astype(np.float64)
    return scores if label_range is None else np.clip(scores, *label_range)
