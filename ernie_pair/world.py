"""Where this process stands among the others, as a value."""

import os
from dataclasses import dataclass

from data_tools.errors import InputError
from data_tools.hashing import mix_all


@dataclass(frozen=True)
class World:
    """Two integers: any cluster can be tested on a laptop."""

    rank: int = 0
    size: int = 1

    def __post_init__(self):
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is not in a world of {self.size}")

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def launched_world() -> World:
    """The world that `paddle.distributed.launch` put into the environment; one process without it."""
    size, rank = os.environ.get("PADDLE_TRAINERS_NUM", "1"), os.environ.get("PADDLE_TRAINER_ID", "0")
    if int(size) > 1 and "PADDLE_TRAINER_ENDPOINTS" not in os.environ:
        raise InputError(
            f"PADDLE_TRAINERS_NUM={size} is set in the environment, but no launcher did it: unset it, "
            "or start with python -m paddle.distributed.launch"
        )
    return World(int(rank), int(size))


def local_world() -> World:
    """This process among those of its machine, as the launcher numbers them."""
    return World(int(os.environ.get("PADDLE_LOCAL_RANK", "0")), int(os.environ.get("PADDLE_LOCAL_SIZE", "1")))


def passes_per_update(global_batch_size: int, micro_batch_size: int, data_ranks: int) -> int:
    """How many forward passes each rank makes before the weights move."""
    one_pass = micro_batch_size * data_ranks
    if global_batch_size % one_pass:
        nearest = max(1, global_batch_size // one_pass) * one_pass
        raise InputError(
            f"--global_batch_size {global_batch_size} is not a multiple of {data_ranks} process(es) x "
            f"--micro_batch_size {micro_batch_size} = {one_pass}; use --global_batch_size {nearest}"
        )
    return global_batch_size // one_pass


def seed_of(*parts: int) -> int:
    """A 31-bit seed for (run seed, rank, step, pass): random state is derived, never stored."""
    return mix_all(*parts) & 0x7FFFFFFF
