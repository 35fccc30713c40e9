"""Messages between the processes of a run: results, and the error that all of them raise.

``all_reduce`` is the one collective that is needed: float64 [n] -> its sum over the ranks. With one process
it hands back what it is given.
"""

import json
from typing import Any, Callable, Dict, List

import numpy as np

from ernie_pair.core.errors import (
    ErniePairError,
    InputError,
    LostProcessError,
    MachineError,
    describe_os_error,
)
from ernie_pair.runtime.processes.world import World

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
    """Run ``action`` on every rank and return the results of all, as JSON values.

    Nobody leaves before all have come. When it fails on one rank, every rank raises the same error, and the
    rank is named. An OSError becomes a MachineError. A bug keeps its traceback where it is, and is a
    LostProcessError elsewhere.
    """
    bug = None
    try:
        answer: Dict[str, Any] = {"result": action()}
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
    for rank, answer in enumerate(answers):
        if "error" in answer:
            who = f"rank {rank}: " if world.size > 1 else ""
            kinds = (
                kind for kind in ErniePairError.__subclasses__() if kind.exit_code == answer["exit_code"]
            )
            raise next(kinds, InputError)(who + answer["error"])
    return [answer["result"] for answer in answers]
