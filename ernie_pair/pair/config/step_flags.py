"""The flags that decide what one update of a pair classifier is."""

import math
from dataclasses import dataclass
from typing import Literal

from data_tools.base.cli import option
from data_tools.base.errors import InputError
from ernie_pair.device.amp_flags import AmpConfig
from ernie_pair.pair.data.class_weights import BALANCED, class_weights_in

# What must not change between a checkpoint and the run that goes on from it.
SAME_UPDATE = (
    *("grad_clip", "class_weights", "rdrop_alpha", "fgm_epsilon", "use_amp", "amp_dtype", "amp_level"),
    *("init_loss_scaling", "incr_every_n_steps", "incr_ratio", "decr_every_n_nan_or_inf", "decr_ratio"),
)


@dataclass(frozen=True)
class UpdateConfig(AmpConfig):
    """A part of `PairConfig`, whose other flags some of the checks look at."""

    gradient_accumulation_steps: int = option(
        1, help="forward passes of --batch_size pairs per process in one update"
    )
    grad_clip: float = option(0.0, help="largest global norm of the gradient; 0: no clipping")
    class_weights: str = option(
        "", help="what a pair of each class counts in the loss: 1,2.5; or balanced, by the training labels"
    )
    rdrop_alpha: float = option(
        0.0, help="R-Drop: every pair passes twice, and this times the divergence is added; 0: once"
    )
    fgm_epsilon: float = option(
        0.0, help="FGM: length of the adversarial step of the word embedding, 1 for example; 0: none"
    )
    sharding: Literal["none", "stage2"] = option(
        "none", help="stage2: gradients and optimizer state are split over the GPUs (ZeRO stage 2)"
    )
    sharding_offload: bool = option(False, help="of stage2: the optimizer state stays in the CPU's memory")

    def refuse_update(self) -> None:
        """Raises InputError for a value, or for flags that do not go together."""
        least = {"gradient_accumulation_steps": 1, "grad_clip": 0, "rdrop_alpha": 0, "fgm_epsilon": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= lowest):
                raise InputError(f"--{name} {value} is below {lowest} or no number; use {lowest} or more")
        self.refuse_amp()
        self.refuse_half_precision_on(self.device)
        self.refuse_narrow_sums(self.gradient_accumulation_steps, "batch_size")
        class_weights_in(self.class_weights)
        if self.class_weights == BALANCED and self.streaming:
            raise InputError(
                "--class_weights balanced counts the labels of all training pairs, and --streaming true "
                "never has them all; give the numbers, 1,2.5 for example"
            )
        if self.rdrop_alpha and not self.dropout:
            raise InputError(
                f"--rdrop_alpha {self.rdrop_alpha} compares two passes that differ by their dropout, and "
                "--dropout 0.0 leaves them equal; use --dropout 0.1, or --rdrop_alpha 0"
            )
        if self.fgm_epsilon and self.narrows_weights:
            raise InputError(
                f"--fgm_epsilon {self.fgm_epsilon} moves the embedding by less than the narrow weights of "
                "--amp_level O2 can tell apart; use O1"
            )
        self._refuse_sharding()

    def _refuse_sharding(self) -> None:
        if self.sharding_offload and self.sharding == "none":
            raise InputError("--sharding_offload true needs --sharding stage2; add it, or leave it out")
        if self.sharding == "none":
            return
        if self.device == "cpu":
            raise InputError(
                "--sharding stage2 needs GPUs: Paddle splits the state over NCCL alone; use --sharding none"
            )
        if self.fgm_epsilon:
            raise InputError(
                "--fgm_epsilon needs the embedding's gradient on every process, and --sharding stage2 leaves "
                "it on one; use --sharding none"
            )
        if self.sharding_offload and not (self.narrows_weights and self.amp_dtype == "float16"):
            raise InputError(
                "--sharding_offload true keeps float32 masters of float16 weights in the CPU's memory; add "
                "--use_amp true --amp_level O2 --amp_dtype float16, or leave it out"
            )
        if self.sharding_offload and self.layer_decay != 1:
            raise InputError(
                f"--sharding_offload true updates all weights as one, at one rate, and --layer_decay "
                f"{self.layer_decay} asks for several; leave one of them out"
            )

    def pairs_per_update(self, processes: int) -> int:
        return self.batch_size * self.gradient_accumulation_steps * processes
