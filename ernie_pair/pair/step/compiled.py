"""The forward pass of a pair classifier as a static program, made once by `paddle.jit.to_static`.

Each op of the dynamic graph costs host time, for which a GPU waits if the ops are small; a program is
launched as a whole. It is bit-identical to the dynamic graph in the compared cases, and refused in others.
"""

from typing import Callable, Optional

import paddle

from data_tools.base.errors import InputError
from ernie_pair.device.paddle_version import why_programs_do_not_train
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.model.classifier import PairClassifier
from ernie_pair.pair.model.plain_model import PlainModel

ANY_SHAPE = [None, None]
COMPARED = ("ernie", "ernie_gram", "bert")  # families, by the tests


def compile_forward(config: PairConfig, model: PairClassifier, num_processes: int) -> Optional[Callable]:
    """Return the forward pass of ``model`` as a program, or None if the dynamic graph is used.

    ``model`` itself computes on as before. Raises InputError if --to_static true asks for what cannot be.
    """
    is_asked_for = config.to_static is True
    if not is_asked_for and (config.to_static is False or config.device == "cpu"):
        return None
    reason = why_not_compiled(config, model, num_processes)
    if reason and is_asked_for:
        raise InputError(f"--to_static true: {reason}; leave it out")
    if reason:
        return None
    spec = [paddle.static.InputSpec(ANY_SHAPE, "int64", name) for name in ("input_ids", "token_type_ids")]
    return paddle.jit.to_static(model.forward, input_spec=spec, full_graph=True)


def why_not_compiled(config: PairConfig, model: PairClassifier, num_processes: int) -> str:
    """Return why the forward pass of ``model`` cannot be compiled; empty: it can."""
    if type(model) is not PairClassifier:
        name = model.family if isinstance(model, PlainModel) else type(model).__name__
        return f"{name} is a class of your own, whose Python may do what a program cannot"
    if model.family not in COMPARED:
        return f"{model.family} is untested; tested are {', '.join(COMPARED)}"
    if model.fused_state is not None:
        return "the fused kernels of the CPU are no ops of Paddle's; add --kernels plain"
    if config.use_recompute:
        return "--use_recompute true runs a layer twice, with the random numbers of the first time"
    if config.use_amp:
        return "in a program --use_amp true casts by other rules, which is untested"
    if num_processes > 1:
        return f"summing its gradients over processes is untested, and there are {num_processes}"
    return why_programs_do_not_train()
