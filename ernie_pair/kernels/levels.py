"""The levels of instructions that a processor offers for the products of a model, from least to most."""

import os
from typing import NoReturn

from data_tools.base.errors import InputError

LEVELS = ("none", "avx2", "avx512", "avx512_bf16", "amx_bf16")  # in the order of their numbers in fused.h
LEVEL_ASKED = "ERNIE_PAIR_KERNELS_LEVEL"


def asked_level() -> str:
    """Return the highest of LEVELS that the environment allows. Raises InputError for anything else."""
    asked = os.environ.get(LEVEL_ASKED) or LEVELS[-1]
    if asked not in LEVELS:
        raise InputError(
            f"{LEVEL_ASKED}={asked[:40]} in the environment is not one of {', '.join(LEVELS)}; unset it"
        )
    return asked


def has_bf16(level: str) -> bool:
    """Return whether the processor itself computes products of bfloat16 at ``level``."""
    return LEVELS.index(level) >= LEVELS.index("avx512_bf16")


def why_no_bf16(offered: str) -> str:
    """Return why a processor that offers a level cannot compute products of bfloat16, in words, or ''."""
    if not has_bf16(offered):
        return "this processor has no AVX512-BF16"
    return "" if has_bf16(asked_level()) else f"{LEVEL_ASKED}={asked_level()} is set"


def refuse_bf16(reason: str) -> NoReturn:
    """Raise InputError for --precision bf16: for ``reason`` it would be emulated, and slower than float32."""
    raise InputError(f"--precision bf16 needs a processor with AVX512-BF16 ({reason}); use --precision fp32")
