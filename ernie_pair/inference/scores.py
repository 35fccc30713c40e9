"""The output of a model without classes as the displayed score."""

from typing import NamedTuple, Optional, Tuple

import numpy as np

from data_tools.base.errors import InputError
from data_tools.base.options import Bounds


def scores_of(outputs: np.ndarray, label_range: Optional[Tuple[float, float]]) -> np.ndarray:
    """Return the scores float64 [N] of outputs [N, 1], in the range of the labels if it is known."""
    scores = outputs[:, 0].astype(np.float64)
    return scores if label_range is None else np.clip(scores, *label_range)


class ScoreUnit(NamedTuple):
    """The kind of a score and its range; None: no bound."""

    name: str
    least: Optional[float] = None
    most: Optional[float] = None

    def refuse_outside(self, threshold: Optional[float]) -> None:
        """Raise InputError for a threshold that no score of this unit can have; None: no threshold."""
        fault = Bounds(self.least, None, self.most, None).fault_of(threshold, None)
        if fault:
            raise InputError(f"--threshold {threshold} {fault}: it is {self.name}")


COSINE = ScoreUnit("a cosine", -1, 1)
PRODUCT = ScoreUnit("a product of vectors")
PROBABILITY = ScoreUnit("a probability", 0, 1)


def unit_of(has_classes: bool, label_range: Optional[Tuple[float, float]]) -> ScoreUnit:
    """Return the unit of a pair classifier's scores: probabilities, or those of regression or ranking."""
    if has_classes:
        return PROBABILITY
    return ScoreUnit("a score of the model", *(label_range or (None, None)))
