"""The sum of a few numbers over all ranks, as a program of its own, and as ops of the program that trains."""

import numpy as np
import paddle

from ernie_pair.device.paddle_patches.static_programs import describe_sum, insert_op, sync
from ernie_pair.pretrain.graph.gloo import drop_stream_syncs, wait_for_all

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
                self.program.global_block().append_op(**describe_sum(self.total, self.total))
            if cpu:
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

    def barrier(self) -> None:
        """Wait for all ranks."""
        self(np.zeros(1))


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
