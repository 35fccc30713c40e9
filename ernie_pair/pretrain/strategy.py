"""The run's settings as fleet's DistributedStrategy."""

from typing import List

import paddle
import paddle.distributed.fleet as fleet

from ernie_pair.pretrain.config import PretrainConfig
from ernie_pair.pretrain.cpu_collectives import needs_gloo, start_gloo

# Kept in float32 under AMP: a sum over many terms loses its small ones in half precision.
FLOAT32_OPS = [
    "softmax",
    "softmax_with_cross_entropy",
    "layer_norm",
    "reduce_sum",
    "c_softmax_with_cross_entropy",
]
AMP = {"init_loss_scaling": 32768.0, "use_dynamic_loss_scaling": True, "custom_black_list": FLOAT32_OPS}


def start_fleet(device: str, num_processes: int) -> None:
    """Static mode from here on, and the processes of the run know each other."""
    paddle.enable_static()
    fleet.init(is_collective=True, log_level="ERROR")
    if needs_gloo(device, num_processes):
        start_gloo()


def distributed_strategy(config: PretrainConfig, layers: List[str]) -> fleet.DistributedStrategy:
    """``layers``: the variable names of the encoder layers' outputs, where recompute cuts."""
    strategy = fleet.DistributedStrategy()
    strategy.without_graph_optimization = True
    if config.passes > 1:
        strategy.gradient_merge = True
        strategy.gradient_merge_configs = {"k_steps": config.passes, "avg": True}
    if config.use_recompute:
        strategy.recompute = True
        strategy.recompute_configs = {"checkpoints": layers}
    if config.use_amp:
        strategy.amp = True
        strategy.amp_configs = AMP
    return strategy
