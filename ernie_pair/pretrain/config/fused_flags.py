"""The flag of the fused ops of the static graph on GPUs; those on CPUs are `ernie_pair.kernels`."""

from dataclasses import dataclass
from typing import FrozenSet

from data_tools.base.options import Options, names_in, option, refuse_unknown_names

ATTENTION, GEMM_EPILOGUE, COLLECTIVES = "attention", "gemm_epilogue", "collectives"
FUSED_OPS = (ATTENTION, GEMM_EPILOGUE, COLLECTIVES)
AUTO, NONE = "auto", "none"
# The least length of a batch on a GPU, up to --max_seq_len, and its multiple: the fused softmax needs both.
LEAST_LENGTH, LENGTH_MULTIPLE = 32, 8


@dataclass(frozen=True)
class FusedFlags(Options):
    """A part of `PretrainConfig`."""

    fused_ops: str = option(
        AUTO,
        help=f"on GPUs: {AUTO}, {NONE}, or some of {', '.join(FUSED_OPS)}, which must then be available",
        group="devices",
    )

    def __post_init__(self):
        super().__post_init__()
        fault = f": there is no such op; use {AUTO}, {NONE}, or some of {','.join(FUSED_OPS)}"
        refuse_unknown_names("fused_ops", sorted(self.asked_ops), FUSED_OPS, fault)

    @property
    def asked_ops(self) -> FrozenSet[str]:
        """Return the ops that --fused_ops names."""
        return frozenset() if self.fused_ops in (AUTO, NONE) else frozenset(names_in(self.fused_ops))
