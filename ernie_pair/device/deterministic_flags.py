"""The flag that makes a GPU give the same bits again."""

from dataclasses import dataclass

from data_tools.base.options import Options, option


@dataclass(frozen=True)
class DeterministicFlags(Options):
    """The base of every command that trains; each field is a flag of it."""

    deterministic: bool = option(
        True,
        help="on a GPU: kernels that give the same bits in every run; false: faster ones, which do not",
        group="devices",
    )
