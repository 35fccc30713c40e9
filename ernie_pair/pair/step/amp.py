"""Mixed precision of the dynamic graph: what is cast, and how the loss is scaled."""

import contextlib
import io
from types import SimpleNamespace
from typing import ContextManager, Optional

import numpy as np
import paddle
from paddle.amp import grad_scaler

from data_tools.base.errors import InputError
from ernie_pair.device.amp_flags import AmpConfig
from ernie_pair.weights.weight_files import Arrays

# Kept in float32, for a sum over many terms loses its small ones in half precision.
FLOAT32_OPS = {"softmax", "softmax_with_cross_entropy", "layer_norm", "reduce_sum"}
LEAST_CAPABILITY = {"float16": 7, "bfloat16": 8}
SCALE, FINITE, INFINITE = "loss_scale", "finite_in_a_row", "infinite_in_a_row"


class Precision:
    """Casts the forward pass of a model as ``config`` says, and at O2 its weights, once and for all."""

    def __init__(self, config: AmpConfig, model):
        self.dtype = config.amp_dtype if config.use_amp else "float32"
        self.level = config.amp_level
        if self.dtype != "float32":
            _refuse_old_gpu(self.dtype)
        if config.narrows_weights:
            paddle.amp.decorate(models=model, level="O2", dtype=self.dtype)

    def casting(self) -> ContextManager:
        """Within it the forward pass computes in the narrow type where that is safe."""
        if self.dtype == "float32":
            return contextlib.nullcontext()
        return paddle.amp.auto_cast(level=self.level, dtype=self.dtype, custom_black_list=FLOAT32_OPS)


class LossScale(paddle.amp.GradScaler):
    """Paddle's, on a CPU too; the caller, who has heard all processes, says what is to be skipped."""

    def __init__(self, config: AmpConfig):
        with _any_device():
            super().__init__(
                init_loss_scaling=config.init_loss_scaling,
                incr_ratio=config.incr_ratio,
                decr_ratio=config.decr_ratio,
                incr_every_n_steps=config.incr_every_n_steps,
                decr_every_n_nan_or_inf=config.decr_every_n_nan_or_inf,
            )

    def scale(self, loss: paddle.Tensor) -> paddle.Tensor:
        """Paddle's would switch itself off where the narrow type is not float16."""
        return loss * self._scale

    def judge(self, is_finite: bool) -> None:
        """The gradients of an update were finite, or it is skipped; the scale grows or shrinks."""
        self._cache_founf_inf = not is_finite
        with contextlib.redirect_stdout(io.StringIO()):  # Paddle prints each time it shrinks
            self.update()

    @property
    def value(self) -> float:
        return self._scale.item()

    def arrays(self) -> Arrays:
        """What ``restore`` takes."""
        state = self.state_dict()
        counts = {FINITE: state["incr_count"], INFINITE: state["decr_count"]}
        return {SCALE: state["scale"], **{name: np.array([count]) for name, count in counts.items()}}

    def restore(self, arrays: Arrays) -> None:
        self.load_state_dict(
            {
                **self.state_dict(),
                "scale": arrays[SCALE],
                "incr_count": int(arrays[FINITE][0]),
                "decr_count": int(arrays[INFINITE][0]),
            }
        )


def loss_scale_of(config: AmpConfig) -> Optional[LossScale]:
    return LossScale(config) if config.scales_loss else None


@contextlib.contextmanager
def _any_device():
    """GradScaler refuses a CPU, though the kernels it calls are there."""
    known = grad_scaler._dygraph_tracer
    place = SimpleNamespace(is_gpu_place=lambda: True)
    grad_scaler._dygraph_tracer = lambda: SimpleNamespace(_expected_place=place)
    try:
        yield
    finally:
        grad_scaler._dygraph_tracer = known


def _refuse_old_gpu(dtype: str) -> None:
    """Paddle would warn and compute in float32."""
    least, (found, minor) = LEAST_CAPABILITY[dtype], paddle.device.cuda.get_device_capability()
    if found < least:
        raise InputError(
            f"--amp_dtype {dtype} needs a GPU of compute capability {least}.0, this one has {found}.{minor}; "
            "use another type, or --use_amp false"
        )
