"""What the processes of a run share besides `paddle.distributed`.

Names, as in Paddle 2.6.2: `paddle.base.core.create_or_get_global_tcp_store`, by which `init_parallel_env`
connects the processes; `paddle.distributed.parallel.sync_params_buffers`, with which `paddle.DataParallel`
begins; `fused_allreduce_gradients` of `paddle.distributed.fleet.utils.hybrid_parallel_util`, which the
documentation of `no_sync` names for gradients that are summed manually; `core.eager.set_master_grads`, by
which `paddle.amp.decorate(master_grad=True)` casts half-precision gradients to float32 after a backward pass.

In Paddle 3 the collectives of static programs use the contexts of `core.CommContextManager`, by the number
of their ring; `init_parallel_env` creates none for them on CPUs. `paddle.distributed.parallel` has
`_print_modified_flags`, with which it prints the settings that differ from Paddle's defaults, including ours.
"""

import paddle

from ernie_pair.runtime.paddle_patches.replaced import replaced
from ernie_pair.runtime.paddle_patches.static_programs import WORLD_RING


def join_processes() -> None:
    """Connect the processes of the run, without printing a list of Paddle's flags."""
    from paddle.distributed import parallel

    with replaced(parallel, "_print_modified_flags", lambda flags: None):
        paddle.distributed.init_parallel_env()


def open_store():
    """Return the store by which the processes are connected: ``add(key, number)`` returns the sum so far."""
    from paddle.base import core

    return core.create_or_get_global_tcp_store()


def connect_static_programs(num_processes: int):
    """Let the static programs of several processes communicate by gloo.

    Static mode must be on. Returns the store that connects them if gloo waits only 30 seconds for a late
    process, as in Paddle 3, and None if it waits longer.
    """
    if paddle.__version__.startswith("2."):
        # In dynamic mode Paddle creates a group that static programs cannot use.
        join_processes()
        return None
    store = open_store()
    make_context = paddle.base.core.CommContextManager.create_gloo_comm_context
    make_context(store, str(WORLD_RING), paddle.distributed.get_rank(), num_processes)
    return store


def share_weights(model) -> None:
    """Broadcast the weights of ``model`` from the first process to all."""
    from paddle.distributed.parallel import sync_params_buffers

    sync_params_buffers(model)


def average_gradients(model, widens: bool = False) -> None:
    """Average the gradients of ``model`` over all processes; ``widens``: half ones become float32."""
    from paddle.base import core
    from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients

    parameters = list(model.parameters())
    if widens:
        core.eager.set_master_grads(parameters)
    fused_allreduce_gradients(parameters, None)
