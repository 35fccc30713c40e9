"""Give the encoder of a model the fused kernels, or take them away; its parameters stay where they are."""

from types import MethodType
from typing import Sequence

from ernie_pair.kernels.embeddings import FusedEmbeddings, are_fit, run_fused
from ernie_pair.kernels.encoder_layer import FusedLayer, ModelState, why_unfit
from ernie_pair.runtime.paddle_patches.layers import own_forward, set_forward


def why_layers_unfit(layers: Sequence) -> str:
    """Return why the kernels cannot compute these layers of an encoder, in words, or ''."""
    return next(filter(None, map(why_unfit, layers)), "")


def describe_unfit(embeddings: Sequence) -> str:
    """Return which of these parts the kernels leave to Paddle, in words, or ''."""
    return "" if all(map(are_fit, embeddings)) else "embeddings by Paddle"


def attach_kernels(layers: Sequence, embeddings: Sequence, state: ModelState) -> None:
    """Let the kernels compute ``layers``, and the ``embeddings`` before them if they can."""
    begins = True
    for part in embeddings:
        if are_fit(part):
            part.fused = FusedEmbeddings(part, state)
            set_forward(part, MethodType(run_fused, part))
            begins = False
    for number, layer in enumerate(layers):
        fused = FusedLayer(layer, number, state)
        fused.begins_pass = begins and number == 0
        set_forward(layer, fused)


def detach_kernels(layers: Sequence, embeddings: Sequence) -> None:
    """Let Paddle compute these parts again."""
    for layer in layers:
        if isinstance(own_forward(layer), FusedLayer):
            set_forward(layer, None)
    for part in embeddings:
        if isinstance(getattr(part, "fused", None), FusedEmbeddings):
            set_forward(part, None)
            del part.fused
