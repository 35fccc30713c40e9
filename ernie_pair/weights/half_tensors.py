"""Convert tensors that Paddle holds in 16 bits to the float32 arrays of files, and back."""

from typing import Dict

import numpy as np
import paddle

from ernie_pair.weights.weight_files import Arrays, bfloat16_to_float32, float32_to_bfloat16

HALVES = (paddle.float16, paddle.bfloat16)


def widen_tensors(tensors: Dict[str, paddle.Tensor]) -> Arrays:
    """Return {name: array}; 16-bit tensors become float32, which changes no value."""
    return {
        name: (tensor.astype("float32") if tensor.dtype in HALVES else tensor).numpy()
        for name, tensor in tensors.items()
    }


def set_weight(parameter, array: np.ndarray) -> None:
    """Set ``parameter`` to ``array``, as precisely as its type allows.

    The cast is Paddle's, which on a CPU truncates to bfloat16 instead of rounding.
    """
    if parameter.dtype in HALVES:
        parameter.set_value(paddle.to_tensor(array.astype(np.float32)).astype(parameter.dtype))
    else:
        parameter.set_value(array.astype(parameter.numpy().dtype))


def widen_array(array: np.ndarray, dtype) -> np.ndarray:
    """Return as float32 the ``array`` that numpy gets from a variable of Paddle's ``dtype``."""
    return bfloat16_to_float32(array) if dtype == paddle.bfloat16 else array.astype(np.float32, copy=False)


def narrow_array(array: np.ndarray, dtype) -> np.ndarray:
    """Return float32 numbers in the form that a variable of Paddle's ``dtype`` takes from numpy, rounded."""
    if dtype == paddle.bfloat16:
        return float32_to_bfloat16(array)
    return array.astype(np.float16 if dtype == paddle.float16 else np.float32)
