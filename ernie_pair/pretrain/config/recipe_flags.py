"""Flags of the recipe and related scripts that have no effect here, or another name."""

from dataclasses import dataclass
from typing import Optional

from data_tools.base.errors import InputError
from data_tools.base.options import option
from ernie_pair.device.amp_flags import AmpFlags
from ernie_pair.pretrain.config.fused_flags import FusedFlags
from ernie_pair.pretrain.config.graph_flags import GraphFlags
from ernie_pair.pretrain.config.half_flags import HalfFlags

MODEL_PARALLEL = {"mp_degree": "tensor parallelism", "pp_degree": "pipeline parallelism"}


@dataclass(frozen=True)
class RecipeFlags(HalfFlags, FusedFlags, GraphFlags):
    """The recipe's flags that have no effect here, or another name; a part of `PretrainConfig`."""

    mp_degree: int = option(
        1,
        help="the recipe's degree of tensor parallelism, which is not supported: must be 1",
        group="devices",
    )
    pp_degree: int = option(
        1,
        help="the recipe's degree of pipeline parallelism, which is not supported: must be 1",
        group="devices",
    )
    scale_loss: Optional[float] = option(
        None, help="the recipe's name for --init_loss_scaling", group="precision", at_least=1
    )
    eval_iters: int = option(
        10, help="global batches per validation", group="evaluation", unit="batches", at_least=1
    )
    test_iters: int = option(
        0,
        help="global batches in the test at the end of the run; 0: --eval_iters",
        group="evaluation",
        unit="batches",
        at_least=0,
    )

    def __post_init__(self):
        super().__post_init__()
        for name, degree in (("mp_degree", self.mp_degree), ("pp_degree", self.pp_degree)):
            if degree != 1:
                raise InputError(
                    f"--{name} {degree}: {MODEL_PARALLEL[name]} is not supported, every process holds "
                    f"the whole model; pass --{name} 1, and use the processes with --dp_degree or "
                    "--sharding_degree"
                )
        if self.scale_loss is not None and self.init_loss_scaling not in (
            AmpFlags.init_loss_scaling,
            self.scale_loss,
        ):
            raise InputError(
                f"--scale_loss {self.scale_loss} and --init_loss_scaling {self.init_loss_scaling} set the "
                "same value; leave one of them out"
            )

    @property
    def first_loss_scale(self) -> float:
        """Return the initial loss scale, given under either name."""
        return self.init_loss_scaling if self.scale_loss is None else self.scale_loss

    def iters_of(self, split: str) -> int:
        """Return how many global batches an evaluation of ``valid`` or ``test`` reads."""
        return self.test_iters or self.eval_iters if split == "test" else self.eval_iters
