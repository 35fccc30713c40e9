"""The values of a static variable without a copy: np.array(variable) copies them twice.

Names, as in Paddle 2.6.2, of the tensor in a scope: `_to_dlpack`, `_place`, `_dtype`, `_is_initialized`.
Upstream has no `__dlpack__` on it, the method that numpy calls for the memory.
"""

import numpy as np
import paddle

SHAREABLE = (paddle.float32, paddle.float64, paddle.int32, paddle.int64)
MAIN_MEMORY = (1, 0)  # kDLCPU and its number


class _Exporter:
    """A variable with the two methods of the DLPack protocol."""

    def __init__(self, variable):
        self.variable = variable

    def __dlpack__(self, **_):
        return self.variable._to_dlpack()

    def __dlpack_device__(self):
        return MAIN_MEMORY


def view_array(variable) -> np.ndarray:
    """Return a read-only view, which changes with the variable; of GPU memory or 16-bit types, a copy."""
    if variable._place().is_cpu_place() and dtype_of(variable) in SHAREABLE:
        return np.from_dlpack(_Exporter(variable))
    return np.asarray(variable)


def dtype_of(variable):
    """Return the dtype of ``variable``, of the kind of `paddle.float32`."""
    return variable._dtype()


def place_of(variable, usual):
    """Return the place of ``variable``: the CPU, or ``usual``, the place of the program."""
    return paddle.CPUPlace() if variable._is_initialized() and variable._place().is_cpu_place() else usual
