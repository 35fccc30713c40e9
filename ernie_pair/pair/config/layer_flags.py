"""The flags that decide how much of an encoder trains, and how its layers do."""

from dataclasses import dataclass
from typing import Literal

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option


@dataclass(frozen=True)
class LayerFlags(Options):
    """A part of the settings of training in the dynamic graph."""

    freeze: Literal["none", "embeddings", "encoder"] = option(
        "none",
        help="what is frozen, without dropout: the embeddings, or the embeddings and all layers",
        group="optimisation",
    )
    freeze_layers: int = option(
        0,
        help="freeze the embeddings and this many layers above them",
        group="optimisation",
        unit="layers",
        at_least=0,
    )
    layer_decay: float = option(
        1.0,
        help="layer-wise learning rate decay: each layer below the head learns at this fraction of the rate "
        "of the layer above",
        group="optimisation",
        above=0,
        at_most=1,
    )
    use_recompute: bool = option(
        False,
        help="recompute each encoder layer in the backward pass: slower, but with far less memory",
        group="optimisation",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.freeze == "encoder" and self.freeze_layers:
            raise InputError(
                f"--freeze encoder freezes all layers, and --freeze_layers {self.freeze_layers} some; "
                "leave one of them out"
            )

    @property
    def freezes_embeddings(self) -> bool:
        """Return whether the embeddings, the lowest of all, stay as they are."""
        return self.freeze != "none" or self.freeze_layers > 0
