"""Tensors that Paddle holds in 16 bits, as the float32 arrays of files and back."""

from typing import Dict

import numpy as np
import paddle

from ernie_pair.weights.bf16 import bfloat16_to_float32, float32_to_bfloat16
from ernie_pair.weights.weight_files import Arrays

HALVES = (paddle.float16, paddle.bfloat16)


def widen_tensors(tensors: Dict[str, paddle.Tensor]) -> Arrays:
    """Return {name: array}; what is held in 16 bits is float32 there, which changes no value."""
    return {
        name: (tensor.astype("float32") if tensor.dtype in HALVES else tensor).numpy()
        for name, tensor in tensors.items()
    }


def set_weight(parameter, array: np.ndarray) -> None:
    """Give ``parameter`` the values of ``array``, as near as the type that it is held in allows.

    The cast is Paddle's, which on a CPU cuts bfloat16 off instead of rounding it.
    """
    if parameter.dtype in HALVES:
        parameter.set_value(paddle.to_tensor(array.astype(np.float32)).astype(parameter.dtype))
    else:
        parameter.set_value(array.astype(parameter.numpy().dtype))


def widen_array(array: np.ndarray, dtype) -> np.ndarray:
    """Return float32 of the ``array`` that a variable of Paddle's ``dtype`` gives to numpy."""
    return bfloat16_to_float32(array) if dtype == paddle.bfloat16 else array.astype(np.float32, copy=False)


def narrow_array(array: np.ndarray, dtype) -> np.ndarray:
    """Return float32 numbers as a variable of Paddle's ``dtype`` takes them from numpy, rounded."""
    if dtype == paddle.bfloat16:
        return float32_to_bfloat16(array)
    return array.astype(np.float16 if dtype == paddle.float16 else np.float32)
