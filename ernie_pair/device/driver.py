"""What the NVIDIA driver says of a GPU, asked without Paddle: flags are read before it is loaded.

The calls are of CUDA's driver interface: cuInit, cuDeviceGet, cuDeviceGetAttribute.
"""

import ctypes
from functools import lru_cache
from typing import Optional, Tuple

LIBRARY = "libcuda.so.1"
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR

Capability = Tuple[int, int]


@lru_cache(maxsize=1)
def gpu_capability() -> Optional[Capability]:
    """Return the compute capability of the first visible GPU, as (8, 0); None where there is none."""
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    device, values = ctypes.c_int(), []
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    for attribute in (MAJOR, MINOR):
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
        values.append(value.value)
    return values[0], values[1]
