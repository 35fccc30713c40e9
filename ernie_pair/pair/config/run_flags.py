"""The flags of pair training that any training on rows of pairs has, and those of its step."""

from dataclasses import dataclass
from typing import Literal, Union

from data_tools.files.errors import InputError
from data_tools.options.options import Options, option
from data_tools.text.text_files import ENCODINGS
from ernie_pair.pair.data.pair_records import BAD_ROW_HELP, ENCODING_HELP, FIRST_TEXT_HELP, SECOND_TEXT_HELP
from ernie_pair.pair.targets.metrics import class_weights_in
from ernie_pair.runtime.amp_flags import AmpFlags
from ernie_pair.runtime.gpu.builds import refuse_old_gpu
from ernie_pair.runtime.gpu.cards import Card


@dataclass(frozen=True)
class RowFlags(Options):
    """How the rows of a file of pairs are read."""

    text_a: str = option("", help=FIRST_TEXT_HELP, group="data", resume="same")
    text_b: str = option("", help=SECOND_TEXT_HELP, group="data", resume="same")
    label: str = option("", help="the column of the label", group="data", resume="same")
    encoding: str = option("utf-8", help=ENCODING_HELP, group="data", choices=ENCODINGS, resume="same")
    on_bad_row: Literal["stop", "skip"] = option("stop", help=BAD_ROW_HELP, group="data")


@dataclass(frozen=True)
class StepFlags(AmpFlags):
    """What is done in a step besides the usual, and where."""

    class_weights: str = option(
        "",
        help="weight of each class in the loss, for example 1,2.5; balanced: computed from the training "
        "labels",
        group="optimisation",
        resume="same",
    )
    rdrop_alpha: float = option(
        0.0,
        help="R-Drop: run every pair twice and add this times the divergence to the loss; 0: off",
        group="optimisation",
        at_least=0,
        resume="same",
    )
    symmetric: Literal["none", "average", "consistency"] = option(
        "none",
        help="run every pair in both orders; average: train and score with the mean of the logits; "
        "consistency: add the divergence of the two orders to the loss, and score in one order",
        group="optimisation",
        resume="same",
    )
    symmetric_alpha: float = option(
        1.0,
        help="for --symmetric consistency: weight of the divergence of the two orders",
        group="optimisation",
        at_least=0,
        resume="same",
    )
    fgm_epsilon: float = option(
        0.0,
        help="FGM: length of the adversarial step on the word embeddings, for example 1; 0: off",
        group="optimisation",
        at_least=0,
        resume="same",
    )
    sharding: Literal["none", "stage2"] = option(
        "none",
        help="stage2: split gradients and optimizer state over the GPUs (ZeRO stage 2)",
        group="devices",
        resume="layout",
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
