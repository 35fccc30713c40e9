"""Makes static fleet run over gloo on a CPU build of Paddle 2.6, where upstream knows only NCCL.

Every process of a run shares one gloo world and the CPU kernels ignore ring ids, so only plain data
parallel is right here: a mesh would add up over the wrong processes.
"""

import paddle

SYNC_OPS = {"c_sync_comm_stream", "c_sync_calc_stream", "c_wait_comm", "c_wait_compute"}
UNIFIED = "FLAGS_dynamic_static_unified_comm"


def needs_gloo(device: str, num_processes: int) -> bool:
    return device == "cpu" and num_processes > 1


def start_gloo() -> None:
    """Initialise the gloo world of `paddle.distributed.launch` and teach static fleet to use it.

    Static mode must be on: in dynamic mode Paddle makes a group that static programs do not see.
    """
    from paddle.distributed.fleet.meta_optimizers import common

    paddle.distributed.init_parallel_env()
    # fleet would exchange NCCL ids here; the gloo world stands already.
    common.CollectiveHelper._init_communicator = lambda *args, **kwargs: None
    known = paddle.get_flags

    def get_flags(flags):
        # A CPU build does not know this flag and raises; fleet asks for it to skip its port handshake.
        return {UNIFIED: True} if flags in (UNIFIED, [UNIFIED]) else known(flags)

    paddle.get_flags = get_flags


def drop_stream_syncs(*programs) -> None:
    """Remove the ops that order GPU streams: they have no CPU kernel and nothing to order there."""
    for program in programs:
        for block in program.blocks:
            for index in reversed(range(len(block.ops))):
                if block.ops[index].type in SYNC_OPS:
                    block._remove_op(index)
        program._sync_with_cpp()
