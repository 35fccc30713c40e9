"""A few large collectives instead of one per parameter: small ones cost mostly latency.

`coalesce_tensor` moves the variables of a group into one contiguous buffer, where they stay.
"""

from collections import defaultdict
from typing import DefaultDict, Dict, Iterator, List

import numpy as np
import paddle

from ernie_pair.device.paddle_patches.static_programs import (
    find_variable,
    insert_described,
    is_broadcast,
    is_sum,
    remove_ops,
    sync,
)

GROUP_BYTES = 32 << 20


def fuse_collectives(main: paddle.static.Program, block, rank: int) -> None:
    """Fuse gradient merge's sums and the sharded optimizer's broadcasts of ``main``, the program of ``rank``.

    ``block``: the block that updates the parameters. What data parallelism sums during the backward pass is
    already grouped.
    """
    for is_wanted in (is_sum, is_broadcast):
        groups: DefaultDict[tuple, List] = defaultdict(list)
        for op in block.ops:
            if is_wanted(op) and _is_single(block, op):
                variable = find_variable(block, op.output_arg_names[0])
                groups[(op.attr("root") if is_broadcast(op) else -1, variable.dtype)].append(op)
        for (root, _), ops in groups.items():
            for piece in _pieces(block, ops):
                _fuse(block, piece, copies=root in (-1, rank))
    sync(main)


def _is_single(block, op) -> bool:
    """Return whether ``op`` handles a single parameter or gradient, not a group."""
    return not any(
        other.type == "coalesce_tensor" and op.output_arg_names[0] in other.output("FusedOutput")
        for other in block.ops
    )


def _pieces(block, ops: List) -> Iterator[List]:
    """Yield the ops in order, in pieces whose variables take about GROUP_BYTES."""
    piece: List = []
    size = 0
    for op in ops:
        variable = find_variable(block, op.output_arg_names[0])
        piece.append(op)
        size += 4 * int(np.prod(variable.shape))
        if size >= GROUP_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _fuse(block, ops: List, copies: bool) -> None:
    """Replace ``ops`` by one over all of their variables; ``copies``: their values must be kept."""
    names = [op.output_arg_names[0] for op in ops]
    first = find_variable(block, names[0])
    fused = block.create_var(name=f"{names[0]}.fused", dtype=first.dtype, stop_gradient=True)
    kind, attrs = ops[0].type, _attributes_of(ops[0])
    (target,) = ops[0].output_names
    (source,) = (slot for slot in ops[0].input_names if ops[0].input(slot))
    place = next(index for index, op in enumerate(block.ops) if op is ops[0])
    remove_ops(block, lambda op: op in ops)
    insert_described(block, place, kind, {source: [fused.name]}, {target: [fused.name]}, attrs)
    settings = {
        "copy_data": copies,
        "use_align": True,
        "dtype": int(first.dtype),
        "op_role": attrs["op_role"],
    }
    outputs = {"Output": names, "FusedOutput": [fused.name]}
    insert_described(block, place, "coalesce_tensor", {"Input": names}, outputs, settings)


def _attributes_of(op) -> Dict:
    known = ("ring_id", "root", "reduce_type", "use_calc_stream", "op_role")
    return {name: value for name, value in op.all_attrs().items() if name in known}
