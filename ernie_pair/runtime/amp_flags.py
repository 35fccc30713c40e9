"""The flags of mixed precision and of bit-identical results, the same for pretraining and for pairs."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ernie_pair.core.cli.options import Options, devices_option, kept_precision_option
from ernie_pair.core.errors import InputError
from ernie_pair.runtime.gpu import MIN_CAPABILITY, Card, check_gpu_capability, gpu_capability


@dataclass(frozen=True, kw_only=True)
class AmpFlags(Options):
    """The base of every command that trains; each field is a flag of it."""

    # How the loss scale changes, as in the scaler of Paddle.
    incr_ratio: ClassVar[float] = 2.0
    decr_ratio: ClassVar[float] = 0.5
    decr_every_n_nan_or_inf: ClassVar[int] = 1

    use_amp: bool = kept_precision_option(False, help="mixed-precision training, on a GPU", usual=True)
    amp_dtype: Literal["auto", "float16", "bfloat16", "float32"] = kept_precision_option(
        "auto",
        help="half-precision type; auto: bfloat16 on a GPU of compute capability 8.0 or above, else float16; "
        "float32: no casts, loss scaling only",
        affects="amp",
        only_with="use_amp=true",
    )
    init_loss_scaling: float = kept_precision_option(
        32768.0, help="initial loss scale, for float16", at_least=1, affects="loss scale"
    )
    incr_every_n_steps: int = kept_precision_option(
        1000,
        help="consecutive finite steps before the loss scale doubles; one that is not halves it",
        unit="steps",
        at_least=1,
        affects="loss scale",
    )
    deterministic: bool = devices_option(
        True,
        help="on a GPU: kernels that give bit-identical results in every run; false: faster kernels that do "
        "not",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.amp_dtype == "auto" and self.use_amp:
            capability = gpu_capability() if getattr(self, "device", "cpu") == "gpu" else None
            has_bfloat16 = capability is not None and capability >= MIN_CAPABILITY["bfloat16"]
            object.__setattr__(self, "amp_dtype", "bfloat16" if has_bfloat16 else "float16")

    def check_device_precision(self, device: str) -> None:
        """Raise InputError if the device has no kernels for the half-precision type."""
        if self.use_amp and device == "cpu" and self.amp_dtype != "float32":
            raise InputError(
                f"--use_amp true --amp_dtype {self.amp_dtype} needs a GPU: Paddle has no half-precision CPU "
                "kernels; use --use_amp false (half products on a CPU: --precision bf16), or --amp_dtype "
                "float32 for loss scaling only"
            )

    def refuse_on(self, card: Card) -> None:
        """Raise InputError if ``card`` does not support what is asked: Paddle would use float32."""
        if self.use_amp and self.amp_dtype == "bfloat16":
            flag, hint = "--amp_dtype bfloat16", "use --amp_dtype float16"
            check_gpu_capability(card.capability, "bfloat16", flag, hint)

    @property
    def computes_in_half(self) -> bool:
        """Return whether anything is cast to half precision."""
        return self.use_amp and self.amp_dtype != "float32"

    @property
    def scales_loss(self) -> bool:
        """Return whether the loss is scaled; bfloat16, with the range of float32, needs none."""
        return self.use_amp and self.amp_dtype != "bfloat16"
