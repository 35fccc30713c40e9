"""The numbers of a static variable, where they lie. np.array(variable) copies them twice."""

import numpy as np
from paddle.base.core import VarDesc

SHAREABLE = (VarDesc.VarType.FP32, VarDesc.VarType.FP64, VarDesc.VarType.INT32, VarDesc.VarType.INT64)
MAIN_MEMORY = (1, 0)  # kDLCPU and its number


class _Lender:
    """A Paddle 2.6 variable with the two methods by which numpy asks for memory (the DLPack protocol)."""

    def __init__(self, variable):
        self.variable = variable

    def __dlpack__(self, **_):
        return self.variable._to_dlpack()

    def __dlpack_device__(self):
        return MAIN_MEMORY


def lent_array(variable) -> np.ndarray:
    """A read-only view, which changes with the variable; of device memory and of narrow types, a copy."""
    if variable._place().is_cpu_place() and variable._dtype() in SHAREABLE:
        return np.from_dlpack(_Lender(variable))
    return np.asarray(variable)
