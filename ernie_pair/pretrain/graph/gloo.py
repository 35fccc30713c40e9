"""Makes static fleet run over gloo on a CPU build of Paddle 2.6, where upstream knows only NCCL.

Every process of a run shares one gloo world and the CPU kernels ignore ring ids, so only plain data
parallel is right here: a mesh would add up over the wrong processes.
"""

import paddle

from ernie_pair.device.paddle_patches.static_programs import remove_ops, sync
from ernie_pair.processes.short_sockets import shorten_socket_names

SYNC_OPS = {"c_sync_comm_stream", "c_sync_calc_stream", "c_wait_comm", "c_wait_compute"}


def needs_gloo(device: str, num_processes: int) -> bool:
    """Return whether the processes of a run speak by gloo: several on CPUs."""
    return device == "cpu" and num_processes > 1


def start_gloo() -> None:
    """Initialise the gloo world of `paddle.distributed.launch`; programs are made for it `without_nccl`.

    Static mode must be on: in dynamic mode Paddle makes a group that static programs do not see.
    """
    shorten_socket_names()  # Paddle starts a manager
    paddle.distributed.init_parallel_env()


def drop_stream_syncs(*programs) -> None:
    """Remove the ops that order GPU streams: they have no CPU kernel and nothing to order there."""
    for program in programs:
        sync(program)
        for block in program.blocks:
            remove_ops(block, lambda op: op.type in SYNC_OPS)
        sync(program)
