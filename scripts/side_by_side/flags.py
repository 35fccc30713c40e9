"""The flags of every benchmark that measures lanes side by side."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, List, Literal, Tuple

from data_tools.files.errors import InputError
from data_tools.files.results import refuse_existing
from data_tools.options.options import Options, option
from ernie_pair.runtime.device import default_device, start_device
from ernie_pair.runtime.processes.world import World
from side_by_side.lanes import TurnPlan
from side_by_side.peer.python import open_peer

ENDINGS = (".json", ".md", ".png")


@dataclass(frozen=True)
class SideBySideFlags(Options):
    """How lanes are measured side by side."""

    OF_LANES: ClassVar[Tuple[str, ...]] = ("overwrite", "lanes", "threads", "rounds", "steps", "warmup")
    # The flags of a benchmark that are only read if it measures no lanes; none: it only measures lanes.
    WITHOUT_LANES: ClassVar[Tuple[str, ...]] = ()

    peer_python: str = option(
        "", help="a Python that has torch and transformers, to compare with; empty: none", group="other"
    )
    output: str = option(
        "", help="the figures go here: FILE.json, and its table and picture beside it", group="evaluation"
    )
    overwrite: bool = option(False, help="replace earlier figures", group="evaluation")
    lanes: str = option(
        "",
        help="names of lanes, with commas, if not all of them fit into memory; empty: all",
        group="evaluation",
    )
    threads: int = option(1, help="threads of every lane", group="devices", unit="threads", at_least=1)
    rounds: int = option(
        7, help="turns of every lane, of which the median is shown", group="evaluation", at_least=1
    )
    steps: int = option(
        5,
        help="steps of a turn; a step of prediction is one pass over all pairs",
        group="evaluation",
        unit="steps",
        at_least=1,
    )
    warmup: int = option(
        2, help="steps of a lane that are not counted", group="evaluation", unit="steps", at_least=1
    )
    device: Literal["cpu", "gpu"] = option(default_device(), help="where to run", group="devices")

    def __post_init__(self):
        super().__post_init__()
        if not self.WITHOUT_LANES:
            return
        unread = self.WITHOUT_LANES if self.is_side_by_side else self.OF_LANES
        given = [item.name for item in fields(self) if getattr(self, item.name) != item.default]
        for name in (name for name in given if name in unread):
            which = "with" if self.is_side_by_side else "without"
            raise InputError(f"--{name} is not read {which} --peer_python or --output; leave it out")

    @property
    def is_side_by_side(self) -> bool:
        """Return whether the flags ask for lanes side by side."""
        return bool(self.peer_python or self.output)

    @property
    def plan(self) -> TurnPlan:
        """Return how often the lanes take turns."""
        return TurnPlan(self.warmup, self.steps, self.rounds)

    def outputs(self) -> List[Path]:
        """Return the files of the figures: JSON, Markdown and picture; none without --output.

        Raises InputError if one of them exists already.
        """
        if not self.output:
            return []
        found = [Path(self.output).with_suffix(ending) for ending in ENDINGS]
        refuse_existing(found, self.overwrite)
        return found

    def peer_versions(self) -> str:
        """Return the versions of the peer's libraries, in words; empty without a peer.

        Raises InputError if it, or the requested GPU, cannot be used.
        """
        start_device(self.device, World())  # refuses where there is no GPU
        if not self.peer_python:
            return ""
        peer = open_peer(self.peer_python)
        if self.device == "gpu" and not peer.sees_gpu:
            raise InputError(
                f"--device gpu, but the torch of {self.peer_python} sees no GPU; leave one of them out"
            )
        return peer.describe()
