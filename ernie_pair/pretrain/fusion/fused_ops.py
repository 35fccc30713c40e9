"""Which fused ops the program of a run has, on GPUs; on CPUs the layers are fused by `fused_layers`."""

from typing import Dict, NamedTuple, Optional

import paddle

from data_tools.base.errors import InputError
from ernie_pair.device.gpu.capability import Capability, words_of
from ernie_pair.pretrain.config.fused_flags import (
    ATTENTION,
    AUTO,
    COLLECTIVES,
    FUSED_OPS,
    GEMM_EPILOGUE,
    LEAST_LENGTH,
    LENGTH_MULTIPLE,
)
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig

FLASH, SOFTMAX_MASK = "flash", "softmax_mask"
# Supported by Paddle's flash attention library, whose backward pass takes heads of up to 192 on all of them.
FLASH_CAPABILITIES = ((8, 0), (9, 0))
LARGEST_FLASH_HEAD, FLASH_HEAD_MULTIPLE = 192, 8


class FusedOps(NamedTuple):
    """What is fused. ``attention``: FLASH, SOFTMAX_MASK or ''. ``reasons``: {op left out: why, in words}."""

    attention: str = ""
    gemm_epilogue: bool = False
    collectives: bool = False
    reasons: Dict[str, str] = {}

    def describe(self) -> str:
        """Return the choice in words, for the log."""
        names = [f"{ATTENTION} ({self.attention})"] if self.attention else []
        names += [GEMM_EPILOGUE] if self.gemm_epilogue else []
        names += [COLLECTIVES] if self.collectives else []
        fused = ", ".join(names) or "none"
        plain = "; ".join(f"not {name}: {reason}" for name, reason in self.reasons.items())
        return f"fused ops: {fused}" + (f" ({plain})" if plain else "")


NOTHING_FUSED = FusedOps()


def choose_fused(config: PretrainConfig, head_size: int, capability: Optional[Capability]) -> FusedOps:
    """Return the fused ops of a run whose attention heads are ``head_size`` wide.

    ``capability``: of its GPU. Raises InputError if the flags name an op that is not available.
    """
    if config.fused_ops == AUTO and config.device == "cpu":
        return NOTHING_FUSED
    wanted = set(FUSED_OPS) if config.fused_ops == AUTO else config.asked_ops
    attention, why_plain = _attention_of(config, head_size, capability)
    reasons = {
        ATTENTION: why_plain,
        GEMM_EPILOGUE: _why_plain(config),
        COLLECTIVES: "" if config.processes > 1 else "a single process has none",
    }
    reasons = {name: reason for name, reason in reasons.items() if reason and name in wanted}
    if reasons and config.fused_ops != AUTO:
        name = sorted(reasons)[0]
        raise InputError(f"--fused_ops {name}: {reasons[name]}; leave it out")
    able = wanted - set(reasons)
    return FusedOps(
        attention if ATTENTION in able else "", GEMM_EPILOGUE in able, COLLECTIVES in able, reasons
    )


def _attention_of(config: PretrainConfig, head_size: int, capability: Optional[Capability]):
    """Return (kind, '') or ('', why there is none)."""
    why_plain = _why_plain(config) or _why_no_flash(head_size, capability)
    if not why_plain:
        return FLASH, ""
    why_no_softmax = _why_no_fused_softmax(config)
    return (SOFTMAX_MASK, "") if not why_no_softmax else ("", f"{why_plain}, and {why_no_softmax}")


def _why_no_flash(head_size: int, capability: Optional[Capability]) -> str:
    if capability is None:
        return "the GPU does not report its compute capability"
    if not FLASH_CAPABILITIES[0] <= capability <= FLASH_CAPABILITIES[1]:
        return "flash attention needs compute capability 8.0 to 9.0, this GPU has " + words_of(capability)
    if head_size > LARGEST_FLASH_HEAD or head_size % FLASH_HEAD_MULTIPLE:
        return f"the heads of flash attention are multiples of 8, at most 192 wide, and these are {head_size}"
    return ""


def _why_no_fused_softmax(config: PretrainConfig) -> str:
    if config.device == "cpu" or (config.use_amp and config.amp_dtype == "bfloat16"):
        return "softmax and mask are fused only on GPUs, in float16 or float32"
    if config.max_seq_len < LEAST_LENGTH or config.max_seq_len % LENGTH_MULTIPLE:
        return (
            f"the fused softmax takes multiples of {LENGTH_MULTIPLE} tokens, {LEAST_LENGTH} or more, "
            f"not --max_seq_len {config.max_seq_len}"
        )
    return ""


def _why_plain(config: PretrainConfig) -> str:
    """Return why half-precision GPU ops cannot be built, in words, or ''."""
    if config.device == "cpu":
        return "there is no such op on a CPU"
    if not config.computes_in_half:
        return "it needs half precision, and --use_amp is false or --amp_dtype float32"
    return "" if paddle.is_compiled_with_cuda() else "this Paddle is a CPU build"
