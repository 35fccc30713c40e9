"""The flags that decide how much of an encoder trains, and how its layers do."""

from dataclasses import dataclass
from typing import Literal

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option


@dataclass(frozen=True)
class LayerFlags(Options):
    """A part of the settings of a training in dynamic graph."""

    freeze: Literal["none", "embeddings", "encoder"] = option(
        "none",
        help="what does not train, nor drops out: the embeddings, or all layers too",
        group="optimisation",
    )
    freeze_layers: int = option(
        0,
        help="the embeddings and so many layers above them do not train",
        group="optimisation",
        unit="layers",
        at_least=0,
    )
    layer_decay: float = option(
        1.0,
        help="each layer below the head learns at this share of the one above",
        group="optimisation",
        above=0,
        at_most=1,
    )
    use_recompute: bool = option(
        False,
        help="run each encoder layer again for its gradient: slower, with far less memory",
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
