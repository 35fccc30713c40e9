"""The optimizer of the dynamic graph: its state under Paddle's names, its gradients, and its loss scaling.

The argument of `set_state_dict` before the first step creates the accumulators.
"""

import contextlib
import io
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import paddle
from paddle.amp import grad_scaler
from paddle.base.layer_helper import LayerHelper
from paddle.nn import clip
from paddle.optimizer.lr import LRScheduler

from ernie_pair.runtime.paddle_patches.core_settings import replaced


def state_of(optimizer) -> Dict[str, Any]:
    """Return {Paddle's name: tensor} of all slots, including what is kept for those not created yet."""
    return {**optimizer._accumulators_holder, **optimizer.state_dict()}


def masters_of(optimizer) -> Dict[str, paddle.Tensor]:
    """Return {parameter.name: float32 copy}, the optimizer's own dictionary; it names the other slots."""
    return optimizer._master_weights


def new_master(parameter, array: np.ndarray) -> paddle.Tensor:
    """Return a float32 copy of ``parameter`` that holds ``array``, under the name that Paddle uses."""
    master = paddle.to_tensor(array)
    master.name = f"{parameter.name}_fp32_master_0"
    return master


def keeps_masters(optimizer) -> bool:
    """Return whether the optimizer keeps float32 copies of 16-bit parameters."""
    return bool(optimizer._multi_precision)


def is_named_adamw(optimizer) -> bool:
    """Return whether it is an AdamW with a name, as this package makes it: its slots have known names."""
    return isinstance(optimizer, paddle.optimizer.AdamW) and optimizer._name is not None


def parameters_of(optimizer) -> List[paddle.Tensor]:
    """Return the parameters that an optimizer moves, of all of its groups."""
    groups = optimizer._param_groups
    return [p for group in groups for p in (group["params"] if isinstance(group, dict) else [group])]


def scheduler_in(optimizer) -> Optional[LRScheduler]:
    """Return the scheduler that an optimizer was made with; None: its rate is a number."""
    rate = optimizer._learning_rate
    return rate if isinstance(rate, LRScheduler) else None


def slot_name(optimizer, parameter, slot: str) -> str:
    """Return Paddle's name of a slot; it differs for another optimizer of the same model."""
    owner = masters_of(optimizer).get(parameter.name, parameter)
    return f"{owner.name}_{optimizer._name}_{slot}_0"


class AdamSlots(NamedTuple):
    """The state of AdamW for one parameter; ``power1`` and ``power2``: of the betas, for the next step."""

    moment1: paddle.Tensor
    moment2: paddle.Tensor
    power1: paddle.Tensor
    power2: paddle.Tensor


def adam_slots(optimizer, parameters) -> List[AdamSlots]:
    """Return the state of ``parameters``; it is created if missing, from what was restored."""
    optimizer.helper = LayerHelper("AdamW")  # as in its own step
    optimizer._create_accumulators(paddle.static.default_main_program().global_block(), parameters)
    names = ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc")
    return [AdamSlots(*(optimizer._get_accumulator(name, p) for name in names)) for p in parameters]


def lay_powers_on_cpu(optimizer, parameters) -> None:
    """Move the beta powers to CPU memory, where AdamW makes them: on the GPU it takes another kernel."""
    optimizer.helper = LayerHelper("AdamW")  # as in its own step
    optimizer._create_accumulators(paddle.static.default_main_program().global_block(), parameters)
    for parameter in parameters:
        for name in ("beta1_pow_acc", "beta2_pow_acc"):
            power = optimizer._get_accumulator_master(name, parameter)
            power.get_tensor().set(power.numpy(), paddle.CPUPlace())


class AdamSettings(NamedTuple):
    """The settings of Paddle's AdamW."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    is_decayed: Optional[Callable[[str], bool]]  # by the parameter's name; None: all are
    clip_norm: Optional[float]
    is_usual: bool  # constant numbers, one group of parameters, no clipping except by the global norm

    @property
    def betas(self) -> Tuple[float, float]:
        """Return both betas."""
        return self.beta1, self.beta2

    def decay_of(self, parameter) -> float:
        """Return the weight decay of ``parameter``."""
        return self.weight_decay if self.is_decayed is None or self.is_decayed(parameter.name) else 0.0


def adam_settings(optimizer) -> AdamSettings:
    """Return the settings of ``optimizer``."""
    clip = optimizer._grad_clip
    numbers = (optimizer._beta1, optimizer._beta2, optimizer._epsilon, optimizer._weight_decay)
    is_usual = (
        all(isinstance(number, float) for number in numbers)
        and (clip is None or type(clip) is paddle.nn.ClipGradByGlobalNorm)
        and not isinstance(optimizer._parameter_list[0], dict)
        and optimizer._lr_ratio is None
        and not optimizer._lazy_mode
    )
    norm = getattr(clip, "clip_norm", None)
    return AdamSettings(*numbers, optimizer._apply_decay_param_fun, norm, is_usual)


def squared_norm(gradient: paddle.Tensor) -> paddle.Tensor:
    """Return the sum of all squares in one pass, where (g * g).sum() makes three."""
    return clip._squared_l2_norm(gradient)


class AnyDeviceGradScaler(paddle.amp.GradScaler):
    """A GradScaler that the caller tells whether the gradients of a step were finite.

    Paddle keeps the scale in shape [1] and prints it as a number, which numpy 2.5 makes of shape [] alone.
    """

    _scale: paddle.Tensor

    def __init__(self, **settings):
        tracer = SimpleNamespace(_expected_place=SimpleNamespace(is_gpu_place=lambda: True))
        with replaced(grad_scaler, "_dygraph_tracer", lambda: tracer):
            super().__init__(**settings)

    def scale(self, loss: paddle.Tensor) -> paddle.Tensor:
        """Return the scaled loss. Paddle's version turns itself off if the type is not float16."""
        return loss * self._scale

    def judge(self, is_finite: bool) -> None:
        """Let the scale grow or shrink after a step whose gradients were finite, or were not."""
        self._cache_founf_inf = self._cache_found_inf = not is_finite
        shape, self._scale = self._scale.shape, self._scale.reshape([])
        with contextlib.redirect_stdout(io.StringIO()):  # Paddle prints each time that it shrinks
            self.update()
        self._scale = self._scale.reshape(shape)

    @property
    def value(self) -> float:
        """Return the scale."""
        return self._scale.item()
