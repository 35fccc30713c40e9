"""bfloat16 in numpy, which has no such type: its two bytes are kept as uint16, as in Paddle's pickles."""

import numpy as np

BFLOAT16 = np.dtype(np.uint16)
_EXPONENT = np.uint16(0x7F80)  # all ones: infinity or NaN


def bfloat16_to_float32(bits: np.ndarray) -> np.ndarray:
    """Return the numbers with the bit patterns ``bits`` as float32; no value changes."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(array: np.ndarray) -> np.ndarray:
    """Return the nearest bfloat16 of each number as its bits, ties to even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(BFLOAT16)


def is_bfloat16_finite(bits: np.ndarray) -> bool:
    """Return whether none of the numbers with the bit patterns ``bits`` is NaN or infinity."""
    return not ((bits & _EXPONENT) == _EXPONENT).any()
