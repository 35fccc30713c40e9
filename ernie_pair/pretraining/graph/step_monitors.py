"""What a step records, and sums of a few numbers over all ranks, as a program of its own.

On a CPU the processes of static programs, which upstream connects only by NCCL, meet over gloo, in one world.
"""

from typing import NamedTuple, Optional

import numpy as np
import paddle

from ernie_pair.runtime.paddle_patches.process_groups import connect_static_programs
from ernie_pair.runtime.paddle_patches.static_programs import sum_over_ranks
from ernie_pair.runtime.processes.sockets import MeetingPlace, shorten_socket_names
from ernie_pair.runtime.processes.stop_signals import skip_destructors


def needs_gloo(device: str, num_processes: int) -> bool:
    """Return whether the processes of a run communicate by gloo: several on CPUs."""
    return device == "cpu" and num_processes > 1


_place: Optional[MeetingPlace] = None  # one for the life of the process, as its gloo world is


def start_gloo(num_processes: int) -> None:
    """Initialise, in static mode, the gloo world of the launcher."""
    global _place
    shorten_socket_names()  # Paddle starts a manager process
    store = connect_static_programs()
    skip_destructors()
    _place = MeetingPlace(store, num_processes, "pretrain")


def wait_for_all() -> None:
    """Wait for the other processes; gloo itself would soon time out."""
    if _place is not None:
        _place.wait_for_all()


# float64 [2], fed with several processes: the number of masked tokens and of samples of this rank's step.
LABELLED = "labelled"


class RankSums:
    """The sum of small float vectors over all ranks; with one rank it returns them unchanged."""

    def __init__(self, num_ranks: int, executor: paddle.static.Executor):
        self.executor, self.program = executor, None
        if num_ranks > 1:
            self.program = paddle.static.Program()
            with paddle.static.program_guard(self.program), paddle.utils.unique_name.guard():
                values = paddle.static.data("values", [None], "float64")
                self.total = sum_over_ranks(values * 1.0)

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


GRADIENT_NORM, SKIPPED_UPDATES, RECORDS = "gradient_norm", "skipped_updates", "pass_records"
RECORDED_PASSES = 128  # rows of 20 to 28 bytes; more if a step has more passes


class Monitors(NamedTuple):
    """The names of persistable float32 [1] variables; None if the program has none."""

    gradient_norm: Optional[str]
    skipped_updates: Optional[str]
    loss_scale: Optional[str]


PASS_SEED = "pass_seed"  # int32 [1], fed to every pass
NO_DROPOUT = {PASS_SEED: np.zeros(1, np.int32)}  # for evaluation: the variable must be fed


def seed_feed(seed: int) -> dict:
    """Derive all randomness of the next micro-batch from ``seed``; return its feed {PASS_SEED: int32 [1]}."""
    paddle.seed(seed)
    return {PASS_SEED: np.array([seed & 0x3FFFFFFF], np.int32)}  # leaves room for the positions
