"""Where predictions for a large file are computed: in this process, or by Ray, on CPUs or GPUs."""

import pickle
import socket
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Callable, Hashable, Iterable, Iterator, Literal, Optional, Tuple, TypeVar

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
        return ray_map(
            partial(_ask_packed, pickle.dumps(ask)), items, self.workers, self.ray_address, on_gpus
        )


class PickledByFolder:
    """A model that is pickled as its folder and how it was opened, and opened once by each process.

    ``opens`` opens it again, of its folder first; None: that is not known. ``kept``: what may have changed.
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
        changed = {name: getattr(self, name) for name in self.kept}
        function, folder, *words = self.opens.func, *self.opens.args
        return _unpickled, (function, str(folder), tuple(words), self.identity, changed)


def _unpickled(
    opens: Callable[..., Any], folder: str, words: Tuple[Any, ...], identity: Tuple[str, str], changed: Any
) -> Any:
    model = _opened(opens, folder, words, identity)
    copied = object.__new__(type(model))
    vars(copied).update(vars(model), **changed)
    return copied


@lru_cache(maxsize=1)
def _opened(
    opens: Callable[..., Any], folder: str, words: Tuple[Hashable, ...], identity: Tuple[str, str]
) -> Any:
    host, (_, wanted) = socket.gethostname(), identity
    if not Path(folder).exists():
        raise MachineError(f"{folder}: not seen by {host}; put it where all machines of the cluster see it")
    model = opens(folder, *words)
    if model.identity != identity:
        other, cure = "", "give all machines the same"
        if wanted:
            other = f", or computed by {model.identity[1]} and not {wanted}"
            cure += ", or pass --kernels plain"
        raise MachineError(f"{folder} on {host} is another model{other}; {cure}")
    return model


def _ask_packed(packed: bytes, item: Any) -> Any:
    return pickle.loads(packed)(item)
