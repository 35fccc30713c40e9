"""The flags of the warm-up of the learning rate, the same in both kinds of training."""

from dataclasses import dataclass
from typing import Optional

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option


@dataclass(frozen=True)
class WarmupFlags(Options):
    """The warm-up, as a share of the run or in steps; a part of `PairConfig` and of `PretrainConfig`."""

    USUAL_RATE = 0.1  # if neither flag is given

    warmup_rate: Optional[float] = option(
        None,
        help="share of the steps spent on warm-up; none: 0.1 for pairs and 0.01 in pretraining",
        group="optimisation",
        at_least=0,
        below=1,
    )
    warmup_steps: Optional[int] = option(
        None,
        help="warm-up in steps, instead of --warmup_rate",
        group="optimisation",
        unit="steps",
        at_least=0,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.warmup_rate is not None and self.warmup_steps is not None:
            raise InputError(
                f"--warmup_rate {self.warmup_rate} and --warmup_steps {self.warmup_steps} both set the "
                "warm-up; leave one of them out"
            )

    @property
    def warmup_share(self) -> float:
        """Return the share of the steps spent on warm-up if no steps are given."""
        return self.USUAL_RATE if self.warmup_rate is None else self.warmup_rate

    def count_warmup_steps(self, total_steps: int) -> int:
        """Return the warm-up steps of a run. Raises InputError if they are all of ``total_steps``."""
        if self.warmup_steps is None:
            return round(self.warmup_share * total_steps)
        if self.warmup_steps >= total_steps:
            raise InputError(
                f"--warmup_steps {self.warmup_steps} covers all {total_steps} steps of the run; "
                "lower it, or train for longer"
            )
        return self.warmup_steps
