"""Change the ops of a static program and run it repeatedly, for which Paddle has no public interface.

Names, as in Paddle 2.6.2: `Block._remove_op`, `Block._remove_var`, `Block._insert_op`,
`Block._insert_op_without_sync`, `Block._var_recursive`, `Program._sync_with_cpp`, `OpDesc._set_float32_attr`
and similar, `paddle.base.framework.Operator`, `paddle.base.core.VarDesc.VarType.LOD_TENSOR`,
`paddle.base.core.LoDTensor`. Python and C++ each have their own copy of a program; ``sync`` follows the
last change. Of the executor: `_executor_cache` with its `get_program_and_executor`, which finds what it has
prepared by a hash over the whole program, computed again for every run, `_feed_data`, and what `_run_impl`
does between the two: it writes the rate of `lr_scheduler` to its variable `_var_name`.

What differs in Paddle 3.0 and 3.1, when they build the programs of 2.6: `c_allreduce_sum` and
`c_broadcast`, with X, Out and `use_calc_stream`, are `all_reduce`, with `reduce_type`, and `broadcast`, with
x and out; `truncated_gaussian_random` truncates at its own `a` and `b`, not at two standard deviations.
`paddle.base.framework.OpProtoHolder` knows which ops exist.
"""

from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import numpy as np
import paddle

Names = Dict[str, List[str]]  # {the op's name: variables}
FEED, FETCH = "feed", "fetch"  # the executor's names of its lists
WORLD_RING = 0  # all processes of a run
CUT = 2.0  # standard deviations


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
    """Return the op, as for ``append_op``, that writes the sum of ``source`` over all ranks to ``total``.

    Both are variables.
    """
    if _has_op("c_allreduce_sum"):
        return _describe("c_allreduce_sum", "X", source, "Out", total, use_calc_stream=True)
    kind = int(paddle.distributed.ReduceOp.SUM)
    return _describe("all_reduce", "x", source, "out", total, reduce_type=kind)


def describe_broadcast(variable, root: int, **attrs) -> Dict[str, Any]:
    """Return the op, as for ``append_op``, that broadcasts ``variable`` from rank ``root``."""
    if _has_op("c_broadcast"):
        return _describe(
            "c_broadcast", "X", variable, "Out", variable, root=root, use_calc_stream=True, **attrs
        )
    return _describe("broadcast", "x", variable, "out", variable, root=root, **attrs)


def _describe(kind: str, source_slot: str, source, target_slot: str, target, **attrs) -> Dict[str, Any]:
    about = {"inputs": {source_slot: [source]}, "outputs": {target_slot: [target]}}
    return {"type": kind, **about, "attrs": {"ring_id": WORLD_RING, **attrs}}


def _has_op(kind: str) -> bool:
    return kind in paddle.base.framework.OpProtoHolder.instance().op_proto_map


def is_sum(op) -> bool:
    """Return whether ``op`` writes the sum of a variable over all ranks."""
    if op.type == "all_reduce":
        return op.attr("reduce_type") == int(paddle.distributed.ReduceOp.SUM)
    return op.type == "c_allreduce_sum"


def is_broadcast(op) -> bool:
    """Return whether ``op`` broadcasts a variable from one rank."""
    return op.type in ("c_broadcast", "broadcast")


def cut_normals(startup: paddle.static.Program) -> None:
    """Truncate the normals of ``startup`` at two standard deviations, as in Paddle 2.6.

    So they are the same numbers in every version. Sync the program afterwards.
    """
    for op in startup.global_block().ops:
        if op.type == "truncated_gaussian_random" and "a" in op.attr_names:
            mean, deviation = op.attr("mean"), op.attr("std")
            op._set_attr("a", mean - CUT * deviation)
            op._set_attr("b", mean + CUT * deviation)


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
        self._set_rate(program)
        runner.run(list(feed), return_numpy=False)

    def _set_rate(self, program) -> None:
        schedule = getattr(program, "lr_scheduler", None)
        if schedule is None:
            return
        rate = paddle.base.core.LoDTensor()
        rate.set(np.array([schedule()], np.float32), paddle.CPUPlace())
        self.scope.find_var(schedule._var_name).get_tensor()._copy_from(rate, self.executor.place)


def pin(array: np.ndarray):
    """Return a copy of ``array`` as a tensor of a scope, in pinned memory, which a GPU reads asynchronously.

    The caller that feeds it keeps it until then.
    """
    tensor = paddle.base.core.LoDTensor()
    tensor.set(np.ascontiguousarray(array), paddle.CUDAPinnedPlace())
    return tensor
