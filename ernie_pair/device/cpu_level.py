"""The instructions that the processor offers for products, as one of LEVELS."""

import re
from pathlib import Path

from ernie_pair.device.control_groups import text_of
from ernie_pair.kernels.levels import LEVELS, asked_level, refuse_bf16, why_no_bf16

CPU_INFO = Path("/proc/cpuinfo")
# What each level needs besides those below it, in Linux's names.
NEEDS = {
    "none": (),
    "avx2": ("avx2", "fma"),
    "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
    "avx512_bf16": ("avx512_bf16",),
    "amx_bf16": ("amx_tile", "amx_bf16"),
}


def cpu_level() -> str:
    """Return the highest of LEVELS that this processor offers, or the environment's if that is lower.

    Raises InputError for an unknown level.
    """
    return min(asked_level(), _offered(), key=LEVELS.index)


def refuse_no_bf16() -> None:
    """Raise InputError for --precision bf16 if the processor itself cannot compute products of bfloat16."""
    reason = why_no_bf16(_offered())
    if reason:
        refuse_bf16(reason)


def processor_name() -> str:
    """Return the processor's name for itself; '' if Linux does not report it."""
    return _fact("model name")


def _fact(name: str) -> str:
    found = re.search(rf"^{name}\s*:(.*)$", text_of(CPU_INFO), re.M)
    return found[1].strip() if found else ""


def _offered() -> str:
    flags = set(_fact("flags").split())
    offered = LEVELS[0]
    for level, needed in NEEDS.items():
        if not flags.issuperset(needed):
            break
        offered = level
    return offered
