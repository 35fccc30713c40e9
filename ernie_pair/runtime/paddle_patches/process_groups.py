"""What the processes of a run share besides `paddle.distributed`, and group sharding of stage 2.

`fleet.init` keeps the processes of static programs as ``_hcg``, by which PaddleNLP loads a model as one that
is divided over them.

The collectives of static programs use what `init_parallel_env` makes in dynamic mode; a context
that `core.CommContextManager` makes for them never connects in a process that was forked with Paddle loaded.
`paddle.distributed.parallel` has `_print_modified_flags`, with which it prints the settings that differ from
Paddle's defaults, including ours. The module `fleet.utils.http_server`, by which the first process connects
the others, opens http.log in the working folder as it is imported, over a user's own.

Of group sharding, stage 2: `GroupShardedStage2._world_size_scaling` (float16 gradients are divided by the
number of processes in the backward pass, others in the update; if both kinds occur, as at O2, whose norms
stay float32, it does both); `GroupShardedOptimizerStage2` with `param2rank`.
Its module `group_sharded_stage2` sums gradients in their own type, under the name `dist`.
"""

import logging
from contextlib import contextmanager
from importlib import import_module
from typing import Dict, Iterator

import paddle

from ernie_pair.runtime.paddle_patches.core_settings import replaced


def join_processes() -> None:
    """Connect the processes of the run, without printing a list of Paddle's flags or writing its http.log."""
    with replaced(logging, "FileHandler", lambda name, mode: logging.NullHandler()):
        import_module("paddle.distributed.fleet.utils.http_server")
    with replaced(paddle.distributed.parallel, "_print_modified_flags", lambda flags: None):
        paddle.distributed.init_parallel_env()


@contextmanager
def dynamic_afterwards() -> Iterator[None]:
    """Return a context for static programs, after which the process goes on in the dynamic graph."""
    try:
        yield
    finally:
        paddle.disable_static()
        vars(paddle.distributed.fleet.init.__self__).pop("_hcg", None)


def open_store():
    """Return the store by which the processes are connected: ``add(key, number)`` returns the sum so far."""
    return paddle.base.core.create_or_get_global_tcp_store()


def connect_static_programs():
    """Let the static programs of several processes communicate by gloo, in static mode.

    Returns the store that connects them: gloo waits only 30 seconds for a late process.
    """
    paddle.disable_static(paddle.device.get_device())  # in static mode Paddle connects nothing
    join_processes()
    paddle.enable_static()
    return open_store()


def share_weights(model) -> None:
    """Broadcast the weights of ``model`` from the first process to all."""
    paddle.distributed.parallel.sync_params_buffers(model)


def average_gradients(model, fp32_sums: bool = False) -> None:
    """Average the gradients of ``model`` over all processes; ``fp32_sums``: half ones become float32."""
    from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients

    parameters = list(model.parameters())
    if fp32_sums:
        paddle.base.core.eager.set_master_grads(parameters)
    fused_allreduce_gradients(parameters, None)


HALVES = (paddle.float16, paddle.bfloat16)


def shard(model, optimizer):
    """Return (forward, sharded optimizer) that sum gradients: each process takes its share of the loss."""
    from paddle.distributed.sharding import group_sharded_parallel

    forward, sharded, _ = group_sharded_parallel(model, optimizer, "os_g")
    forward._world_size_scaling = 1.0
    return forward, sharded


def owners_of(sharded) -> Dict[str, int]:
    """Return {parameter.name: rank that keeps its gradient and its state}."""
    return sharded.param2rank


@contextmanager
def reduce_in_float32() -> Iterator[None]:
    """Sum half-precision gradients in float32 within this context, and round the sum once."""
    from paddle.distributed.fleet.meta_parallel.sharding import group_sharded_stage2

    with replaced(group_sharded_stage2, "dist", _WideSums(group_sharded_stage2.dist)):
        yield


class _WideSums:
    """`paddle.distributed` whose ``reduce`` sums half tensors in float32."""

    def __init__(self, dist):
        self._dist = dist

    def __getattr__(self, name: str):
        return getattr(self._dist, name)

    def reduce(self, tensor, dst: int, **settings):
        if tensor.dtype not in HALVES:
            return self._dist.reduce(tensor=tensor, dst=dst, **settings)
        wide = tensor.astype("float32")
        task = self._dist.reduce(tensor=wide, dst=dst, **settings)
        if paddle.distributed.get_rank() == dst:
            paddle.assign(wide.astype(tensor.dtype), tensor)
        return task
