"""The flags that decide which checkpoints of a run are kept; the same in both halves."""

from dataclasses import dataclass
from typing import Dict

from data_tools.base.options import Options, option


@dataclass(frozen=True)
class RetentionFlags(Options):
    """A part of `PretrainConfig` and of `PairConfig`."""

    keep_checkpoints: int = option(
        3,
        help="number of newest checkpoints to keep, at least 2",
        group="checkpoints",
        unit="checkpoints",
        at_least=2,
    )
    keep_every: int = option(
        0,
        help="also keep the checkpoints at every multiple of this many steps; 0: none",
        group="checkpoints",
        unit="steps",
        at_least=0,
    )

    @property
    def retention(self) -> Dict[str, int]:
        """Return the keyword arguments of `Checkpoints`."""
        return {"keep": self.keep_checkpoints, "every": self.keep_every}
