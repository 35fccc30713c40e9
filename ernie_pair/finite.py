"""Is every number of a safetensors file finite? Looked at where it lies, tensor by tensor."""

import json
from typing import Optional

import numpy as np

FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
BFLOAT16_EXPONENT = np.uint16(0x7F80)  # all ones: infinity or NaN


def first_not_finite(data: bytes) -> Optional[str]:
    """The name of a tensor that holds NaN or infinity. Raises ValueError when ``data`` is not such a file."""
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        for name, about in header.items():
            begin, end = about["data_offsets"]
            if not _all_finite(memoryview(data)[start + begin : start + end], about["dtype"]):
                return name
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no safetensors file ({type(error).__name__})") from None
    return None


def _all_finite(part: memoryview, dtype: str) -> bool:
    if dtype == "BF16":
        return not ((np.frombuffer(part, "<u2") & BFLOAT16_EXPONENT) == BFLOAT16_EXPONENT).any()
    if dtype not in FLOATS:
        return True
    return bool(np.isfinite(np.frombuffer(part, FLOATS[dtype])).all())
