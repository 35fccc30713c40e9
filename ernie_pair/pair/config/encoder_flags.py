"""The flags that decide which encoder a pair classifier has, and how it is used."""

from dataclasses import dataclass
from typing import Literal, Optional

from data_tools.base.options import option
from ernie_pair.model_files.config_json import FAMILIES
from ernie_pair.pair.config.layer_flags import LayerFlags


@dataclass(frozen=True)
class EncoderFlags(LayerFlags):
    """A part of `PairConfig`."""

    model_type: Optional[str] = option(
        None, help="model family; none: taken from config.json", group="model", choices=FAMILIES
    )
    model_class: str = option(
        "", help="your own subclass of PairClassifier, package.module:Class", group="model"
    )
    pooling: Literal["cls", "mean"] = option(
        "cls",
        help="input of the classifier: the pooled output of the encoder, or the mean of its hidden states",
        group="model",
    )
