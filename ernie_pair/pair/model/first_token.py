"""Compute the last encoder layer for the first token of each sequence only, if the head reads nothing else.

Its keys and values are those of all tokens, as ever; its queries, its norms and its feed-forward are of one
token per sequence. The answer is the same within the rounding of float32, and so are the gradients, for what
is left out had no part in them. B batch, S sequence, D hidden.
"""

from functools import partial

from paddle import nn

from ernie_pair.device.paddle_patches.layer_forward import own_forward, set_forward


class FirstTokenAlone:
    """A context in which an encoder's last layer returns [B, 1, D]; None for ``layer`` changes nothing.

    What stands in for the layer's forward pass already (recompute, the fused kernels) has a method
    ``for_first_token``, which is given Paddle's way to do it and returns its own.
    """

    def __init__(self, layer):
        self.layer = layer

    def __enter__(self) -> None:
        if self.layer is not None:
            self.before = own_forward(self.layer)
            alone = partial(first_token_state, self.layer)
            set_forward(self.layer, alone if self.before is None else self.before.for_first_token(alone))

    def __exit__(self, *error) -> None:
        if self.layer is not None:
            set_forward(self.layer, self.before)


def can_run_first_token(layer) -> bool:
    """Return whether `first_token_state` computes what ``layer`` does: it is Paddle's own, not a subclass."""
    return type(layer) is nn.TransformerEncoderLayer and type(layer.self_attn) is nn.MultiHeadAttention


def first_token_state(layer, states_BSD, src_mask=None, cache=None, output_attentions=False):
    """Return the state of the first token after ``layer``, [B, 1, D].

    ``src_mask`` is added to the scores, and is the same for every query. ``cache`` and ``output_attentions``
    are as TransformerEncoder passes them: None and False, for no classifier asks for more.
    """
    assert cache is None and not output_attentions
    seen_BSD = layer.norm1(states_BSD) if layer.normalize_before else states_BSD
    attended_B1D = layer.self_attn(seen_BSD[:, :1], seen_BSD, seen_BSD, src_mask)
    state_B1D = states_BSD[:, :1] + layer.dropout1(attended_B1D)
    if not layer.normalize_before:
        state_B1D = layer.norm1(state_B1D)
    inner_B1D = layer.norm2(state_B1D) if layer.normalize_before else state_B1D
    inner_B1D = layer.linear2(layer.dropout(layer.activation(layer.linear1(inner_B1D))))
    state_B1D = state_B1D + layer.dropout2(inner_B1D)
    return state_B1D if layer.normalize_before else layer.norm2(state_B1D)
