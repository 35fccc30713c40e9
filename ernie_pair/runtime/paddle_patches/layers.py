"""Layers of Paddle and PaddleNLP: settings under private names, another forward pass, what is missing.

PaddleNLP 2.8.1 wraps whatever is assigned to ``forward`` of Paddle's TransformerEncoderLayer
(`transformers.utils.adapt_stale_fwd_patch`), so a forward pass of
one layer is set in the dictionary of the object.
"""

import math
from typing import Any, Optional

import paddle
from paddle import nn
from paddle.nn import functional as F

Forward = Any  # a callable; the code that set it knows its type


def own_forward(layer) -> Optional[Forward]:
    """Return the replaced forward pass of ``layer``; None: that of its class is used."""
    return vars(layer).get("forward")


def set_forward(layer, forward: Optional[Forward]) -> None:
    """Replace the forward pass of ``layer`` by ``forward``; None: use that of its class again."""
    vars(layer).pop("forward", None)
    if forward is not None:
        vars(layer)["forward"] = forward


def runs_its_class(layer, kind: type) -> bool:
    """Return whether calling ``layer`` runs the forward pass of ``kind`` and nothing else.

    A subclass, a hook (of weight norm, of quantisation, of the user) or another forward pass would run more.
    """
    return type(layer) is kind and not has_hooks(layer) and own_forward(layer) is None


def has_hooks(layer) -> bool:
    """Return whether something is called before or after the forward pass of ``layer``."""
    held = vars(layer)
    return bool(held["_forward_pre_hooks"] or held["_forward_post_hooks"])


def sublayer_of(layer, name: str):
    """Return the layer of this name inside ``layer``, None without one; `getattr` takes microseconds."""
    return layer._sub_layers.get(name)


def parameter_of(layer, name: str):
    """Return the parameter of this name of ``layer`` itself, None if there is none."""
    return layer._parameters.get(name)


ACTIVATIONS = ("gelu", "relu")


def epsilon_of(norm) -> float:
    """Return the epsilon that a LayerNorm adds to the variance."""
    return float(norm._epsilon)


def padding_id_of(embedding) -> int:
    """Return the id whose row of an Embedding is zero and is not trained; -1: none."""
    padding_id = embedding._padding_idx
    return -1 if padding_id is None else int(padding_id)


def read_padding_row(embedding) -> None:
    """Let an Embedding answer the row of its padding id, as torch does; Paddle would answer zeros."""
    embedding._padding_idx = None


def activation_of(layer) -> str:
    """Return which of ACTIVATIONS an encoder layer has, '' for another; Paddle 3.3 names it `_gelu`."""
    return next((name for name in ACTIVATIONS if layer.activation is getattr(F, name)), "")


def init_like(encoder: nn.Layer, layer: nn.Layer) -> None:
    """Initialize the weights of ``layer`` like those of ``encoder``, a model of PaddleNLP."""
    layer.apply(encoder._init_weights)


def set_epsilon(model: nn.Layer, epsilon: float) -> None:
    """Give all layer norms in ``model`` this epsilon."""
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, nn.LayerNorm):
            layer._epsilon = epsilon


def gelu_new(states):
    """Return the GELU by tanh of transformers, which Paddle's functions have under no name of their own."""
    return 0.5 * states * (1.0 + paddle.tanh(math.sqrt(2.0 / math.pi) * (states + 0.044715 * states**3)))


def make_gelu_new(layers) -> None:
    """Let ``layers`` compute `gelu_new`: those of a TransformerEncoder, or heads for masked tokens."""
    for layer in layers:
        layer.activation = gelu_new


def share_positions(encoder: nn.Layer) -> None:
    """Give all layers of a NeZha one table, which PaddleNLP creates for each: 64 MiB at 64 per head."""
    attentions = [layer.attention for layer in encoder.encoder.layer]
    table = _Positions(attentions[0].relative_positions_embeddings)
    for attention in attentions:
        del attention.relative_positions_embeddings
        attention.relative_positions_embeddings = table


class _Positions(nn.Layer):
    """NeZha's table of relative positions: it is included in an export, and no forward pass copies it."""

    def __init__(self, table):
        super().__init__()
        self.register_buffer("table", table, persistable=False)

    def detach(self):
        return self

    def clone(self):
        return self.table
