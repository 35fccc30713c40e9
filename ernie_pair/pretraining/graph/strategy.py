"""Which parameters decay and which process owns them, mixed precision, and the start of static programs."""

from dataclasses import dataclass
from typing import Optional

import paddle
from paddle import nn

from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.graph.step_monitors import needs_gloo, start_gloo
from ernie_pair.runtime.paddle_patches.process_groups import join_processes


def decayed_names(model: nn.Layer) -> set[str]:
    """Return the names of the parameters that decay: all but biases and norms."""
    return {
        p.name for name, p in model.named_parameters() if not name.endswith("bias") and "norm" not in name
    }


def owners_of(sizes: dict[str, int], degree: int) -> dict[str, int]:
    """Distribute the parameters over ``degree`` parts of nearly equal size: {parameter: its part}.

    The largest goes first, to the smallest part. A parameter is never split: LAMB takes norms of whole ones.
    """
    filled = [0] * degree
    owners = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owners[name] = filled.index(min(filled))
        filled[owners[name]] += sizes[name]
    return owners


OPERATOR = "ernie_pair_adamw"

# Kept in float32: a sum over many terms loses the small ones in half precision.
FLOAT32_OPS = frozenset({"softmax_with_cross_entropy", "c_softmax_with_cross_entropy", "reduce_sum"})
NEVER = 2**31 - 1
# How the loss scale changes, by the names of the flags, of Paddle, and of AmpPlan.
SCALE_CHANGES = ("incr_every_n_steps", "incr_ratio", "decr_every_n_nan_or_inf", "decr_ratio")


@dataclass(frozen=True)
class AmpPlan:
    """The settings of mixed precision.

    With ``dtype`` float32 nothing is cast, and the loss scaler only skips steps that are not finite.
    ``float32_ops`` compute in float32 always.
    """

    dtype: str
    init_loss_scaling: float
    incr_every_n_steps: int
    incr_ratio: float
    decr_every_n_nan_or_inf: int
    decr_ratio: float
    float32_ops: frozenset[str] = FLOAT32_OPS

    @property
    def is_dynamic(self) -> bool:
        """Return whether the loss scale changes: bfloat16 has the range of float32."""
        return self.dtype != "bfloat16"

    @property
    def skips(self) -> bool:
        """Return whether steps that are not finite are skipped."""
        return self.is_dynamic or self.init_loss_scaling != 1.0


# A loss scaler whose scale is always 1: all that it still does is skip.
SKIP_ALONE = AmpPlan("float32", 1.0, NEVER, 2.0, 1, 0.5)


def precision_of(config: PretrainConfig) -> Optional[AmpPlan]:
    """Return what the flags ask for; None is float32 without a loss scaler."""
    if config.use_amp:
        scale = config.first_loss_scale
        if config.amp_dtype == "bfloat16":
            # It needs none, but Paddle checks for infinities only if the scale is not 1.
            scale = 2.0 if config.on_nan == "skip" else 1.0
        changes = {name: getattr(config, name) for name in SCALE_CHANGES}
        return AmpPlan(
            config.amp_dtype,
            scale,
            **changes,
            float32_ops=FLOAT32_OPS | config.float32_ops,
        )
    return SKIP_ALONE if config.on_nan == "skip" else None


def start_static(device: str, num_processes: int) -> None:
    """Turn on static mode, for good, and connect the processes of the run."""
    if device == "gpu" and num_processes > 1:
        join_processes()  # in dynamic mode: it makes the ring that the programs' collectives use
    paddle.enable_static()
    if needs_gloo(device, num_processes):
        start_gloo(num_processes)
