"""The optimizers of pretraining, and the parameters that each of them treats differently."""

from typing import Any, Dict, List, Optional, Set

import paddle
from paddle import nn

from ernie_pair.pretrain.config.pretrain_config import PretrainConfig


def decayed_parameters(model: nn.Layer) -> Set[str]:
    """Return the names of the parameters that decay, and that LAMB adapts: all but biases and norms."""
    return {
        p.name for name, p in model.named_parameters() if not name.endswith("bias") and "norm" not in name
    }


def build_optimizer(
    config: PretrainConfig, model: nn.Layer, schedule, parameters: Optional[List] = None
) -> paddle.optimizer.Optimizer:
    """Return the optimizer of ``config``; ``schedule`` gives the learning rate.

    ``parameters``: those to update, in the dynamic graph; a static program has its own.

    LAMB (https://arxiv.org/abs/1904.00962) scales the step of a parameter to the length rate x |w|, by
    |w| / |r + decay x w| with Adam's step r; biases and norms take Adam's step, without decay. Paddle
    couples the two: what does not decay is not adapted.
    """
    decayed = decayed_parameters(model)
    settings: Dict[str, Any] = {
        "learning_rate": schedule,
        "parameters": parameters,
        "beta1": config.adam_beta1,
        "beta2": config.adam_beta2,
        "epsilon": config.adam_epsilon,
        "grad_clip": paddle.nn.ClipGradByGlobalNorm(config.grad_clip) if config.grad_clip > 0 else None,
        "multi_precision": config.narrows_weights,  # fleet does not set it if recompute is on
    }
    if config.optimizer == "lamb":
        return paddle.optimizer.Lamb(
            lamb_weight_decay=config.weight_decay,
            exclude_from_weight_decay_fn=lambda parameter: parameter.name not in decayed,
            **settings,
        )
    return paddle.optimizer.AdamW(
        weight_decay=config.weight_decay, apply_decay_param_fun=decayed.__contains__, **settings
    )
