"""Paddle's loss scaling of the dynamic graph, made to work on a CPU and to be told what is finite.

Names, as in Paddle 2.6.2: `paddle.amp.grad_scaler._dygraph_tracer`, by which the constructor refuses a CPU
("AmpScaler can only be enabled on CUDAPlace, XPUPlace and CustomPlace"), although it has the kernels; of the
scaler `_scale` and `_cache_founf_inf`, which Paddle 3 spells `_cache_found_inf`.
"""

import contextlib
import io
from types import SimpleNamespace

import paddle
from paddle.amp import grad_scaler

from ernie_pair.device.paddle_patches.replaced import replaced


class AnyDeviceGradScaler(paddle.amp.GradScaler):
    """A GradScaler that the caller tells whether the gradients of a step were finite."""

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
        with contextlib.redirect_stdout(io.StringIO()):  # Paddle prints each time that it shrinks
            self.update()

    @property
    def value(self) -> float:
        """Return the scale."""
        return self._scale.item()
