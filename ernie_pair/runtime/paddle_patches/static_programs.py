"""Change the ops of a static program of Paddle 2.6 and run it repeatedly, without a public interface for it.

Paddle 3.3 builds programs of another kind (PIR), whose blocks have none of these names.

Names, as in Paddle 2.6.2: `Block._remove_op`, `Block._remove_var`, `Block._insert_op`,
`Block._insert_op_without_sync`, `Block._var_recursive`, `Program._sync_with_cpp`, `OpDesc._set_float32_attr`
and similar, `paddle.base.framework.Operator`, `paddle.base.core.VarDesc.VarType.LOD_TENSOR`,
`paddle.base.core.LoDTensor`. Python and C++ each have their own copy of a program; ``sync`` follows the
last change. Of the executor: `_executor_cache` with its `get_program_and_executor`, which finds what it has
prepared by a hash over the whole program, computed again for every run, `_feed_data`, and what `_run_impl`
does between the two: it writes the rate of `lr_scheduler` to its variable `_var_name`.
"""

from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

import numpy as np
import paddle
from paddle.distributed.fleet.meta_optimizers import AMPOptimizer, common
from paddle.static.amp import decorator

from ernie_pair.runtime.paddle_patches.core_settings import replaced
from ernie_pair.runtime.paddle_patches.pir_programs import WORLD_RING

Names = Dict[str, List[str]]  # {the op's name: variables}
FEED, FETCH = "feed", "fetch"  # the executor's names of its lists


def remove_ops(block, is_unwanted: Callable) -> None:
    """Remove the ops of ``block`` for which ``is_unwanted(op)``; sync the program afterwards."""
    for index in reversed(range(len(block.ops))):
        if is_unwanted(block.ops[index]):
            block._remove_op(index, sync=False)


def insert_op(block, index: int, **about):
    """Insert an op, described as for ``append_op``, before the one at ``index``; returns it."""
    return block._insert_op(index, **about)


def find_variable(block, name: str):
    """Return the variable of this name of ``block`` or of an enclosing one."""
    return block._var_recursive(name)


def replace_op(block, index: int, **about) -> None:
    """Replace an op by another, described as for ``append_op``; sync the program afterwards."""
    block._remove_op(index, sync=False)
    block._insert_op_without_sync(index, **about)


def insert_described(block, index: int, kind: str, inputs: Names, outputs: Names, attrs: Dict) -> None:
    """Insert an op before the one at ``index``; sync the program afterwards.

    It may be in an inner block and write variables of an outer one, which `replace_op` does not find.
    """
    desc = block.desc._insert_op(index)
    desc.set_type(kind)
    for name, variables in inputs.items():
        desc.set_input(name, variables)
    for name, variables in outputs.items():
        desc.set_output(name, variables)
    setters = {
        bool: desc._set_bool_attr,
        int: desc._set_int32_attr,
        float: desc._set_float32_attr,
        list: desc._set_float32s_attr,
    }
    for name, value in attrs.items():
        setters[type(value)](name, value)
    block.ops.insert(index, paddle.base.framework.Operator(block, desc))


def declare_written(main: paddle.static.Program, inner, name: str) -> None:
    """Declare that the op of ``main`` that runs the block ``inner`` writes the outer variable ``name``.

    Ops that read the variable then wait for it. Nothing is needed if ``inner`` is the outermost block; sync
    the program afterwards.
    """
    for op in main.global_block().ops:
        if op.type == "conditional_block" and op.attr("sub_block").id == inner.idx:
            op.desc.set_output("Out", [*op.output("Out"), name])


def describe_sum(source, total) -> Dict[str, Any]:
    """Return the op, as for ``append_op``, that sums the variable ``source`` over all ranks in ``total``."""
    return _describe("c_allreduce_sum", source, total)


def describe_broadcast(variable, root: int, **attrs) -> Dict[str, Any]:
    """Return the op, as for ``append_op``, that broadcasts ``variable`` from rank ``root``."""
    return _describe("c_broadcast", variable, variable, root=root, **attrs)


def _describe(kind: str, source, target, **attrs) -> Dict[str, Any]:
    attrs = {"ring_id": WORLD_RING, "use_calc_stream": True, **attrs}
    return {"type": kind, "inputs": {"X": [source]}, "outputs": {"Out": [target]}, "attrs": attrs}


def is_sum(op) -> bool:
    """Return whether ``op`` writes the sum of a variable over all ranks."""
    return op.type == "c_allreduce_sum"


def is_broadcast(op) -> bool:
    """Return whether ``op`` broadcasts a variable from one rank."""
    return op.type == "c_broadcast"


def remove_variables(block, names: Iterable[str]) -> None:
    """Remove those of ``names`` that ``block`` has; sync the program afterwards."""
    for name in set(names).intersection(block.vars):
        block._remove_var(name, sync=False)


