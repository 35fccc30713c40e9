"""Is every number of some arrays finite?"""

from typing import Dict, Optional

import numpy as np

BFLOAT16_EXPONENT = np.uint16(0x7F80)  # all ones: infinity or NaN


def first_not_finite(arrays: Dict[str, np.ndarray]) -> Optional[str]:
    """The name of an array that holds NaN or infinity; bfloat16 stands as uint16 (see weights.py)."""
    return next((name for name, array in arrays.items() if not _all_finite(array)), None)


def _all_finite(array: np.ndarray) -> bool:
    if array.dtype == np.uint16:
        return not ((array & BFLOAT16_EXPONENT) == BFLOAT16_EXPONENT).any()
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
