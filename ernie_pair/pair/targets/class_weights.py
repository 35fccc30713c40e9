"""--class_weights: what a pair of each class counts in the loss of training."""

import math
from typing import Optional, Tuple

import numpy as np

from data_tools.base.errors import InputError
from ernie_pair.model_files.labels import UNLABELLED

BALANCED = "balanced"


def class_weights_in(text: str) -> Tuple[float, ...]:
    """Parse '1,2.5' as (1.0, 2.5), and '' and 'balanced' as ().

    Raises InputError for anything but numbers of 0 or more that are not all 0.
    """
    if text in ("", BALANCED):
        return ()
    try:
        weights = tuple(map(float, text.split(",")))
    except ValueError:
        weights = ()
    if not (weights and all(math.isfinite(weight) and weight >= 0 for weight in weights) and any(weights)):
        raise InputError(
            f"--class_weights {text} must be a number of 0 or more for each class, and not all 0; "
            "use 1,2.5, for example, or balanced"
        )
    return weights


def class_weights_of(
    text: str, num_classes: int, labels: Optional[np.ndarray], where: str
) -> Optional[np.ndarray]:
    """Return the weight of each class for --class_weights, float32 [C]; None where all count the same.

    ``labels`` int64 [N] are those of the training data ``where``, None when they are not known; balanced is
    rows / (classes x rows of the class). Raises InputError when balanced meets a class without a row, and
    when there are not as many weights as classes.
    """
    if not text:
        return None
    if text == BALANCED:
        assert labels is not None  # a streamed file, which has none here, is refused with the flags
        known = labels[labels != UNLABELLED]
        counts = np.bincount(known, minlength=num_classes)
        if not counts.all():
            raise InputError(
                f"{where} has no pair of class {int(counts.argmin())}, so --class_weights balanced has no "
                "weight for it; give the numbers, 1,2.5 for example"
            )
        return (len(known) / (num_classes * counts)).astype(np.float32)
    weights = class_weights_in(text)
    if len(weights) != num_classes:
        raise InputError(
            f"--class_weights {text} names {len(weights)} class(es), and there are {num_classes}; "
            "give a number for each"
        )
    return np.array(weights, dtype=np.float32)
