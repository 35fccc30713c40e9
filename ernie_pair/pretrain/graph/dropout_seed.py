"""Dropout as a function of a seed, with recompute too.

Recompute puts a `seed` op before each dropout, so that both of its passes drop the same values. That op takes
its seed from the operating system; with a generator, it would still draw in the order in which the
executor's threads reach it. So each is replaced by a sum: the seed that is fed, plus the op's position.
"""

import numpy as np
import paddle

from ernie_pair.device.paddle_patches.static_programs import replace_op, sync

PASS_SEED = "pass_seed"  # int32 [1], fed to every pass
NO_DROPOUT = {PASS_SEED: np.zeros(1, np.int32)}  # for evaluation: the variable must be fed


def seed_feed(seed: int) -> dict:
    """Derive all randomness of the next micro-batch from ``seed``, and return what to feed for it.

    It is {PASS_SEED: int32 [1]}.
    """
    paddle.seed(seed)
    return {PASS_SEED: np.array([seed & 0x3FFFFFFF], np.int32)}  # leaves room for the positions


def replace_seed_ops(main: paddle.static.Program, pass_seed: paddle.static.Variable) -> None:
    """Replace each `seed` op of ``main`` by ``pass_seed``, its variable of that name, plus its position."""
    block = main.global_block()
    places = [index for index, op in enumerate(block.ops) if op.type == "seed"]
    for index in places:
        role = {"op_role": block.ops[index].all_attrs()["op_role"]}
        drawn = block.var(block.ops[index].output("Out")[0])
        replace_op(
            block,
            index,
            type="scale",
            inputs={"X": [pass_seed]},
            outputs={"Out": [drawn]},
            attrs={"scale": 1.0, "bias": float(index), "bias_after_scale": True, "op_device": "cpu", **role},
        )
    sync(main)
