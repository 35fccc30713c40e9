"""Settings of Paddle's layers that are only available under private names, which differ in Paddle 3."""

from paddle.nn import functional as F

ACTIVATIONS = ("gelu", "relu")


def epsilon_of(norm) -> float:
    """Return the epsilon that a LayerNorm adds to the variance."""
    return float(norm._epsilon)


def padding_id_of(embedding) -> int:
    """Return the id whose row of an Embedding is zero and is not trained; -1: none."""
    padding_id = embedding._padding_idx
    return -1 if padding_id is None else int(padding_id)


def activation_of(layer) -> str:
    """Return which of ACTIVATIONS an encoder layer has, '' for another.

    From 3.2 on, Paddle's functions have a different name than the one they are imported by: `_gelu`.
    """
    return next((name for name in ACTIVATIONS if layer.activation is getattr(F, name)), "")