def sync(program: paddle.static.Program) -> None:
    """Bring the program in Python and in C++ to the same state."""
    program._sync_with_cpp()


def is_tensor(variable) -> bool:
    """Return whether a variable of a program is a tensor, not a reader, scope or list."""
    return variable.type == paddle.base.core.VarDesc.VarType.LOD_TENSOR


class HeldProgram:
    """A program on a scope, run repeatedly with feeds of the same names, without fetching anything."""

    def __init__(self, executor: paddle.static.Executor, program: paddle.static.Program, scope):
        self.executor, self.program, self.scope = executor, program, scope
        self._prepared: Optional[Tuple[Any, Any]] = None

    def run(self, feed: Dict[str, Any]) -> None:
        """Run the program once with ``feed``: arrays, or tensors of a scope."""
        if self._prepared is None:
            self.executor.run(self.program, feed=feed, fetch_list=[], scope=self.scope)
            place, cache = self.executor.place, self.executor._executor_cache
            found = cache.get_program_and_executor(self.program, feed, [], FEED, FETCH, place, self.scope)
            self._prepared = found
            return
        program, runner = self._prepared
        self.executor._feed_data(program, feed, FEED, self.scope)
        schedule = getattr(program, "lr_scheduler", None)
        if schedule is not None:
            rate = paddle.base.core.LoDTensor()
            rate.set(np.array([schedule()], np.float32), paddle.CPUPlace())
            self.scope.find_var(schedule._var_name).get_tensor()._copy_from(rate, self.executor.place)
        runner.run(list(feed), return_numpy=False)


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
    if variable._place().is_cpu_place() and dtype_of(variable) in SHAREABLE:
        return np.from_dlpack(_Exporter(variable))
    return np.asarray(variable)


def dtype_of(variable):
    """Return the dtype of ``variable``, of the kind of `paddle.float32`."""
    return variable._dtype()


def place_of(variable, usual):
    """Return the place of ``variable``: the CPU, or ``usual``, the place of the program."""
    return paddle.CPUPlace() if variable._is_initialized() and variable._place().is_cpu_place() else usual


MARK = "op_role_var"
HALVES = (paddle.float16, paddle.bfloat16)
Pairs = List[Tuple]  # (parameter, gradient)


@contextmanager
def amp_by(decorate: Callable) -> Iterator[None]:
    """Replace fleet's AMP in this context by ``decorate(optimizer)``, with the same kind of result."""

    def init_wrapped_opt(self) -> None:
        if self.wrapped_opt is None:
            # Without knowing of several processes, it checks all gradients for infinities at once.
            self.wrapped_opt = decorate(self.inner_opt)

    with replaced(AMPOptimizer, "_init_wrapped_opt", init_wrapped_opt):
        yield


@contextmanager
def without_nccl() -> Iterator[None]:
    """Have fleet exchange no ids of NCCL in this context: the processes are already connected by gloo."""
    with replaced(common.CollectiveHelper, "_init_communicator", lambda *args, **settings: None):
        yield


@contextmanager
def sums_in_float32() -> Iterator[None]:
    """Have fleet's AMP mark float32 gradients to be summed in this context: half ones are cast beforehand.

    Each is cast where it is computed, so that its sum can begin while the backward pass continues.
    """

    def widened(self, pairs: Pairs) -> Pairs:
        block = self._train_program.global_block()
        return [(p, _cast(block, p, g) if g.dtype in HALVES else g) for p, g in pairs]

    optimizer = decorator.OptimizerWithMixedPrecision
    unmoved = replaced(decorator, "update_role_var_grad", lambda program, pairs: None)
    with unmoved, replaced(optimizer, "_append_cast_to_master_grad_op", widened):
        yield


def _cast(block, parameter, gradient):
    """Cast ``gradient`` right after its last op, which passes the mark on; returns the float32 one."""
    index = max(i for i, op in enumerate(block.ops) if gradient.name in op.output_arg_names)
    made_by = block.ops[index]
    role, names = made_by.attr("op_role"), list(made_by.attr(MARK))
    marked = list(zip(names[::2], names[1::2]))
    marked.remove((parameter.name, gradient.name))
    if marked:
        made_by._set_attr(MARK, [name for pair in marked for name in pair])
    else:
        made_by._remove_attr(MARK)
    wide = block.create_var(name=f"{gradient.name}.float32", dtype=paddle.float32, shape=gradient.shape)
    cast = insert_op(
        block,
        index + 1,
        type="cast",
        inputs={"X": [gradient]},
        outputs={"Out": [wide]},
        attrs={"in_dtype": gradient.dtype, "out_dtype": wide.dtype, "op_role": role},
    )
    cast._set_attr(MARK, [parameter.name, wide.name])
    wide.op = cast
    return wide
