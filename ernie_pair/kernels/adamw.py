"""AdamW over all parameters in one call, with clipping by the global norm.

It reads and writes the state of Paddle's AdamW in place: checkpoints, and code that reads the optimizer, see
no difference, and either can continue from the other.
"""

from collections import defaultdict
from ctypes import byref, c_float, c_int64
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np
import paddle

from ernie_pair.kernels.library import AdamwCall, open_kernels, pointers_of
from ernie_pair.kernels.tensors import FLOAT_BYTES, is_plain_array
from ernie_pair.runtime.paddle_patches.optimizer_state import (
    AdamSlots,
    adam_settings,
    adam_slots,
    squared_norm,
)

Trained = List[Tuple[paddle.Tensor, paddle.Tensor]]  # parameters with their gradients


class FusedAdamW(paddle.optimizer.AdamW):
    """Paddle's AdamW whose ``step`` is one call of the kernels, on ``threads`` threads.

    Whatever the kernels do not support (other dtypes, a parameter with a regularizer or without clipping) is
    updated by Paddle. ``known_norm``: of all gradients, if the caller of ``step`` has it; for one step.
    """

    threads = 1
    known_norm: Optional[float] = None

    def squares(self) -> float:
        """Return the sum of the squares of all gradients."""
        gradients = [gradient for _, gradient in gradients_of(self._parameter_list)]
        if all(map(is_plain_array, gradients)):
            return sum_of_squares(gradients, self.threads)
        return sum(squared_norm(gradient.astype("float32")).item() for gradient in gradients)

    @paddle.no_grad()
    def step(self) -> None:
        """Update the parameters that have a gradient."""
        norm, self.known_norm = self.known_norm, None
        trained, settings = gradients_of(self._parameter_list), adam_settings(self)
        is_fit = settings.is_usual and all(
            getattr(p, "need_clip", True)  # clipped like all others, with no regularizer of its own
            and getattr(p, "regularizer", None) is None
            and (p.shape == g.shape and is_plain_array(p) and is_plain_array(g))
            for p, g in trained
        )
        slots = adam_slots(self, [parameter for parameter, _ in trained]) if is_fit else []
        if not is_fit or any(t.element_size() != FLOAT_BYTES for slot in slots for t in slot):
            super().step()
            return
        factor = 1.0
        if settings.clip_norm is not None:
            if norm is None:
                norm = float(np.sqrt(sum_of_squares([gradient for _, gradient in trained], self.threads)))
            factor = settings.clip_norm / max(norm, settings.clip_norm)  # NaN and infinity stay so
        together: Dict[Tuple[float, float], List[int]] = defaultdict(list)
        for index, slot in enumerate(slots):  # one without a gradient for a while is some steps behind
            together[_number(slot.power1).value, _number(slot.power2).value].append(index)
        rate = np.float32(self.get_lr())
        betas = (*settings.betas, settings.epsilon)
        for members in together.values():
            group = [trained[i] for i in members]
            rates = [float(rate * np.float32(p.optimize_attr["learning_rate"])) for p, _ in group]
            decays = [settings.decay_of(parameter) for parameter, _ in group]
            of_group = [slots[i] for i in members]
            update_together(group, of_group, rates, decays, betas, factor, self.threads)


def update_together(
    trained: Trained,
    slots: Sequence[AdamSlots],
    rates: Sequence[float],
    decays: Sequence[float],
    betas: Sequence[float],
    factor: float,
    threads: int,
) -> None:
    """Make a step of AdamW on float32 tensors of the CPU whose powers are equal, in place.

    ``rates``, ``decays``: of each parameter; ``betas``: with epsilon; ``factor``: of the gradients.
    """
    count, beta1, beta2, epsilon = len(trained), *betas
    parameters, gradients = zip(*trained)
    powers = _number(slots[0].power1).value, _number(slots[0].power2).value
    call = AdamwCall(beta1, beta2, epsilon, *powers, factor, threads)
    sizes = (c_int64 * count)(*[parameter.size for parameter in parameters])
    moments = [slot.moment1 for slot in slots], [slot.moment2 for slot in slots]
    tensors = map(pointers_of, (parameters, gradients, *moments))
    numbers = (sizes, (c_float * count)(*rates), (c_float * count)(*decays))
    open_kernels().functions.fused_adamw_step(byref(call), count, *numbers, *tensors)
    later = [float(np.float32(power) * np.float32(beta)) for power, beta in zip(powers, betas)]
    for slot in slots:
        _number(slot.power1).value, _number(slot.power2).value = later


def gradients_of(parameters) -> Trained:
    """Return the trainable parameters that have a gradient, with it."""
    found = ((p, p.grad) for p in parameters if not p.stop_gradient)
    return [(parameter, gradient) for parameter, gradient in found if gradient is not None]


def sum_of_squares(tensors, threads: int) -> float:
    """Return the sum of the squares of all elements of contiguous float32 tensors on the CPU."""
    count = len(tensors)
    sizes = (c_int64 * count)(*[tensor.size for tensor in tensors])
    return open_kernels().functions.fused_sum_of_squares(count, sizes, pointers_of(tensors), threads)


def _number(tensor) -> c_float:
    """Return the only element of a float32 tensor on the CPU, to be read and written."""
    return c_float.from_address(tensor.data_ptr())
