"""Who computes when a large file is asked about: this process, or the tasks of Ray."""

import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable, Iterable, Iterator, Literal, TypeVar

from data_tools.base.errors import InputError, MachineError
from data_tools.base.options import Options, option
from data_tools.base.ray_pool import ray_map, require_ray

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class RayFlags(Options):
    """A part of the flags of commands that ask a model about a file."""

    engine: Literal["local", "ray"] = option(
        "local",
        help="this process computes, or the tasks of Ray (the extra [ray]); same bytes",
        group="devices",
    )
    workers: int = option(
        1,
        help="tasks of Ray at a time, each with a model and a part of the file of its own",
        group="devices",
        unit="tasks",
        at_least=1,
    )
    ray_address: str = option("", help="HOST:PORT of a cluster; empty: a Ray of its own", group="devices")

    def __post_init__(self):
        super().__post_init__()
        if self.engine == "local" and (self.ray_address or self.workers > 1):
            raise InputError("--ray_address and --workers are of --engine ray; pass it, or leave them out")
        if self.engine == "ray" and getattr(self, "device", "cpu") == "gpu":
            raise InputError("--engine ray computes on CPUs; pass --device cpu, or --engine local")

    def refuse_no_ray(self) -> None:
        """Raise InputError where Ray is asked for and absent, MachineError where it does not answer."""
        if self.engine == "ray":
            require_ray(self.ray_address)

    def mapped(self, ask: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield ``ask`` of each item, in their order, here or by Ray; then it is pickled."""
        if self.engine == "local":
            return map(ask, items)
        return partial(ray_map, workers=self.workers, address=self.ray_address)(ask, items)


def refuse_unseen(folder: str) -> None:
    """Raise MachineError, in a task, for the folder of a model that this machine does not see."""
    if not Path(folder).exists():
        raise MachineError(
            f"{folder}: not seen by {socket.gethostname()}; put it where all machines of the cluster see it"
        )
