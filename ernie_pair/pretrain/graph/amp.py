"""Mixed precision of the static program: what is cast, and how the loss is scaled."""

from dataclasses import dataclass
from typing import ContextManager, Optional

import paddle

from ernie_pair.device.paddle_patches.static_fleet import amp_by
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig

# Kept in float32, for a sum over many terms loses its small ones in half precision.
FLOAT32_OPS = {
    "softmax",
    "softmax_with_cross_entropy",
    "c_softmax_with_cross_entropy",
    "layer_norm",
    "reduce_sum",
}
NEVER = 2**31 - 1
MASTER_MARK = "_fp32_master_"  # in the name of the float32 copy of a narrow weight


@dataclass(frozen=True)
class AmpPlan:
    """The settings of mixed precision.

    ``dtype`` float32 casts nothing and keeps the loss-scale machine, which skips what is not finite.
    """

    dtype: str
    level: str
    init_loss_scaling: float
    incr_every_n_steps: int
    incr_ratio: float
    decr_every_n_nan_or_inf: int
    decr_ratio: float


# The machine with a scale that is 1 for ever: of all it does, only skipping is left.
SKIP_ALONE = AmpPlan("float32", "O1", 1.0, NEVER, 2.0, 1, 0.5)


def precision_of(config: PretrainConfig) -> Optional[AmpPlan]:
    """Return what the flags ask for; None is float32 without the machine."""
    if config.use_amp:
        return AmpPlan(
            config.amp_dtype,
            config.amp_level,
            _first_scale(config),
            config.incr_every_n_steps,
            config.incr_ratio,
            config.decr_every_n_nan_or_inf,
            config.decr_ratio,
        )
    return SKIP_ALONE if config.on_nan == "skip" else None


def _first_scale(config: PretrainConfig) -> float:
    """Return the first loss scale.

    bfloat16 needs none; but only where the scale is not 1 does Paddle look for infinities.
    """
    if config.amp_dtype == "bfloat16":
        return 2.0 if config.on_nan == "skip" else 1.0
    return config.first_loss_scale


def fleet_decorates(precision: Optional[AmpPlan], *, for_gpu: bool) -> ContextManager:
    """Make fleet's AMP, which knows float16 at two levels alone, do what ``precision`` says meanwhile."""
    return amp_by(lambda optimizer: _decorated(optimizer, precision, for_gpu))


class _EveryOp(frozenset):
    def __contains__(self, op: object) -> bool:
        return True


def _decorated(optimizer, precision: Optional[AmpPlan], for_gpu: bool):
    assert precision is not None  # without one fleet does not ask
    casts = precision.dtype != "float32"
    dtype = precision.dtype if casts else "float16"
    lists = paddle.static.amp.CustomOpLists(custom_black_list=FLOAT32_OPS, dtype=dtype)
    if not casts:
        lists.unsupported_list = _EveryOp()
    elif for_gpu and not paddle.is_compiled_with_cuda():
        # A CPU build lists no op as able; here the GPU's program is built to be looked at.
        lists.unsupported_list = set(FLOAT32_OPS)
    return paddle.static.amp.decorate(
        optimizer,
        lists,
        level=precision.level,
        dtype=dtype,
        init_loss_scaling=precision.init_loss_scaling,
        incr_every_n_steps=precision.incr_every_n_steps,
        incr_ratio=precision.incr_ratio,
        decr_every_n_nan_or_inf=precision.decr_every_n_nan_or_inf,
        decr_ratio=precision.decr_ratio,
        use_dynamic_loss_scaling=precision.dtype != "bfloat16",
    )
