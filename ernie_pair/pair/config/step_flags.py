"""The flags that define one training step of a pair classifier."""

from dataclasses import dataclass
from typing import Literal, Union

from data_tools.base.errors import InputError
from data_tools.base.options import option
from ernie_pair.device.amp_flags import AmpFlags
from ernie_pair.device.gpu.capability import refuse_old_gpu
from ernie_pair.device.gpu.cards import Card
from ernie_pair.pair.targets.class_weights import class_weights_in

# What must not change between a checkpoint and the run that goes on from it.
SAME_STEP = (
    *(
        "grad_clip",
        "class_weights",
        "rdrop_alpha",
        "symmetric",
        "fgm_epsilon",
        "use_amp",
        "amp_dtype",
        "amp_level",
        "precision",
    ),
    *("init_loss_scaling", "incr_every_n_steps", "incr_ratio", "decr_every_n_nan_or_inf", "decr_ratio"),
)


@dataclass(frozen=True)
class StepFlags(AmpFlags):
    """A part of `PairConfig`."""

    gradient_accumulation_steps: int = option(
        1,
        help="forward passes of --batch_size pairs per process in one step",
        group="optimisation",
        unit="batches",
        at_least=1,
    )
    grad_clip: float = option(
        0.0, help="maximum global norm of the gradient; 0: no clipping", group="optimisation", at_least=0
    )
    class_weights: str = option(
        "",
        help="weight of each class in the loss, for example 1,2.5; balanced: computed from the training "
        "labels",
        group="optimisation",
    )
    rdrop_alpha: float = option(
        0.0,
        help="R-Drop: run every pair twice and add this times the divergence to the loss; 0: off",
        group="optimisation",
        at_least=0,
    )
    symmetric: Literal["none", "average", "consistency"] = option(
        "none",
        help="run every pair in both orders; average: train and score with the mean of the logits; "
        "consistency: add the divergence of the two orders to the loss, and score in one order",
        group="optimisation",
    )
    symmetric_alpha: float = option(
        1.0,
        help="for --symmetric consistency: weight of the divergence of the two orders",
        group="optimisation",
        at_least=0,
    )
    fgm_epsilon: float = option(
        0.0,
        help="FGM: length of the adversarial step on the word embeddings, for example 1; 0: off",
        group="optimisation",
        at_least=0,
    )
    sharding: Literal["none", "stage2"] = option(
        "none",
        help="stage2: split gradients and optimizer state over the GPUs (ZeRO stage 2)",
        group="devices",
    )
    to_static: Union[bool, Literal["auto"]] = option(
        "auto",
        help="compile the forward pass into one program instead of running op by op; auto: on a GPU, where "
        "possible",
        group="devices",
    )
    sharding_offload: bool = option(
        False, help="for stage2: keep the optimizer state in CPU memory", group="devices"
    )

    def __post_init__(self):
        super().__post_init__()
        class_weights_in(self.class_weights)
        self._refuse_symmetry()
        if self.fgm_epsilon and self.narrows_weights:
            raise InputError(
                f"--fgm_epsilon {self.fgm_epsilon} moves the embedding by less than the narrow weights of "
                "--amp_level O2 can tell apart; use O1"
            )
        if self.reduce_dtype == "half" and not self.narrows_weights:
            raise InputError(
                "--reduce_dtype half: with --amp_level O1 the gradients are in float32; leave it out, or use "
                "O2"
            )
        self._refuse_sharding()

    def _refuse_symmetry(self) -> None:
        if self.symmetric != "none" and self.rdrop_alpha:
            raise InputError(
                f"--symmetric {self.symmetric} runs every pair in both orders, and --rdrop_alpha "
                f"{self.rdrop_alpha} twice in one; leave one of them out"
            )
        if self.symmetric != "consistency" and self.symmetric_alpha != 1.0:
            raise InputError(
                f"--symmetric_alpha {self.symmetric_alpha} is for --symmetric consistency, and this is "
                f"--symmetric {self.symmetric}; leave it out"
            )

    @property
    def scored_as(self) -> str:
        """Return how the pairs of an evaluation are scored; see `pair_symmetry`."""
        return "average" if self.symmetric == "average" else "none"

    @property
    def passes_of_a_pair(self) -> int:
        """Return how often a step lets each pair pass forward."""
        return (2 if self.rdrop_alpha or self.symmetric != "none" else 1) * (2 if self.fgm_epsilon else 1)

    def refuse_on(self, card: Card) -> None:
        """Raise InputError if ``card`` has no units for what is asked.

        The dynamic graph needs them for float16 too; a program of the static one computes without.
        """
        super().refuse_on(card)
        if self.computes_in_half:
            cure = "use another type, or --use_amp false"
            refuse_old_gpu(card.capability, self.amp_dtype, f"--amp_dtype {self.amp_dtype}", cure)

    def _refuse_sharding(self) -> None:
        if self.sharding_offload and self.sharding == "none":
            raise InputError("--sharding_offload true needs --sharding stage2; add it, or leave it out")
        if self.sharding == "none":
            return
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
