"""The flags of mixed precision, the same for pretraining and for pairs."""

from dataclasses import dataclass
from typing import Literal

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option
from ernie_pair.device.gpu.capability import LEAST_CAPABILITY, gpu_capability
from ernie_pair.device.gpu.cards import Card


@dataclass(frozen=True)
class AmpFlags(Options):
    """The base of every command that trains; each field is a flag of it."""

    use_amp: bool = option(False, help="mixed precision, on GPU", group="precision")
    amp_dtype: Literal["auto", "float16", "bfloat16", "float32"] = option(
        "auto",
        help="the narrow type; auto: bfloat16 on a GPU of capability 8.0 or above, else float16; float32: no "
        "cast, the scaling of the loss alone",
        group="precision",
    )
    amp_level: Literal["O1", "O2"] = option(
        "O1", help="O1: weights in float32; O2: narrow weights too", group="precision"
    )
    reduce_dtype: Literal["float32", "half"] = option(
        "float32",
        help="in which the processes sum gradients; half: those of --amp_dtype in it, at half the traffic",
        group="precision",
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
    tf32: bool = option(
        False,
        help="let training, on a GPU from 8.0 on, round the factors of float32 products to 10 bits: faster, "
        "and not the answers of a CPU any more; evaluation and prediction never do",
        group="precision",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.amp_dtype == "auto":
            object.__setattr__(self, "amp_dtype", self._usual_dtype())
        if self.narrows_weights and self.amp_dtype == "float32":
            raise InputError("--amp_level O2 makes the weights narrow; with --amp_dtype float32 use O1")
        if self.reduce_dtype == "half" and not self.computes_in_half:
            raise InputError(
                "--reduce_dtype half is of gradients in half precision, and there are none; add --use_amp "
                "true with --amp_dtype float16 or bfloat16, or leave it out"
            )

    def _usual_dtype(self) -> str:
        """Return the narrow type of this machine's first GPU; float16 where nothing is narrow."""
        on_gpu = self.use_amp and getattr(self, "device", "cpu") == "gpu"
        capability = gpu_capability() if on_gpu else None
        has_bfloat16 = capability is not None and capability >= LEAST_CAPABILITY["bfloat16"]
        return "bfloat16" if has_bfloat16 else "float16"

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
        """Raise InputError where the device has no kernels for the half-precision type, or no TF32."""
        if self.tf32 and device == "cpu":
            raise InputError("--tf32 true needs a GPU of compute capability 8.0; leave it out")
        if self.use_amp and device == "cpu" and self.amp_dtype != "float32":
            raise InputError(
                f"--use_amp true --amp_dtype {self.amp_dtype} needs a GPU: Paddle has no half-precision CPU "
                "kernels; use --use_amp false (half products on a CPU: --precision bf16), or --amp_dtype "
                "float32 for the scaling of the loss alone"
            )

    def refuse_on(self, card: Card) -> None:
        """Raise InputError where ``card`` has no units for what is asked: Paddle would compute otherwise."""
        if self.tf32 and card.capability < LEAST_CAPABILITY["tf32"]:
            raise InputError(f"--tf32 true needs compute capability 8.0, and this is {card}; leave it out")
        asks_bfloat16 = self.use_amp and self.amp_dtype == "bfloat16"
        if asks_bfloat16 and card.capability < LEAST_CAPABILITY["bfloat16"]:
            raise InputError(
                f"--amp_dtype bfloat16 needs compute capability 8.0, and this is {card}; "
                "use --amp_dtype float16"
            )

    @property
    def computes_in_half(self) -> bool:
        """Return whether anything is cast to half precision."""
        return self.use_amp and self.amp_dtype != "float32"

    @property
    def widens_sums(self) -> bool:
        """Return whether gradients in half precision are summed over the processes in float32.

        Where the weights are in float32 their gradients are, in the dynamic graph.
        """
        return self.narrows_weights and self.reduce_dtype == "float32"

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
