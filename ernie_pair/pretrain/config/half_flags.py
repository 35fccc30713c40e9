"""The flags of half precision and fused ops in the static graph."""

from dataclasses import dataclass
from typing import FrozenSet

from data_tools.base.options import names_in, option, refuse_unknown_names
from ernie_pair.device.amp_flags import AmpFlags

# Their GPU kernels add up in float32, whatever the type of their input.
HALF_OPS = frozenset({"softmax", "layer_norm", "gelu"})


@dataclass(frozen=True)
class HalfFlags(AmpFlags):
    """A part of `PretrainConfig`."""

    amp_fp32_ops: str = option(
        "",
        help=f"operators that mixed precision keeps in float32: some of {', '.join(sorted(HALF_OPS))}",
        group="precision",
    )

    def __post_init__(self):
        super().__post_init__()
        fault = f": its precision cannot be chosen; use some of {','.join(sorted(HALF_OPS))}"
        refuse_unknown_names("amp_fp32_ops", sorted(self.float32_ops), HALF_OPS, fault)

    @property
    def float32_ops(self) -> FrozenSet[str]:
        """Return the ops of --amp_fp32_ops."""
        return frozenset(names_in(self.amp_fp32_ops))
