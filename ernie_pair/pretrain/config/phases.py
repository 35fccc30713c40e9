"""The phases of a run of pretraining, each with samples of its own length: short ones first, as BERT had.

Long samples take more memory, so a phase may have a micro-batch of its own; the step keeps its samples.
"""

import re
from functools import lru_cache
from typing import NamedTuple, Tuple

from data_tools.base.errors import InputError

SHORTEST = 8  # tokens, as of --max_seq_len
_EXAMPLE = (
    "write lengths and steps as in --phases 128:9000,512:1000, or samples of a micro-batch too, as in "
    "128:9000:32,512:1000:8"
)


class Phase(NamedTuple):
    """``steps`` steps on samples of at most ``length`` tokens, control tokens included.

    ``micro_batch_size``: samples per process in one forward pass.
    """

    length: int
    steps: int
    micro_batch_size: int


@lru_cache(maxsize=8)  # every step asks
def parse_phases(text: str, max_seq_len: int, max_steps: int, micro_batch_size: int) -> Tuple[Phase, ...]:
    """Parse '128:9000:32,512:1000'; '' is one phase of ``max_seq_len`` and ``max_steps``.

    ``micro_batch_size`` is that of the phases that name none.

    Raises InputError for another form, for lengths of which ``max_seq_len`` is not the longest, and for steps
    that are not ``max_steps`` in all.
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
        raise InputError(f"--phases {text}: {part or 'nothing'} is no phase; {_EXAMPLE}")
    length, steps, rows = map(int, [*part.split(":"), str(micro_batch_size)][:3])
    if length < SHORTEST or steps < 1:
        raise InputError(
            f"--phases {text}: {part} asks for samples of {length} tokens in {steps} steps; take {SHORTEST} "
            "tokens or more, and a step or more"
        )
    if rows < 1:
        raise InputError(f"--phases {text}: {part} has no sample in a micro-batch; take 1 or more")
    return Phase(length, steps, rows)
