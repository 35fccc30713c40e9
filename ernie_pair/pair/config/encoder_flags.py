"""The flags that decide how the encoder of a pair classifier is used, and how much of it trains."""

from dataclasses import dataclass
from typing import Literal

from data_tools.base.cli import option
from data_tools.base.errors import InputError
from ernie_pair.model_files.config_json import FAMILIES


@dataclass(frozen=True)
class EncoderConfig:
    """A part of `PairConfig`, whose other flags some of the checks look at."""

    model_type: Literal[tuple(FAMILIES)] = option("ernie_gram", help="the family of the model")
    pooling: Literal["cls", "mean"] = option(
        "cls", help="what of the encoder is classified: its pooled output, or the mean of its hidden states"
    )
    freeze: Literal["none", "embeddings", "encoder"] = option(
        "none", help="what does not train, nor drops out: the embeddings, or all layers too"
    )
    freeze_layers: int = option(0, help="the embeddings and so many layers above them do not train")
    layer_decay: float = option(1.0, help="each layer below the head learns at this share of the one above")
    use_recompute: bool = option(
        False, help="run each encoder layer again for its gradient: slower, with far less memory"
    )

    def refuse_encoder(self) -> None:
        """Raises InputError for a value, or for flags that do not go together."""
        if self.freeze_layers < 0:
            raise InputError(f"--freeze_layers {self.freeze_layers} is below 0; use 0 for none")
        if self.freeze == "encoder" and self.freeze_layers:
            raise InputError(
                f"--freeze encoder freezes all layers, and --freeze_layers {self.freeze_layers} some; "
                "leave one of them out"
            )
        if not 0 < self.layer_decay <= 1:
            raise InputError(f"--layer_decay {self.layer_decay} is not in (0, 1]; use 0.9, or 1.0 for none")
        if self.fgm_epsilon and (self.freeze != "none" or self.freeze_layers):
            raise InputError(
                "--fgm_epsilon steps along the gradient of the word embedding, which is frozen; leave "
                "--fgm_epsilon out, or freeze nothing"
            )
