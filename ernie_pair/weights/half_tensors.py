"""Convert tensors that Paddle holds in 16 bits to the float32 arrays of files, and back."""

from typing import Dict

import numpy as np
import paddle

from ernie_pair.weights.weight_files import Arrays

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
