"""The flag that selects the graph of pretraining, and what the dynamic graph does not support."""

from dataclasses import dataclass
from typing import Any, Literal

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option

# Flags that only the static graph supports, with the one value that the dynamic graph accepts.
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
        help="static, or dynamic: the same losses computed op by op, to inspect the model; one process, "
        "float32",
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
                    f"--graph dynamic does not support --{name} {told}, but static does; leave one out"
                )
        if getattr(self, "asked_ops", None):
            raise InputError(
                "--graph dynamic does not support --fused_ops, which is for the static graph; leave it out"
            )

    @property
    def is_dynamic(self) -> bool:
        """Return whether the run uses the dynamic graph."""
        return self.graph == "dynamic"
