"""The flags of mixed precision, the same for pretraining and for pairs."""

from dataclasses import dataclass
from typing import Literal

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option


@dataclass(frozen=True)
class AmpFlags(Options):
    """The base of every command that trains; each field is a flag of it."""

    use_amp: bool = option(False, help="mixed precision, on GPU", group="precision")
    amp_dtype: Literal["float16", "bfloat16", "float32"] = option(
        "float16", help="the narrow type; float32: no cast, the scaling of the loss alone", group="precision"
    )
    amp_level: Literal["O1", "O2"] = option(
        "O1", help="O1: weights in float32; O2: narrow weights too", group="precision"
    )
    init_loss_scaling: float = option(
        32768.0, help="what the loss is first multiplied by, in float16", group="precision", at_least=1
    )
    incr_every_n_steps: int = option(
        1000,
        help="finite steps in a row until the scale grows",
        group="precision",
        unit="steps",
        at_least=1,
    )
    incr_ratio: float = option(2.0, help="how much it grows", group="precision", above=1)
    decr_every_n_nan_or_inf: int = option(
        1,
        help="infinite steps in a row until the scale shrinks",
        group="precision",
        unit="steps",
        at_least=1,
    )
    decr_ratio: float = option(0.5, help="how much it shrinks", group="precision", above=0, below=1)

    def __post_init__(self):
        super().__post_init__()
        if self.narrows_weights and self.amp_dtype == "float32":
            raise InputError("--amp_level O2 makes the weights narrow; with --amp_dtype float32 use O1")

    def refuse_narrow_sums(self, accumulation_steps: int, batch_flag: str) -> None:
        """Raise InputError where several micro-batches make a step at O2.

        Fewer do with a larger ``batch_flag``.
        """
        if self.narrows_weights and accumulation_steps > 1:
            raise InputError(
                "--amp_level O2 would add up the gradients of several micro-batches in half precision; use "
                f"O1, or raise --{batch_flag} until one micro-batch makes a step"
            )

    def refuse_half_precision_on(self, device: str) -> None:
        """Raise InputError where the device has no kernels for the half-precision type."""
        if self.use_amp and device == "cpu" and self.amp_dtype != "float32":
            raise InputError(
                f"--use_amp true --amp_dtype {self.amp_dtype} needs a GPU: Paddle has no half-precision CPU "
                "kernels; use --use_amp false, or --amp_dtype float32 for the scaling of the loss alone"
            )

    @property
    def narrows_weights(self) -> bool:
        """Return whether the weights themselves are in half precision."""
        return self.use_amp and self.amp_level == "O2"

    @property
    def scales_loss(self) -> bool:
        """Return whether the loss is scaled.

        bfloat16 has the range of float32: nothing is lost without a scale.
        """
        return self.use_amp and self.amp_dtype != "bfloat16"
