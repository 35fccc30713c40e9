"""The compute capability of a GPU, and the lowest one that supports a type."""

import ctypes
from functools import lru_cache
from typing import Dict, Optional, Tuple

from data_tools.base.errors import InputError

LIBRARY = "libcuda.so.1"
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR

Capability = Tuple[int, int]

# The lowest whose units compute in the type.
LEAST_CAPABILITY: Dict[str, Capability] = {
    "float32": (0, 0),
    "float16": (7, 0),
    "bfloat16": (8, 0),
    "tf32": (8, 0),
}


def words_of(capability: Capability) -> str:
    """Return a compute capability as NVIDIA writes it: 8.6."""
    return "{}.{}".format(*capability)


@lru_cache(maxsize=1)
def gpu_capability() -> Optional[Capability]:
    """Return the compute capability of the first visible GPU, as (8, 0); None if there is none.

    It asks NVIDIA's driver directly: flags are read before Paddle is loaded.
    """
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


def paddle_capability(number: Optional[int] = None) -> Capability:
    """Return the compute capability of a visible GPU as reported by Paddle; None: of its current one."""
    import paddle

    major, minor = paddle.device.cuda.get_device_capability(number)
    return major, minor


def refuse_old_gpu(found: Capability, dtype: str, flag: str, cure: str) -> None:
    """Raise InputError if a GPU of the capability ``found`` is too old for ``dtype``.

    Paddle would warn and compute in float32. ``flag``: what requires the type; ``cure``: what to do instead.
    """
    least = LEAST_CAPABILITY[dtype]
    if found < least:
        raise InputError(
            f"{flag} needs a GPU of compute capability {words_of(least)}, this one has {words_of(found)}; "
            f"{cure}"
        )
