"""Static programs (PIR), whose blocks cannot be edited: what they need is built in; and their variables.

The executor would start operators that are ready in any order, so that two ranks might meet in different
collectives: `FLAGS_enable_pir_in_executor_trace_run` keeps the order of the program. oneDNN's gradient of a
bfloat16 product ends the process in such a program; nothing here computes one on a CPU.
"""

import warnings
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy as np
import paddle
from paddle.nn import functional as F

from ernie_pair.runtime.paddle_patches.core_settings import replaced

WORLD_RING = 0  # all processes of a run


@contextmanager
def without_advice() -> Iterator[None]:
    """Build a program within this context without lines that tell a user nothing.

    PaddleNLP's layers ask for `place`, which a value of a program has not, and call `paddle.cumsum` with a
    keyword, which prints that there is no ``out``.
    """

    def cumsum(x, axis=None, dtype=None, name=None):
        x = x if dtype is None else x.astype(dtype)
        return paddle._C_ops.cumsum(x, -1 if axis is None else axis, axis is None, False, False)

    with replaced(paddle, "cumsum", cumsum), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Tensor do not have 'place'")
        yield


def keep_order() -> None:
    """Let every program run its operators in their order, one after the other."""
    paddle.set_flags({"FLAGS_enable_pir_in_executor_trace_run": True})


def sum_over_ranks(value):
    """Return the sum of ``value`` over all processes, an operator of the program."""
    return paddle._C_ops.all_reduce(value, WORLD_RING, int(paddle.distributed.ReduceOp.SUM))


def sums_over_ranks(values: Sequence) -> List[Any]:
    """Return the sums of all ``values`` over all processes, laid end to end for one collective."""
    flat = paddle.concat([value.reshape([-1]) for value in values])
    parts = paddle.split(sum_over_ranks(flat), [int(np.prod(value.shape)) for value in values])
    return [part.reshape(value.shape) for part, value in zip(parts, values)]


def scope_variable(name: str, shape: Sequence[int], value: float = 0.0, dtype: str = "float32"):
    """Return the variable ``name`` of the scope; the start-up program fills it with ``value``."""
    fill = paddle.nn.initializer.Constant(value)
    return paddle.pir.core.create_persistable_value(dtype, list(shape), name, initializer=fill)


def parameter_here(parameter):
    """Return ``parameter``, of another program, in the program that is being built."""
    return paddle.pir.core._get_parameter(paddle.static.default_main_program(), parameter)


def gradients_of(outputs: Sequence, inputs: Sequence, gradients: Optional[Sequence] = None) -> List[Any]:
    """Return the gradients by ``inputs``, or None, of ``outputs`` with ``gradients``, None for losses."""
    return list(paddle.autograd.ir_backward.grad(outputs, inputs, gradients, allow_unused=True))


class SeededDropout:
    """Dropout whose masks depend on a seed that is fed, int32 [1], and on ``place`` in the model alone."""

    def __init__(self, seed):
        self.seed, self.place = seed, 0

    def _drop(self, x, p=0.5, axis=None, training=True, mode="upscale_in_train", **_):
        if not p or not training:
            return x
        self.place += 1
        return paddle._C_ops.dropout(x, self.seed + self.place, p, False, mode, 0, False)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let the layers that are called within this context drop so."""
        with replaced(F, "dropout", self._drop):
            yield


def squared_norm(gradient):
    """Return the sum of all squares, float32 [1]."""
    return paddle._C_ops.squared_l2_norm(gradient)


def unscale(gradients: Sequence, scale):
    """Return the ``gradients`` over ``scale``, float32 [1], and whether any is not finite, bool [1]."""
    return paddle._C_ops.check_finite_and_unscale_(list(gradients), scale)


def update_scale(gradients: Sequence, is_infinite, scale, good, bad, settings: Sequence) -> None:
    """Let ``scale`` grow or shrink by what has been found.

    ``good``, ``bad``: int32 [1], steps since the last change; ``settings``: steps until it grows and until it
    shrinks, and by what factors.
    """
    paddle._C_ops.update_loss_scaling_(list(gradients), is_infinite, scale, good, bad, *settings, False)


def run_custom(operator: str, *inputs_and_settings) -> List[Any]:
    """Return the outputs of an operator of `kernels.operator`, which has been loaded."""
    outputs = paddle._C_ops._run_custom_op(operator, *inputs_and_settings)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def move(kind: str, pair, slots: Dict[str, Any], rate, skip, betas: Sequence[float], decay: float) -> None:
    """Add the update of one (parameter, gradient) by ``kind``, adamw or lamb.

    ``slots``: the moments and the powers of the betas; ``skip``: bool [1] or None; ``betas``: with epsilon.
    """
    m1, m2, power1, power2 = slots.values()
    if kind == "lamb":
        paddle._C_ops.lamb_(*pair, rate, m1, m2, power1, power2, None, skip, decay, *betas, False, False)
    else:
        numbers = (1.0, decay, decay > 0, False, 1000, False, False, False)
        paddle._C_ops.adamw_(*pair, rate, m1, m2, None, power1, power2, None, skip, *betas, *numbers)


class HeldProgram:
    """A program on a scope, run repeatedly with feeds of the same names, without fetching anything.

    `Executor.run` would look for it again each time, by a text of the whole program.
    """

    def __init__(self, executor: paddle.static.Executor, program: paddle.static.Program, scope):
        self.executor, self.scope = executor, scope
        self.program, self._infos = program, None
        self._runner: Any = None  # that of Paddle, once it has been made

    def run(self, feed: Dict[str, Any]) -> None:
        """Run the program once with ``feed``: arrays, or tensors of a scope."""
        if self._runner is None:
            cache, place = self.executor._executor_cache, self.executor.place
            self.program, self._runner, self._infos = cache.get_pir_program_and_executor(
                self.program, feed, [], "feed", "fetch", place, self.scope, None
            )
        self.executor._pir_feed_data(self.program, feed, self.scope, self._infos)
        self._runner.run(list(feed), False, False)


def pin(array: np.ndarray):
    """Return a copy of ``array`` in pinned memory, for a GPU; whoever feeds it keeps it until then."""
    tensor = paddle.base.core.LoDTensor()
    tensor.set(np.ascontiguousarray(array), paddle.CUDAPinnedPlace())
    return tensor


SHAREABLE = (paddle.float32, paddle.float64, paddle.int32, paddle.int64)


class _Exporter:
    def __init__(self, variable):
        self.variable = variable

    def __dlpack__(self, **_):
        return self.variable._to_dlpack()

    def __dlpack_device__(self):
        return (1, 0)  # kDLCPU and its number


def view_array(variable) -> np.ndarray:
    """Return a read-only view, which changes with the variable; of GPU memory or 16-bit types, a copy."""
    if variable._place().is_cpu_place() and variable._dtype() in SHAREABLE:
        return np.from_dlpack(_Exporter(variable))
    return np.asarray(variable)


def place_of(variable, device: str):
    """Return the place of ``variable``: the CPU, where it is or the run is, or the GPU of this process."""
    is_on_cpu = variable._is_initialized() and variable._place().is_cpu_place()
    if device == "cpu" or is_on_cpu:
        return paddle.CPUPlace()
    return paddle.CUDAPlace(int(paddle.device.get_device().partition(":")[2] or 0))
