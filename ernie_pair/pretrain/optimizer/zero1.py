"""ZeRO stage 1 in a static program: the optimizer state of each parameter is held by one part of the ranks.

fleet's sharding optimizer is not used: with gradient merge its ranks end with other weights than one
process, and each parameter exists only on its owner, so evaluation and export lack the others.
Here the gradients are summed everywhere, as in plain data parallel, so that clipping and loss scaling
see what one process sees; the owner updates its parameters and broadcasts them. It is the optimizer
partitioning of ZeRO (Rajbhandari et al. 2020, section 5.1), and bit-equal to data parallel.
"""

from typing import Dict, List

import numpy as np
import paddle

from ernie_pair.device.paddle_patches.static_programs import (
    describe_broadcast,
    remove_ops,
    remove_variables,
    sync,
)

UPDATES = ("adamw", "lamb")  # both keep their state under the same names
STATE_INPUTS = ("Moment1", "Moment2", "Beta1Pow", "Beta2Pow", "MasterParam")


def owners_of(sizes: Dict[str, int], degree: int) -> Dict[str, int]:
    """Distribute the parameters over ``degree`` parts of nearly equal size: {parameter: its part}.

    The largest goes first, to the smallest part. A parameter is never split: LAMB takes norms of whole ones.
    """
    filled = [0] * degree
    owners = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owners[name] = filled.index(min(filled))
        filled[owners[name]] += sizes[name]
    return owners


def shard_optimizer(main: paddle.static.Program, startup: paddle.static.Program, part: int, degree: int):
    """Keep only the updates of ``part`` of ``degree`` in the two programs, and receive the other parameters.

    Part p is broadcast by rank p, in the first group of ranks that holds all parts.
    """
    block, updates = updates_of(main)
    parameters = {update.input("Param")[0]: update for update in updates}
    owners = owners_of({name: _size_of(main, name) for name in parameters}, degree)
    role = updates[0].all_attrs()["op_role"]  # an op that was removed has none
    foreign = [name for name in parameters if owners[name] != part]
    gone = {variable for name in foreign for variable in state_of(parameters[name])}
    remove_ops(block, lambda op: op.type in UPDATES and op.input("Param")[0] in foreign)
    remove_ops(startup.global_block(), lambda op: not gone.isdisjoint(op.output_arg_names))
    for program in (main, startup):
        remove_variables(program.global_block(), gone)
    for name, owner in owners.items():
        parameter = main.global_block().var(name)
        block.append_op(**describe_broadcast(parameter, owner, op_role=role))
    sync(main)
    sync(startup)


def updates_of(main: paddle.static.Program):
    """Return the block that updates the parameters, and the ops that do it.

    Gradient merge has a block of its own. Raises ValueError when the program trains nothing.
    """
    for block in main.blocks:
        updates = [op for op in block.ops if op.type in UPDATES]
        if updates:
            return block, updates
    raise ValueError(f"the program has no op of {UPDATES}")


def state_of(update) -> List[str]:
    """Return the variables of the optimizer state of ``update``, one of `updates_of`."""
    return [name for slot in STATE_INPUTS if slot in update.input_names for name in update.input(slot)]


def _size_of(main: paddle.static.Program, name: str) -> int:
    return int(np.prod(main.global_block().var(name).shape))
