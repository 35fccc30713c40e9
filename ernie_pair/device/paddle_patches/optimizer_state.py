"""The state of an optimizer of the dynamic graph, by Paddle's names of it.

Names, as in Paddle 2.6.2, of `paddle.optimizer.Optimizer`: `_accumulators_holder` (what `set_state_dict` was
given before the first step has made the accumulators), `_master_weights`, `_multi_precision`, `_name`; and
how a float32 copy is called.
"""

from typing import Any, Dict

import numpy as np
import paddle


def state_of(optimizer) -> Dict[str, Any]:
    """Return {Paddle's name: tensor} of all slots, with what is kept for those that are not made yet."""
    return {**optimizer._accumulators_holder, **optimizer.state_dict()}


def masters_of(optimizer) -> Dict[str, paddle.Tensor]:
    """Return {parameter.name: float32 copy}, the optimizer's own dictionary; it names the other slots."""
    return optimizer._master_weights


def new_master(parameter, array: np.ndarray) -> paddle.Tensor:
    """Return a float32 copy of ``parameter`` that holds ``array``, with the name that Paddle gives to it."""
    master = paddle.to_tensor(array)
    master.name = f"{parameter.name}_fp32_master_0"
    return master


def keeps_masters(optimizer) -> bool:
    """Return whether the optimizer keeps float32 copies of parameters in 16 bits."""
    return bool(optimizer._multi_precision)


def slot_name(optimizer, parameter, slot: str) -> str:
    """Return Paddle's name of a slot; another optimizer of the same model has other ones."""
    owner = masters_of(optimizer).get(parameter.name, parameter)
    return f"{owner.name}_{optimizer._name}_{slot}_0"
