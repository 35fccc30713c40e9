"""What a step leaves in the scope for the log: the norm of its gradient, and how many were skipped.

The ops stand in the block in which the parameters move, so with gradient merge they run once a step.
"""

from typing import NamedTuple, Optional

import paddle

GRADIENT_NORM, SKIPPED_UPDATES = "gradient_norm", "skipped_updates"


class Monitors(NamedTuple):
    """The names of persistable float32 [1] variables; None where the program has no such thing."""

    gradient_norm: Optional[str]
    skipped_updates: Optional[str]
    loss_scale: Optional[str]


def add_monitors(main: paddle.static.Program, startup: paddle.static.Program, block, update) -> Monitors:
    """Add the ops that keep the gradient's norm and the count of skipped steps.

    ``block`` holds ``update``, one of the ops that move a parameter. Call it before any is removed.
    """
    norm = _norm_in(block)
    skips = update.input("SkipUpdate") if "SkipUpdate" in update.input_names else []
    role = {"op_role": update.all_attrs()["op_role"]}
    if norm:
        kept = _create(main, startup, GRADIENT_NORM)
        block.append_op(type="assign", inputs={"X": [norm]}, outputs={"Out": [kept]}, attrs=role)
    if skips:
        count = _create(main, startup, SKIPPED_UPDATES)
        now = block.create_var(name=f"{SKIPPED_UPDATES}.now", dtype="float32", shape=[1])
        kinds = {"in_dtype": paddle.bool, "out_dtype": now.dtype}
        block.append_op(type="cast", inputs={"X": skips}, outputs={"Out": [now]}, attrs={**kinds, **role})
        block.append_op(
            type="elementwise_add",
            inputs={"X": [count], "Y": [now]},
            outputs={"Out": [count]},
            attrs={"axis": -1, **role},
        )
    return Monitors(
        GRADIENT_NORM if norm else None, SKIPPED_UPDATES if skips else None, _loss_scale_in(block)
    )


def _norm_in(block) -> Optional[str]:
    """Return the variable of the global norm that clipping computes."""
    for op in block.ops:
        if op.type == "sqrt" and "gradient_clip" in op.all_attrs().get("op_namescope", ""):
            return op.output("Out")[0]
    return None


def _loss_scale_in(block) -> Optional[str]:
    """Return the variable of the loss scale, where the loss is scaled and with a scale that moves."""
    scales = (op.output("LossScaling") for op in block.ops if op.type == "update_loss_scaling")
    return next(scales, [None])[0]


def _create(main: paddle.static.Program, startup: paddle.static.Program, name: str):
    about = {"name": name, "shape": [1], "dtype": "float32", "persistable": True}
    created = startup.global_block().create_var(**about)
    startup.global_block().append_op(
        type="fill_constant",
        outputs={"Out": [created]},
        attrs={"shape": [1], "dtype": created.dtype, "value": 0.0},
    )
    return main.global_block().create_var(**about)
