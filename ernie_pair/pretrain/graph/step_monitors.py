"""What passes and steps record in the scope for the log; nothing is fetched while they run.

The gradient norm and the count of skipped steps are computed in the block that updates the parameters, so
with gradient merge once per step. Each pass then appends a row to the records: its sums, and that norm. The
oldest row drops out, so the records must be read before there have been more passes than rows.
"""

from typing import NamedTuple, Optional, Sequence

import paddle

from ernie_pair.device.paddle_patches.static_programs import declare_written

GRADIENT_NORM, SKIPPED_UPDATES, RECORDS = "gradient_norm", "skipped_updates", "pass_records"
RECORDED_PASSES = 128  # rows of 20 to 28 bytes; more if a step has more passes


class Monitors(NamedTuple):
    """The names of persistable float32 [1] variables; None if the program has none."""

    gradient_norm: Optional[str]
    skipped_updates: Optional[str]
    loss_scale: Optional[str]


def add_monitors(main: paddle.static.Program, startup: paddle.static.Program, block, update) -> Monitors:
    """Add the ops that keep the gradient's norm and the count of skipped steps.

    ``block`` holds ``update``, one of the ops that update a parameter. Call it before any of them is removed.
    """
    norm = _norm_in(block)
    skips = update.input("SkipUpdate") if "SkipUpdate" in update.input_names else []
    role = {"op_role": update.all_attrs()["op_role"]}
    if norm:
        kept = _create(main, startup, GRADIENT_NORM)
        block.append_op(type="assign", inputs={"X": [norm]}, outputs={"Out": [kept]}, attrs=role)
        declare_written(main, block, GRADIENT_NORM)
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


def add_records(
    program: paddle.static.Program, sums: Sequence, norm: Optional[str], rows: int, startup=None
) -> None:
    """Make each run of ``program`` append a row to its records: ``sums`` [] and the variable ``norm`` [1].

    ``startup`` creates the variable ``RECORDS`` in the scope; another program may share it.
    """
    width = record_width(sums, norm)
    about = {"name": RECORDS, "shape": [rows * width], "dtype": "float32", "persistable": True}
    if startup is not None:
        created = startup.global_block().create_var(**about)
        attrs = {"shape": about["shape"], "dtype": created.dtype, "value": 0.0}
        startup.global_block().append_op(type="fill_constant", outputs={"Out": [created]}, attrs=attrs)
    block = program.global_block()
    records = block.create_var(**about)
    with paddle.static.program_guard(program), paddle.utils.unique_name.guard("records/"):
        row = paddle.stack([_in_float32(block.var(each.name)) for each in sums])
        kept = paddle.slice(records, axes=[0], starts=[width], ends=[rows * width])
    norms = [_variable(block, norm)] if norm else []
    inputs = {"X": [kept, row, *norms]}
    block.append_op(type="concat", inputs=inputs, outputs={"Out": [records]}, attrs={"axis": 0})


def record_width(sums: Sequence, norm: Optional[str]) -> int:
    """Return how many numbers a row of the records has: the ``sums``, and the norm if there is one."""
    return len(sums) + bool(norm)


def _variable(block, name: str):
    """Return the variable of a norm; the evaluation program finds it in the scope."""
    about = {"name": name, "shape": [1], "dtype": "float32", "persistable": True}
    return block.var(name) if block.has_var(name) else block.create_var(**about)


def _in_float32(variable):
    return variable if variable.dtype == paddle.float32 else paddle.cast(variable, "float32")


def _norm_in(block) -> Optional[str]:
    """Return the variable of the global norm that clipping computes."""
    for op in block.ops:
        if op.type == "sqrt" and "gradient_clip" in op.all_attrs().get("op_namescope", ""):
            return op.output("Out")[0]
    return None


def _loss_scale_in(block) -> Optional[str]:
    """Return the variable of the loss scale, if the loss is scaled dynamically."""
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
