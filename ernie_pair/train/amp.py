"""Mixed precision of the dynamic graph: what is cast, and how the loss is scaled."""

import contextlib
import math
from typing import ContextManager, Dict, Optional

import numpy as np
import paddle

from ernie_pair.runtime.amp_flags import AmpFlags
from ernie_pair.runtime.paddle_patches.optimizer_state import AnyDeviceGradScaler
from ernie_pair.weights.weight_files import Arrays

# Kept in float32, for a sum over many terms loses its small ones in half precision.
FLOAT32_OPS = {"softmax", "softmax_with_cross_entropy", "layer_norm", "reduce_sum"}
SCALE, FINITE, INFINITE = "loss_scale", "finite_in_a_row", "infinite_in_a_row"


class AmpContext:
    """The precision of a model: ``config`` casts its forward pass, and at O2 its weights once for all."""

    def __init__(self, config: AmpFlags, model):
        self.dtype = config.amp_dtype if config.use_amp else "float32"
        self.level = config.amp_level
        if config.narrows_weights:
            paddle.amp.decorate(models=model, level="O2", dtype=self.dtype)

    def casting(self) -> ContextManager:
        """Return a context in which the forward pass computes in half precision where that is safe."""
        if self.dtype == "float32":
            return contextlib.nullcontext()
        return paddle.amp.auto_cast(level=self.level, dtype=self.dtype, custom_black_list=FLOAT32_OPS)


class LossScale(AnyDeviceGradScaler):
    """Paddle's loss scale; the caller, who has heard all processes, says what is to be skipped."""

    def __init__(self, config: AmpFlags):
        super().__init__(
            init_loss_scaling=config.init_loss_scaling,
            incr_ratio=config.incr_ratio,
            decr_ratio=config.decr_ratio,
            incr_every_n_steps=config.incr_every_n_steps,
            decr_every_n_nan_or_inf=config.decr_every_n_nan_or_inf,
        )

    def arrays(self) -> Arrays:
        """Return the state as arrays, which ``restore`` takes: the loss scale and two counts, [1] each."""
        state = self.state_dict()
        counts = {FINITE: state["incr_count"], INFINITE: state["decr_count"]}
        return {SCALE: state["scale"], **{name: np.array([count]) for name, count in counts.items()}}

    def restore(self, arrays: Arrays) -> None:
        """Restore the state that ``arrays`` returned."""
        self.load_state_dict(
            {
                **self.state_dict(),
                "scale": arrays[SCALE],
                "incr_count": int(arrays[FINITE][0]),
                "decr_count": int(arrays[INFINITE][0]),
            }
        )


def loss_scale_of(config: AmpFlags) -> Optional[LossScale]:
    """Return a loss scale if ``config`` needs one, otherwise None."""
    return LossScale(config) if config.scales_loss else None


def move_if_sound(job, rate: float, loss: float, norm: float) -> Dict[str, float]:
    """Update the weights of ``job`` or skip the step, and return a message about it, if any.

    ``rate``: the learning rate. ``loss`` and ``norm``, of the gradient, are the same on all ranks, and so is
    what is done: with --on_nan skip both have to be finite, with a loss scale the norm.
    """
    is_sound = math.isfinite(norm) and (job.config.on_nan == "stop" or math.isfinite(loss))
    if is_sound:
        job.on_event("on_pre_optimizer_step")
        job.parallel.step(rate, norm)
        job.on_event("on_optimizer_step")
    else:
        job.skipped_updates += 1
    job.parallel.clear()
    told: Dict[str, float] = {}
    if job.loss_scale is not None:
        job.loss_scale.judge(is_sound)
        told["loss_scale"] = job.loss_scale.value
    return {**told, "skipped_updates": job.skipped_updates}
