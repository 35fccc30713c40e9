"""Where predictions for a large file are computed: in this process, or by Ray, on CPUs or GPUs."""

import socket
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Callable, Dict, Hashable, Iterable, Iterator, Literal, Optional, Tuple, TypeVar

from ernie_pair.core.cli.options import Options, speed_option
from ernie_pair.core.errors import InputError, MachineError
from ernie_pair.core.process_pool import ray_map, require_ray
from ernie_pair.runtime.processes.world import launched_world

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class RayFlags(Options):
    """A part of the flags of commands that run a model on a file."""

    engine: Literal["local", "ray"] = speed_option(
        "local",
        needs={"ray": {"ray": "ray"}},
        help="compute in this process or in Ray tasks (extra [ray]); the output is the same byte for byte",
    )
    workers: int = speed_option(
        1,
        help="concurrent Ray tasks, each with its own model, part of the file and, on GPUs, GPU",
        unit="tasks",
        at_least=1,
        only_with="engine=ray",
    )
    ray_address: str = speed_option(
        "", help="HOST:PORT of a Ray cluster; empty: start Ray for this run", only_with="engine=ray"
    )

    def __post_init__(self):
        super().__post_init__()
        device = getattr(self, "device", "cpu")
        if self.engine == "ray" and device.startswith("gpu:"):
            raise InputError(f"--device {device}: with --engine ray each task has a GPU; pass --device gpu")

    def check_ray(self) -> None:
        """Raise InputError if Ray is requested but not installed, MachineError if it does not respond."""
        if self.engine == "ray":
            if launched_world().size > 1:
                raise InputError(
                    "--engine ray starts its own tasks; run it in one process, not by a launcher"
                )
            require_ray(self.ray_address)

    def mapped(self, ask: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield ``ask`` of each item, in order, here or by Ray, which pickles it."""
        if self.engine == "local":
            return map(ask, items)
        on_gpus = getattr(self, "device", "cpu") == "gpu"
        return ray_map(ask, items, self.workers, self.ray_address, on_gpus)


@dataclass(frozen=True)
class RayModel:
    """The answers of a model to items in the tasks of Ray, each of which opens it once. Picklable.

    ``open(*words)`` opens it, ``ask`` asks it for an item. ``identity``: the hash of the model here, and what
    computes it, '' where that is no matter: another machine must answer as this one.
    """

    open: Callable[..., Any]
    words: Tuple[Hashable, ...]
    folder: str
    identity: Tuple[str, str]
    ask: Callable[[Any, Any], Any]

    def __call__(self, item: Any) -> Any:
        """Return the answer to an item. Raises MachineError on a machine that would give another."""
        return self.ask(open_same(partial(_opened, self.open, self.words), self.folder, self.identity), item)


class PickledByFolder:
    """A model that is pickled as its folder and how it was opened, and opened where it is unpickled.

    ``opens`` opens it again, of its folder first; None: that is not known. ``kept``: the attributes that may
    have changed since.
    """

    opens: Optional[partial] = None
    kept: Tuple[str, ...] = ()

    @property
    def identity(self) -> Tuple[str, str]:
        """Return the hash of the model, and what computes it where answers depend on that, otherwise ''."""
        raise NotImplementedError

    def __reduce__(self) -> Tuple[Any, ...]:
        """Return what opens it; unpickling raises MachineError where its answers would be others."""
        if self.opens is None:
            raise TypeError("only a model that was opened by its folder is pickled; open it by its folder")
        return _unpickled, (self.opens, self.identity, {name: getattr(self, name) for name in self.kept})


def _unpickled(opens: partial, identity: Tuple[str, str], changed: Dict[str, Any]) -> Any:
    def opened() -> Any:
        model = opens()
        vars(model).update(changed)
        return model

    return open_same(opened, str(opens.args[0]), identity)


def open_same(opens: Callable[[], Any], folder: str, identity: Tuple[str, str]) -> Any:
    """Return the model of ``folder``. Raises MachineError on a machine where its answers would be others."""
    host, (_, wanted) = socket.gethostname(), identity
    if not Path(folder).exists():
        raise MachineError(f"{folder}: not seen by {host}; put it where all machines of the cluster see it")
    model = opens()
    if model.identity != identity:
        other, cure = "", "give all machines the same"
        if wanted:
            other = f", or computed by {model.identity[1]} and not {wanted}"
            cure += ", or pass --kernels plain"
        raise MachineError(f"{folder} on {host} is another model{other}; {cure}")
    return model


@lru_cache(maxsize=1)  # in a task alone: later the folder may hold another model
def _opened(opens: Callable[..., Any], words: Tuple[Hashable, ...]) -> Any:
    return opens(*words)
