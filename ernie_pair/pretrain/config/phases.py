"""The phases of a pretraining run, each with its own sample length: short ones first, as for BERT.

Long samples take more memory, so a phase may set its own micro-batch size; the global batch size stays.
"""

import re
from functools import lru_cache
from typing import NamedTuple, Tuple

from data_tools.base.errors import InputError

SHORTEST = 8  # tokens; also the minimum of --max_seq_len
_EXAMPLE = (
    "write lengths and steps as in --phases 128:9000,512:1000, or a micro-batch size as well, as in "
    "128:9000:32,512:1000:8"
)


class Phase(NamedTuple):
    """``steps`` steps on samples of at most ``length`` tokens, control tokens included.

    ``micro_batch_size``: samples per process in one forward pass.
    """

    length: int
    steps: int
    micro_batch_size: int


@lru_cache(maxsize=8)  # called in every step
def parse_phases(text: str, max_seq_len: int, max_steps: int, micro_batch_size: int) -> Tuple[Phase, ...]:
    """Parse '128:9000:32,512:1000'; '' is one phase of ``max_seq_len`` and ``max_steps``.

    ``micro_batch_size``: for phases that give none.

    Raises InputError if ``text`` is malformed, if its longest length is not ``max_seq_len``, or if its steps
    do not add up to ``max_steps``.
    """
    if not text.strip():
        return (Phase(max_seq_len, max_steps, micro_batch_size),)
    phases = tuple(_phase_of(part, text, micro_batch_size) for part in text.replace(" ", "").split(","))
    longest, steps = max(phase.length for phase in phases), sum(phase.steps for phase in phases)
    if longest != max_seq_len:
        raise InputError(
            f"--phases {text}: the longest samples have {longest} tokens, --max_seq_len is {max_seq_len}; "
            f"pass --max_seq_len {longest}"
        )
    if steps != max_steps:
        raise InputError(
            f"--phases {text}: {steps} steps in all, and --max_steps is {max_steps}; pass --max_steps {steps}"
        )
    return phases


def _phase_of(part: str, text: str, micro_batch_size: int) -> Phase:
    if not re.fullmatch(r"\d{1,9}:\d{1,9}(:\d{1,9})?", part, re.ASCII):
        raise InputError(f"--phases {text}: {part or 'nothing'} is not a phase; {_EXAMPLE}")
    length, steps, rows = map(int, [*part.split(":"), str(micro_batch_size)][:3])
    if length < SHORTEST or steps < 1:
        raise InputError(
            f"--phases {text}: {part} asks for samples of {length} tokens in {steps} steps; use {SHORTEST} "
            "tokens or more, and at least 1 step"
        )
    if rows < 1:
        raise InputError(f"--phases {text}: {part} has a micro-batch of 0 samples; use 1 or more")
    return Phase(length, steps, rows)
