"""What a step records, and sums of a few numbers over all ranks, as a program of its own and as ops.

On a CPU build of Paddle static fleet, which upstream supports only with NCCL, runs over gloo. All processes
of a run share one gloo world and the CPU kernels ignore ring ids, so only plain data parallelism is correct
there: a mesh would sum over the wrong processes.
"""

from typing import NamedTuple, Optional, Sequence

import numpy as np
import paddle

from ernie_pair.runtime.paddle_patches.pir_programs import builds_pir, sum_over_ranks
from ernie_pair.runtime.paddle_patches.process_groups import connect_static_programs
from ernie_pair.runtime.paddle_patches.static_programs import (
    declare_written,
    describe_sum,
    insert_op,
    remove_ops,
    replace_op,
    sync,
)
from ernie_pair.runtime.processes.sockets import MeetingPlace, shorten_socket_names
from ernie_pair.runtime.processes.stop_signals import skip_destructors

SYNC_OPS = {"c_sync_comm_stream", "c_sync_calc_stream", "c_wait_comm", "c_wait_compute"}


def needs_gloo(device: str, num_processes: int) -> bool:
    """Return whether the processes of a run communicate by gloo: several on CPUs."""
    return device == "cpu" and num_processes > 1


_place: Optional[MeetingPlace] = None  # one for the life of the process, as its gloo world is


def start_gloo(num_processes: int) -> None:
    """Initialise, in static mode, the gloo world of the launcher; programs are built `without_nccl`."""
    global _place
    shorten_socket_names()  # Paddle starts a manager process
    store = connect_static_programs()
    skip_destructors()
    _place = MeetingPlace(store, num_processes, "pretrain") if store is not None else None


def wait_for_all() -> None:
    """Wait for the other processes; gloo itself would soon time out."""
    if _place is not None:
        _place.wait_for_all()


def drop_stream_syncs(*programs) -> None:
    """Remove the ops that order GPU streams: they have no CPU kernel and nothing to order there."""
    for program in programs:
        sync(program)
        for block in program.blocks:
            remove_ops(block, lambda op: op.type in SYNC_OPS)
        sync(program)


# float64 [2], fed with several processes: the number of masked tokens and of samples of this rank's step.
LABELLED = "labelled"


class RankSums:
    """The sum of small float vectors over all ranks; with one rank it returns them unchanged."""

    def __init__(self, num_ranks: int, executor: paddle.static.Executor, *, cpu: bool):
        self.executor, self.program = executor, None
        if num_ranks > 1:
            self.program = paddle.static.Program()
            with paddle.static.program_guard(self.program), paddle.utils.unique_name.guard():
                values = paddle.static.data("values", [None], "float64")
                self.total = values * 1.0
                if builds_pir():
                    self.total = sum_over_ranks(self.total)
                else:
                    self.program.global_block().append_op(**describe_sum(self.total, self.total))
            if cpu and not builds_pir():
                drop_stream_syncs(self.program)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of ``values`` over the ranks, float64 [n]."""
        values = np.asarray(values, np.float64)
        if self.program is None:
            return values
        wait_for_all()
        (total,) = self.executor.run(self.program, feed={"values": values}, fetch_list=[self.total])
        return total

    def meet(self) -> None:
        """Wait for the other ranks where the collectives of the next step would soon time out."""
        wait_for_all()


def divide_by_labelled(main: paddle.static.Program, weights: str, divided: str) -> None:
    """Add to ``main`` the variable ``divided`` [2]: the fed ``weights`` over the label counts of all ranks.

    The host would have to wait for the other ranks, and so for the device, to compute it.
    """
    block = main.global_block()
    labelled = block.create_var(name=LABELLED, shape=[2], dtype="float64", is_data=True, need_check_feed=True)
    names = [f"{divided}.{part}" for part in ("wide", "all", "least", "quotient")]
    wide, total, least, quotient = (block.create_var(name=n, shape=[2], dtype="float64") for n in names)
    to_wide = {"in_dtype": paddle.float32, "out_dtype": paddle.float64}
    to_narrow = {"in_dtype": paddle.float64, "out_dtype": paddle.float32}
    insert_op(block, 0, **describe_sum(labelled, total))
    ops = [
        ("cast", {"X": [weights]}, wide, to_wide),
        ("clip", {"X": [total]}, least, {"min": 1.0, "max": 3e38}),
        ("elementwise_div", {"X": [wide], "Y": [least]}, quotient, {"axis": -1}),
        ("cast", {"X": [quotient]}, block.var(divided), to_narrow),
    ]
    for place, (kind, inputs, output, attrs) in enumerate(ops, start=1):
        insert_op(block, place, type=kind, inputs=inputs, outputs={"Out": [output]}, attrs=attrs)
    sync(main)


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
    norms = (
        op.output("Out")[0]  # that clipping computes
        for op in block.ops
        if op.type == "sqrt" and "gradient_clip" in op.all_attrs().get("op_namescope", "")
    )
    norm = next(norms, None)
    scales = (op.output("LossScaling") for op in block.ops if op.type == "update_loss_scaling")
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
        GRADIENT_NORM if norm else None, SKIPPED_UPDATES if skips else None, next(scales, [None])[0]
    )


def add_records(
    program: paddle.static.Program, sums: Sequence, norm: Optional[str], rows: int, startup=None
) -> None:
    """Make each run of ``program`` append a row to its records: ``sums`` [] and the variable ``norm`` [1].

    ``startup`` creates the variable ``RECORDS`` in the scope; another program may share it.
    """
    width = len(sums) + bool(norm)
    block = program.global_block()
    records = _create(program, startup, RECORDS, rows * width)
    with paddle.static.program_guard(program), paddle.utils.unique_name.guard("records/"):
        recorded = [block.var(each.name) for each in sums]
        row = paddle.stack([v if v.dtype == paddle.float32 else paddle.cast(v, "float32") for v in recorded])
        kept = paddle.slice(records, axes=[0], starts=[width], ends=[rows * width])
    norms = []
    if norm:  # which the evaluation program finds in the scope
        of_norm = {"name": norm, "shape": [1], "dtype": "float32", "persistable": True}
        norms = [block.var(norm) if block.has_var(norm) else block.create_var(**of_norm)]
    inputs = {"X": [kept, row, *norms]}
    block.append_op(type="concat", inputs=inputs, outputs={"Out": [records]}, attrs={"axis": 0})


def _create(main: paddle.static.Program, startup: Optional[paddle.static.Program], name: str, size: int = 1):
    about = {"name": name, "shape": [size], "dtype": "float32", "persistable": True}
    if startup is not None:
        created = startup.global_block().create_var(**about)
        attrs = {"shape": [size], "dtype": created.dtype, "value": 0.0}
        startup.global_block().append_op(type="fill_constant", outputs={"Out": [created]}, attrs=attrs)
    return main.global_block().create_var(**about)


PASS_SEED = "pass_seed"  # int32 [1], fed to every pass
NO_DROPOUT = {PASS_SEED: np.zeros(1, np.int32)}  # for evaluation: the variable must be fed


def seed_feed(seed: int) -> dict:
    """Derive all randomness of the next micro-batch from ``seed``; return its feed {PASS_SEED: int32 [1]}."""
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
