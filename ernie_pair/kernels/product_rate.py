"""The best product rate that this process reaches, to which the rate of its steps is compared."""

import time
from contextlib import contextmanager
from functools import cache
from typing import Any, Callable, Iterator, Tuple

import numpy as np

from ernie_pair.core.errors import MachineError
from ernie_pair.kernels.choice import DTYPES
from ernie_pair.kernels.library import PRECISIONS, WorkspacePool, open_kernels

SHAPES = {
    "cpu": ((1024, 768, 3072), (2048, 1024, 2048)),  # m, k, n
    "gpu": ((8192, 4096, 4096), (8192, 8192, 8192)),
}
REPEATS = 3
Multiply = Callable[[], object]


def product_rate(flags: Any, device: str, threads: int) -> float:
    """Return the FLOP/s of products alone on ``device``, in the precision of a run's flags.

    It is measured once in a process. The ranks of a run measure at the same time, each with its share of
    the machine, as in their steps.
    """
    of_amp = device == "gpu" and flags.use_amp  # on a CPU AMP only scales the loss
    return measure_product_rate(flags.amp_dtype if of_amp else DTYPES[flags.precision], device, threads)


@cache
def measure_product_rate(dtype: str, device: str, threads: int) -> float:
    """Measure the best FLOP/s of products of ``dtype`` on ``device``, cpu or gpu; it takes about 0.2 s.

    On a CPU they are those of the fused kernels, or Paddle's own in float32 if these cannot be used.
    """
    rates = []
    with _dynamic_mode():
        for shape in SHAPES[device]:
            multiply = _product_of(dtype, device, threads, shape)
            for _ in range(REPEATS):
                started = time.perf_counter()
                multiply()
                if device == "gpu":
                    import paddle

                    paddle.device.synchronize()
                rates.append(2.0 * float(np.prod(shape)) / max(time.perf_counter() - started, 1e-9))
    return max(rates)


def _product_of(dtype: str, device: str, threads: int, shape: Tuple[int, int, int]) -> Multiply:
    import paddle

    (m, k, n), kernels = shape, open_kernels()
    if device == "gpu" or kernels.library is None:
        taken = dtype if device == "gpu" else "float32"
        a, b = paddle.ones([m, k], taken), paddle.ones([k, n], taken)
        return lambda: paddle.matmul(a, b)
    precision = PRECISIONS["bf16" if dtype == "bfloat16" and kernels.has_bf16 else "fp32"]
    left, right, answer = (np.ones(size, np.float32) for size in ((m, k), (k, n), (m, n)))
    work = WorkspacePool().take(kernels.functions.fused_product_work_bytes(m, n, k, precision))

    def multiply() -> None:
        a, b, c = (array.ctypes.data for array in (left, right, answer))
        if kernels.functions.fused_product(m, n, k, a, b, precision, threads, work.address, c):
            raise MachineError("oneDNN refused a product; pass --kernels plain")

    return multiply


@contextmanager
def _dynamic_mode() -> Iterator[None]:
    import paddle

    is_static = not paddle.in_dynamic_mode()
    if is_static:
        paddle.disable_static(paddle.device.get_device())
    try:
        yield
    finally:
        if is_static:
            paddle.enable_static()
