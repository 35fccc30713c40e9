"""The run's settings as fleet's DistributedStrategy."""

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import FrozenSet, Iterator, List, Optional

import paddle
import paddle.distributed.fleet as fleet

from ernie_pair.pretrain.config.pretrain_config import HALF_OPS, PretrainConfig
from ernie_pair.pretrain.graph.fusion import NOTHING_FUSED, FusedOps
from ernie_pair.pretrain.graph.step_monitors import needs_gloo, start_gloo
from ernie_pair.runtime.paddle_patches.static_programs import amp_by, sums_in_float32

# Kept in float32: a sum over many terms loses the small ones in half precision.
FLOAT32_OPS = frozenset({"softmax_with_cross_entropy", "c_softmax_with_cross_entropy", "reduce_sum"})
# Of `--fused_ops`: the first in half precision only, the second in the precision of the softmax it replaces.
FLASH_ATTENTION, FUSED_SOFTMAX, SOFTMAX = "flash_attn", "fused_softmax_mask", "softmax"
NEVER = 2**31 - 1
MASTER_MARK = "_fp32_master_"  # in the name of the float32 copy of a half-precision weight


@dataclass(frozen=True)
class AmpPlan:
    """The settings of mixed precision.

    With ``dtype`` float32 nothing is cast, and the loss scaler only skips steps that are not finite.
    ``float32_ops``: those that always compute in float32. ``sums_float32``: gradients are summed over the
    processes in float32.
    """

    dtype: str
    level: str
    init_loss_scaling: float
    incr_every_n_steps: int
    incr_ratio: float
    decr_every_n_nan_or_inf: int
    decr_ratio: float
    float32_ops: FrozenSet[str] = FLOAT32_OPS
    sums_float32: bool = True


# A loss scaler whose scale is always 1: all that it still does is skip.
SKIP_ALONE = AmpPlan("float32", "O1", 1.0, NEVER, 2.0, 1, 0.5)


def precision_of(config: PretrainConfig) -> Optional[AmpPlan]:
    """Return what the flags ask for; None is float32 without a loss scaler."""
    if config.use_amp:
        scale = config.first_loss_scale
        if config.amp_dtype == "bfloat16":
            # It needs none, but Paddle checks for infinities only if the scale is not 1.
            scale = 2.0 if config.on_nan == "skip" else 1.0
        return AmpPlan(
            config.amp_dtype,
            config.amp_level,
            scale,
            config.incr_every_n_steps,
            config.incr_ratio,
            config.decr_every_n_nan_or_inf,
            config.decr_ratio,
            FLOAT32_OPS | config.float32_ops,
            config.reduce_dtype == "float32",
        )
    return SKIP_ALONE if config.on_nan == "skip" else None


@contextmanager
def fleet_decorates(precision: Optional[AmpPlan], *, for_gpu: bool) -> Iterator[None]:
    """Make fleet's AMP, which knows only float16 at two levels, follow ``precision`` within the context."""
    wide = precision is not None and precision.sums_float32
    amp = amp_by(lambda optimizer: _decorated(optimizer, precision, for_gpu))
    with amp, sums_in_float32() if wide else nullcontext():
        yield


class _EveryOp(frozenset):
    def __contains__(self, op: object) -> bool:
        return True


def _decorated(optimizer, precision: Optional[AmpPlan], for_gpu: bool):
    assert precision is not None  # otherwise fleet does not ask
    casts = precision.dtype != "float32"
    dtype = precision.dtype if casts else "float16"
    return paddle.static.amp.decorate(
        optimizer,
        _op_lists(precision, dtype, for_gpu),
        level=precision.level,
        dtype=dtype,
        init_loss_scaling=precision.init_loss_scaling,
        incr_every_n_steps=precision.incr_every_n_steps,
        incr_ratio=precision.incr_ratio,
        decr_every_n_nan_or_inf=precision.decr_every_n_nan_or_inf,
        decr_ratio=precision.decr_ratio,
        use_dynamic_loss_scaling=precision.dtype != "bfloat16",
    )


def _op_lists(precision: AmpPlan, dtype: str, for_gpu: bool):
    float32 = precision.float32_ops | ({FUSED_SOFTMAX} if SOFTMAX in precision.float32_ops else set())
    half = {*HALF_OPS, FLASH_ATTENTION, FUSED_SOFTMAX} - float32
    lists = paddle.static.amp.CustomOpLists(half, float32, dtype=dtype)
    if precision.dtype == "float32":
        lists.unsupported_list = _EveryOp()
    elif for_gpu and not paddle.is_compiled_with_cuda():
        # A CPU build lists no op as supported; the program for a GPU is built here only to be inspected.
        lists.unsupported_list = set(float32)
    return lists


def start_fleet(device: str, num_processes: int) -> None:
    """Turn on static mode, for good, and connect the processes of the run."""
    paddle.enable_static()
    fleet.init(is_collective=True, log_level="ERROR")
    if needs_gloo(device, num_processes):
        start_gloo(num_processes)


def distributed_strategy(
    config: PretrainConfig, layers: List[str], fused: FusedOps = NOTHING_FUSED
) -> fleet.DistributedStrategy:
    """Return fleet's strategy: data parallel over all processes, and what the flags add to it.

    ``layers``: the variable names of the encoder layers' outputs, the checkpoints of recompute. Sharding and
    AMP do not use fleet's settings: see `zero1.shard_optimizer` and `amp.fleet_decorates`.
    """
    strategy = fleet.DistributedStrategy()
    strategy.without_graph_optimization = True
    strategy.amp = precision_of(config) is not None
    if config.accumulation_steps > 1:
        strategy.gradient_merge = True
        strategy.gradient_merge_configs = {"k_steps": config.accumulation_steps, "avg": True}
    if fused.gemm_epilogue:
        build = strategy.build_strategy  # a copy
        build.fuse_gemm_epilogue = True
        strategy.build_strategy = build
    if config.use_recompute:
        strategy.recompute = True
        strategy.recompute_configs = {"checkpoints": layers}
    return strategy
