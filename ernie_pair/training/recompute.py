"""Recompute: an encoder layer keeps only its input, and runs again in the backward pass.

The second run draws the dropout of the first: the same gradients as without, to the last bit. Paddle
knows how to rewind its random numbers on a GPU alone, so it is done here.
"""

from typing import Callable, Optional, Union

import paddle
from paddle.distributed.fleet.utils import recompute

from ernie_pair.core.errors import InputError
from ernie_pair.kernels.encoder_layer import FusedLayer
from ernie_pair.models.networks.custom_model import CustomModel
from ernie_pair.models.networks.encoders import EncoderModel
from ernie_pair.runtime.paddle_patches.layers import own_forward, set_forward
from ernie_pair.training.optimizer import trained_parameters
from ernie_pair.training.run_flags import TrainingFlags


def recompute_layers(model, is_wanted: bool) -> None:
    """Turn recompute on or off for every encoder layer of a `PairClassifier`."""
    for layer in model.layers():
        fused = own_forward(layer)
        if isinstance(fused, FusedLayer):  # its dropout needs no random numbers of before
            fused.is_recomputed = is_wanted
            continue
        set_forward(layer, None)  # of an earlier run
        if is_wanted:
            set_forward(layer, RecomputedForward(layer.forward))


class RecomputedForward:
    """The forward pass of a layer, which is run again in the backward pass."""

    def __init__(self, forward: Callable):
        self.forward = forward

    def for_first_token(self, plain: Callable) -> "RecomputedForward":
        """Return what stands in for the layer where it runs for the first token alone, as ``plain`` does."""
        return RecomputedForward(plain)

    def __call__(self, states, *others, **named):
        """Run the layer, and again for a gradient that ``states`` have: not in an evaluation."""
        if states.stop_gradient:
            return self.forward(states, *others, **named)
        forward = _RepeatableForward(self.forward)
        # Reentrant, Paddle's other way, lets DataParallel see a gradient before it is whole.
        return recompute(forward, states, *others, use_reentrant=False, preserve_rng_state=False, **named)


class _RepeatableForward:
    """A forward pass whose second run has the random numbers of the first, and leaves no trace of it."""

    def __init__(self, forward: Callable):
        self.forward, self.numbers = forward, None

    def __call__(self, *inputs, **named):
        if self.numbers is None:
            self.numbers = paddle.get_rng_state()
            return self.forward(*inputs, **named)
        later = paddle.get_rng_state()
        paddle.set_rng_state(self.numbers)
        try:
            return self.forward(*inputs, **named)
        finally:
            paddle.set_rng_state(later)


def freeze(model: Union[EncoderModel, CustomModel], config: TrainingFlags) -> str:
    """Freeze what the flags name, and return how many parameters are trained, as a line for the log.

    The pooler, if there is one, trains with the head. Raises InputError when the model has fewer layers.
    """
    layers = model.layers()
    num_frozen = num_frozen_layers(config, len(layers))
    model.frozen_modules = [] if num_frozen is None else [*model.embeddings(), *layers[:num_frozen]]
    for name, parameter in model.named_parameters():
        is_frozen = num_frozen is not None and model.depth_of(name) <= num_frozen
        was_frozen = parameter.stop_gradient and not getattr(parameter, "frozen_by_flags", False)
        is_kept = model.keeps_frozen and was_frozen
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


def num_frozen_layers(config: TrainingFlags, num_layers: int) -> Optional[int]:
    """Return how many layers above the embeddings are frozen; None: not even these. Raises InputError."""
    if config.freeze_layers > num_layers:
        raise InputError(
            f"--freeze_layers {config.freeze_layers} is more than the {num_layers} layers of the model; "
            f"use --freeze encoder, or {num_layers} at most"
        )
    if config.freeze == "encoder":
        return num_layers
    return config.freeze_layers if config.freeze == "embeddings" or config.freeze_layers else None
