"""What is missing in PaddleNLP's models.

Names, as in PaddleNLP 2.8.1: `PretrainedModel._init_weights`, which it applies to the layers of its models,
and which sets `LayerNorm._epsilon` to a number of its own in some of them, whatever config.json says;
`relative_positions_embeddings` of `NeZhaAttention`, which is a plain attribute there and not a buffer.
"""

import math

import paddle
from paddle import nn


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
