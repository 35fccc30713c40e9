"""Freeze parts of the encoder: no gradients, no optimizer state, no dropout.

Embeddings and the layers above them freeze from below, so nothing of what they compute is kept for a
backward pass. They run as in evaluation: what comes out of them is the same in every epoch.
"""

from typing import Optional, Union

from data_tools.base.errors import InputError
from ernie_pair.pair.config.layer_flags import LayerFlags
from ernie_pair.pair.model.encoder_model import EncoderModel
from ernie_pair.pair.model.plain_model import PlainModel
from ernie_pair.pair.step.optimizer import trained_parameters


def freeze(model: Union[EncoderModel, PlainModel], config: LayerFlags) -> str:
    """Freeze what the flags name, and return how many parameters are trained, as a line for the log.

    The pooler, if there is one, trains with the head. Raises InputError when the model has fewer layers.
    """
    layers = model.layers()
    num_frozen = num_frozen_layers(config, len(layers))
    model.frozen_modules = [] if num_frozen is None else [*model.embeddings(), *layers[:num_frozen]]
    for name, parameter in model.named_parameters():
        is_frozen = num_frozen is not None and model.depth_of(name) <= num_frozen
        is_given_frozen = parameter.stop_gradient and not getattr(parameter, "frozen_by_flags", False)
        is_kept = model.keeps_frozen and is_given_frozen
        parameter.frozen_by_flags = is_frozen and not is_kept  # another run with other flags trains it again
        parameter.stop_gradient = is_frozen or is_kept or model.is_unused(name)
    every = sum(int(parameter.size) for parameter in model.parameters())
    trained = sum(int(parameter.size) for parameter in trained_parameters(model).values())
    share = f"{trained:,} of {every:,} parameters are trained ({trained / every:.1%})"
    if num_frozen is None:
        return share
    return (
        f"{share}; the embeddings and {num_frozen} of {len(layers)} layers are frozen, and drop nothing out"
    )


def num_frozen_layers(config: LayerFlags, num_layers: int) -> Optional[int]:
    """Return how many layers above the embeddings are frozen; None: not even these. Raises InputError."""
    if config.freeze_layers > num_layers:
        raise InputError(
            f"--freeze_layers {config.freeze_layers} is more than the {num_layers} layers of the model; "
            f"use --freeze encoder, or {num_layers} at most"
        )
    if config.freeze == "encoder":
        return num_layers
    return config.freeze_layers if config.freeze == "embeddings" or config.freeze_layers else None
