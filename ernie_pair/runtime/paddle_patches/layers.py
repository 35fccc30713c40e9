"""Layers of Paddle and PaddleNLP: settings under private names, another forward pass, what is missing.

PaddleNLP 2.8.1 wraps whatever is assigned to ``forward`` of Paddle's TransformerEncoderLayer
(`transformers.utils.adapt_stale_fwd_patch`), so a forward pass of
one layer is set in the dictionary of the object.
"""

import math
from functools import partial
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


def fuse_attention(layers, is_wanted: bool) -> None:
    """Let the attention of ``layers`` be `attend_fused`, or what its class computes.

    An attention of another class, with hooks or with another forward pass stays as it is.
    """
    for layer in layers:
        attention = sublayer_of(layer, "self_attn")
        found = None if attention is None else own_forward(attention)
        if getattr(found, "func", None) is attend_fused:
            set_forward(attention, None)
        if is_wanted and attention is not None and runs_its_class(attention, nn.MultiHeadAttention):
            set_forward(attention, partial(attend_fused, attention))


def attend_fused(attention, query_BQD, key_BSD=None, value_BSD=None, attn_mask=None, cache=None):
    """Return what a MultiHeadAttention does, [B, Q, D], by Paddle's one operator for scores, softmax, sums.

    ``attn_mask``: float, added to the scores, [B, 1, Q or 1, S]. On a GPU of compute capability 8.0 or above
    that operator is flash attention for half precision; elsewhere Paddle takes what it has. Where products
    are cast (AMP) a sum with a bias in float32 may not be, and then float32 would be what it is asked for.
    """
    assert cache is None and not attention.need_weights
    key_BSD = query_BQD if key_BSD is None else key_BSD
    value_BSD = key_BSD if value_BSD is None else value_BSD
    asked = (attention.q_proj, query_BQD), (attention.k_proj, key_BSD), (attention.v_proj, value_BSD)
    split = [0, 0, attention.num_heads, attention.head_dim]
    query, key, value = (product(states).reshape(split) for product, states in asked)
    if paddle.is_autocast_enabled():
        query, key, value = (each.astype(paddle.get_autocast_dtype()) for each in (query, key, value))
    if attn_mask is not None:
        # The kernel reads a row of the mask for every query.
        attn_mask = attn_mask.astype(query.dtype).expand([-1, -1, query.shape[1], -1])
    rate = attention.dropout if attention.training else 0.0
    found = F.scaled_dot_product_attention(query, key, value, attn_mask, rate, training=attention.training)
    return attention.out_proj(found.reshape([0, 0, attention.num_heads * attention.head_dim]))


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
