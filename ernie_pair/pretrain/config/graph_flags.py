"""The flag of the graph that computes pretraining, and what the dynamic one does not do."""

from dataclasses import dataclass
from typing import Any, Literal

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option

# Flags that are of the static graph alone: what the dynamic one does without them.
STATIC_ALONE = {
    "dp_degree": 1,
    "sharding_degree": 1,
    "use_amp": False,
    "use_recompute": False,
    "on_nan": "stop",
}


@dataclass(frozen=True)
class GraphFlags(Options):
    """A part of `PretrainConfig`."""

    graph: Literal["static", "dynamic"] = option(
        "static",
        help="static, or dynamic: the same losses op by op, for a look into the model; one process, float32",
        group="devices",
    )

    def __post_init__(self):
        super().__post_init__()
        if not self.is_dynamic:
            return
        for name, only in STATIC_ALONE.items():
            asked: Any = getattr(self, name, only)
            if asked != only:
                told = str(asked).lower() if isinstance(asked, bool) else asked
                raise InputError(
                    f"--graph dynamic does not do --{name} {told}, which static does; leave one of them out"
                )
        if getattr(self, "asked_ops", None):
            raise InputError("--graph dynamic has no --fused_ops, they are of the static graph; leave it out")

    @property
    def is_dynamic(self) -> bool:
        """Return whether the dynamic graph computes."""
        return self.graph == "dynamic"
