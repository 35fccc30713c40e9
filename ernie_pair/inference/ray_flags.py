"""Where predictions for a large file are computed: in this process, or in Ray tasks."""

import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable, Iterable, Iterator, Literal, TypeVar

from data_tools.files.errors import InputError, MachineError
from data_tools.files.ray_pool import ray_map, require_ray
from data_tools.options.options import Options, option

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class RayFlags(Options):
    """A part of the flags of commands that run a model on a file."""

    engine: Literal["local", "ray"] = option(
        "local",
        help="compute in this process or in Ray tasks (extra [ray]); the output is the same byte for byte",
        group="devices",
    )
    workers: int = option(
        1,
        help="concurrent Ray tasks, each with its own model and its own part of the file",
        group="devices",
        unit="tasks",
        at_least=1,
    )
    ray_address: str = option(
        "", help="HOST:PORT of a Ray cluster; empty: start Ray for this run", group="devices"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.engine == "local" and (self.ray_address or self.workers > 1):
            raise InputError("--ray_address and --workers are for --engine ray; pass it, or leave them out")
        if self.engine == "ray" and getattr(self, "device", "cpu") == "gpu":
            raise InputError("--engine ray computes on CPUs; pass --device cpu, or --engine local")

    def refuse_no_ray(self) -> None:
        """Raise InputError if Ray is requested but not installed, MachineError if it does not respond."""
        if self.engine == "ray":
            require_ray(self.ray_address)

    def mapped(self, ask: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield ``ask`` of each item, in order, here or by Ray, which pickles it."""
        if self.engine == "local":
            return map(ask, items)
        return partial(ray_map, workers=self.workers, address=self.ray_address)(ask, items)


def refuse_unseen(folder: str) -> None:
    """Raise MachineError, in a task, if this machine does not see the folder of the model."""
    if not Path(folder).exists():
        raise MachineError(
            f"{folder}: not seen by {socket.gethostname()}; put it where all machines of the cluster see it"
        )
