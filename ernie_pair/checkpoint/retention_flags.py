"""The flags that say which checkpoints of a run stay; the same in both halves."""

from dataclasses import dataclass
from typing import Dict

from data_tools.base.options import Options, option


@dataclass(frozen=True)
class RetentionFlags(Options):
    """A part of `PretrainConfig` and of `PairConfig`."""

    keep_checkpoints: int = option(
        3,
        help="the newest that many are kept, at least 2",
        group="checkpoints",
        unit="checkpoints",
        at_least=2,
    )
    keep_every: int = option(
        0, help="and those of every so many steps; 0: none", group="checkpoints", unit="steps", at_least=0
    )

    @property
    def retention(self) -> Dict[str, int]:
        """Return the keyword arguments of `Checkpoints`."""
        return {"keep": self.keep_checkpoints, "every": self.keep_every}
