"""Paddle's group sharding, which knows GPUs alone, over gloo with every GPU taken for the CPU.

Its classes run as they are: who owns what, when gradients are summed, how they are clipped, what is sent.
Only where it asks what device there is, and moves tensors between devices, it gets another answer. So
what is left to see on a GPU is the moving.
"""

from contextlib import ExitStack, contextmanager, nullcontext
from unittest import mock

import paddle


class _WithCuda:
    """paddle.framework.core, of a build for GPUs."""

    def __init__(self, core):
        self._core = core

    def __getattr__(self, name):
        return getattr(self._core, name)

    def is_compiled_with_cuda(self):
        return True


@contextmanager
def group_sharding_on_cpu():
    from paddle.distributed.fleet.meta_parallel.sharding import (
        group_sharded_optimizer_stage2,
        group_sharded_stage2,
        group_sharded_storage,
        group_sharded_utils,
    )

    modules = (
        group_sharded_utils,
        group_sharded_storage,
        group_sharded_stage2,
        group_sharded_optimizer_stage2,
    )
    with ExitStack() as stack:

        def patch(where, name, value):
            stack.enter_context(mock.patch.object(where, name, value))

        for module in modules:
            patch(module, "device_guard", lambda *given, **named: nullcontext())
        patch(group_sharded_optimizer_stage2, "core", _WithCuda(group_sharded_optimizer_stage2.core))
        patch(group_sharded_storage, "cvt_to_device", lambda tensor, *given, **named: tensor)
        patch(paddle, "get_device", lambda: "gpu:0")
        patch(paddle.device, "get_device", lambda: "gpu:0")
        patch(paddle, "set_device", lambda device: None)
        patch(paddle.Tensor, "cpu", lambda tensor: tensor.clone())
        patch(paddle.Tensor, "cuda", lambda tensor, *given: tensor)
        yield
