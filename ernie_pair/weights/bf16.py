"""Weights that a model holds in 16 bits, as the float32 arrays of files and back."""

from typing import Dict

import numpy as np
import paddle

from ernie_pair.weights.weight_files import Arrays

HALVES = (paddle.float16, paddle.bfloat16)


def widened(tensors: Dict[str, paddle.Tensor]) -> Arrays:
    """{name: array}; what is held in 16 bits as float32, which changes no value."""
    return {
        name: (tensor.astype("float32") if tensor.dtype in HALVES else tensor).numpy()
        for name, tensor in tensors.items()
    }


def set_weight(parameter, array: np.ndarray) -> None:
    """Give ``parameter`` the values of ``array``, as near as the type that it is held in allows."""
    if parameter.dtype in HALVES:
        parameter.set_value(paddle.to_tensor(array.astype(np.float32)).astype(parameter.dtype))
    else:
        parameter.set_value(array.astype(parameter.numpy().dtype))
