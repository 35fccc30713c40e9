"""Make static fleet run over gloo on a CPU build of Paddle, where upstream supports only NCCL.

All processes of a run share one gloo world and the CPU kernels ignore ring ids, so only plain data
parallelism is correct here: a mesh would sum over the wrong processes.
"""

from typing import Optional

from ernie_pair.runtime.paddle_patches.process_groups import connect_static_programs
from ernie_pair.runtime.paddle_patches.static_programs import remove_ops, sync
from ernie_pair.runtime.processes.sockets import MeetingPlace, shorten_socket_names
from ernie_pair.runtime.processes.stop_signals import skip_destructors

SYNC_OPS = {"c_sync_comm_stream", "c_sync_calc_stream", "c_wait_comm", "c_wait_compute"}


def needs_gloo(device: str, num_processes: int) -> bool:
    """Return whether the processes of a run communicate by gloo: several on CPUs."""
    return device == "cpu" and num_processes > 1


_place: Optional[MeetingPlace] = None  # one for the life of the process, as its gloo world is


def start_gloo(num_processes: int) -> None:
    """Initialise the gloo world of `paddle.distributed.launch`; programs are built for it `without_nccl`.

    Static mode must be on.
    """
    global _place
    shorten_socket_names()  # Paddle starts a manager process
    store = connect_static_programs(num_processes)
    skip_destructors()
    _place = MeetingPlace(store, num_processes, "pretrain") if store is not None else None


def wait_for_all() -> None:
    """Wait for the other processes; gloo itself would soon time out."""
    if _place is not None:
        _place.wait_for_all()


def drop_stream_syncs(*programs) -> None:
    """Remove the ops that order GPU streams: they have no CPU kernel and nothing to order there."""
    for program in programs:
        sync(program)
        for block in program.blocks:
            remove_ops(block, lambda op: op.type in SYNC_OPS)
        sync(program)
