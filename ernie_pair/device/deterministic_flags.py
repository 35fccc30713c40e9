"""The flag for bit-identical results on a GPU."""

from dataclasses import dataclass

from data_tools.base.options import Options, option


@dataclass(frozen=True)
class DeterministicFlags(Options):
    """The base of every command that trains; each field is a flag of it."""

    deterministic: bool = option(
        True,
        help="on a GPU: kernels that give bit-identical results in every run; false: faster kernels that do "
        "not",
        group="devices",
    )
