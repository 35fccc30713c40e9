"""The run's settings as fleet's DistributedStrategy."""

from typing import List

import paddle
import paddle.distributed.fleet as fleet

from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.fusion.fused_ops import NOTHING_FUSED, FusedOps
from ernie_pair.pretrain.graph.amp import precision_of
from ernie_pair.pretrain.graph.gloo import needs_gloo, start_gloo


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
