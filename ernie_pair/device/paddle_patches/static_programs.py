"""Changing the ops of a static program, for which Paddle has no public way.

Names, as in Paddle 2.6.2: `Block._remove_op`, `Block._remove_var`, `Block._insert_op_without_sync`,
`Program._sync_with_cpp`, `paddle.base.core.VarDesc.VarType.LOD_TENSOR`. What Python holds of a program and
what C++ runs are two; ``sync`` follows the last change.
"""

from typing import Callable, Iterable

import paddle


def remove_ops(block, is_unwanted: Callable) -> None:
    """Remove the ops of ``block`` of which ``is_unwanted(op)``; the program is to be synced."""
    for index in reversed(range(len(block.ops))):
        if is_unwanted(block.ops[index]):
            block._remove_op(index, sync=False)


def replace_op(block, index: int, **about) -> None:
    """Put an op, described as for ``append_op``, in the place of another; the program is to be synced."""
    block._remove_op(index, sync=False)
    block._insert_op_without_sync(index, **about)


def remove_variables(block, names: Iterable[str]) -> None:
    """Remove those of ``names`` that ``block`` has; the program is to be synced."""
    for name in set(names).intersection(block.vars):
        block._remove_var(name, sync=False)


def sync(program: paddle.static.Program) -> None:
    """Let Python and C++ hold the same of ``program``."""
    program._sync_with_cpp()


def is_tensor(variable) -> bool:
    """Return whether a variable of a program holds numbers, and is no reader, scope or list."""
    return variable.type == paddle.base.core.VarDesc.VarType.LOD_TENSOR
