"""Where this process stands among the others, as a value, and messages between them.

``all_reduce`` is the one collective that is needed: float64 [n] -> its sum over the ranks. With one process
it hands back what it is given.
"""

import json
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional

import numpy as np

from ernie_pair.core.errors import (
    ErniePairError,
    InputError,
    LostProcessError,
    MachineError,
    counted,
    describe_os_error,
)
from ernie_pair.core.files.keyed_cache import mix_all

UNSET = "unset it, or start with python -m paddle.distributed.launch"


@dataclass(frozen=True)
class World:
    """The place of this process: two integers, so that any cluster can be tested on a laptop."""

    rank: int = 0
    size: int = 1

    def __post_init__(self):
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is not in a world of {self.size}")

    @property
    def is_first(self) -> bool:
        """Return whether this is rank 0."""
        return self.rank == 0


def launched_world() -> World:
    """Return the world that `paddle.distributed.launch` put into the environment; one process without it.

    Raises InputError for variables that no launcher set so.
    """
    size = whole_number_in("PADDLE_TRAINERS_NUM", 1)
    if size > 1 and "PADDLE_TRAINER_ENDPOINTS" not in os.environ:
        raise InputError(
            f"PADDLE_TRAINERS_NUM={size} is set in the environment, but no launcher did it; {UNSET}"
        )
    return _world_in("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM")


def local_world() -> World:
    """Return this process's place among those of its machine, as the launcher numbers them.

    Raises InputError for variables that no launcher set so.
    """
    return _world_in("PADDLE_LOCAL_RANK", "PADDLE_LOCAL_SIZE")


def _world_in(rank_name: str, size_name: str) -> World:
    rank, size = whole_number_in(rank_name, 0), whole_number_in(size_name, 1)
    if rank >= size:
        raise InputError(
            f"{rank_name}={rank} in the environment is no rank of {size_name}={size} processes; {UNSET}"
        )
    return World(rank, size)


def whole_number_in(name: str, default: int) -> int:
    """Return the number of a variable of the launcher. Raises InputError when it is none."""
    text = os.environ.get(name, str(default))
    if not re.fullmatch("[0-9]{1,9}", text):
        raise InputError(f"{name}={text[:40]} in the environment is not a whole number; {UNSET}")
    return int(text)


def count_accumulation_steps(global_batch_size: int, micro_batch_size: int, data_ranks: int) -> int:
    """Return how many micro-batches each rank takes before the weights move.

    Raises InputError when ``global_batch_size`` is no multiple of one micro-batch on every rank.
    """
    one_pass = micro_batch_size * data_ranks
    if global_batch_size % one_pass:
        raise InputError(
            f"--global_batch_size {global_batch_size} is not a multiple of "
            f"{counted(data_ranks, 'process', 'processes')} x --micro_batch_size {micro_batch_size} = "
            f"{one_pass}; use --global_batch_size {max(1, global_batch_size // one_pass) * one_pass}"
        )
    return global_batch_size // one_pass


def seed_of(*parts: int) -> int:
    """Return a 31-bit seed for (run seed, rank, step, micro-batch): random state is derived, never stored."""
    return mix_all(*parts) & 0x7FFFFFFF


AllReduce = Callable[[np.ndarray], np.ndarray]


def gather_texts(all_reduce: AllReduce, world: World, text: str) -> List[str]:
    """Return the texts of all ranks, in their order, by two all-reduces; called by every rank."""
    if world.size == 1:
        return [text]
    data = text.encode()
    lengths = np.zeros(world.size)
    lengths[world.rank] = len(data)
    ends = np.cumsum(all_reduce(lengths)).astype(np.int64)
    letters = np.zeros(ends[-1])
    letters[ends[world.rank] - len(data) : ends[world.rank]] = np.frombuffer(data, np.uint8)
    joined = all_reduce(letters).astype(np.uint8).tobytes()
    return [joined[begin:end].decode() for begin, end in zip([0, *ends], ends)]


def gather_results(all_reduce: AllReduce, world: World, action: Callable[[], object]) -> List:
    """Run ``action`` on every rank and return the results of all, as JSON values; see `raised_on_all`."""
    with raised_on_all(all_reduce, world) as answer:
        answer["result"] = action()
    return answer["results"]


@contextmanager
def raised_on_all(all_reduce: AllReduce, world: World) -> Iterator[Dict[str, Any]]:
    """Return a context that every rank enters, and that nobody leaves before all have come to its end.

    When one rank fails in it, every rank raises the same error, and the rank is named. An OSError becomes a
    MachineError. A bug keeps its traceback where it is, and is a LostProcessError elsewhere. Yields a
    dictionary: what a rank stores as its "result", a JSON value, all have in "results" afterwards.
    """
    bug: Optional[Exception] = None
    own: Dict[str, Any] = {"result": None}
    answer = own
    try:
        yield own
    except ErniePairError as error:
        answer = {"exit_code": error.exit_code, "error": error.message}
    except OSError as error:
        answer = {"exit_code": MachineError.exit_code, "error": describe_os_error(error)}
    except Exception as error:
        bug = error
        answer = {"exit_code": LostProcessError.exit_code, "error": f"{type(error).__name__}: {error}"}
    answers = [json.loads(text) for text in gather_texts(all_reduce, world, json.dumps(answer))]
    if bug is not None:
        raise bug
    for rank, each in enumerate(answers):
        if "error" in each:
            who = f"rank {rank}: " if world.size > 1 else ""
            kinds = (kind for kind in ErniePairError.__subclasses__() if kind.exit_code == each["exit_code"])
            raise next(kinds, InputError)(who + each["error"])
    own["results"] = [each["result"] for each in answers]
