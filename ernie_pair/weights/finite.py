"""Check that all numbers of arrays are finite."""

from typing import Dict, Optional

import numpy as np

from ernie_pair.weights.bf16 import BFLOAT16, is_bfloat16_finite


def first_not_finite(arrays: Dict[str, np.ndarray]) -> Optional[str]:
    """Return the name of an array that holds NaN or infinity; arrays of uint16 are bfloat16."""
    return next((name for name, array in arrays.items() if not _all_finite(array)), None)


def _all_finite(array: np.ndarray) -> bool:
    if array.dtype == BFLOAT16:
        return is_bfloat16_finite(array)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
