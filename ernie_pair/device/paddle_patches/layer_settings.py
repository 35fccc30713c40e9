"""Settings of Paddle's layers that only private names of Paddle 2.6.2 tell, or other ones in Paddle 3."""

from paddle.nn import functional as F

ACTIVATIONS = ("gelu", "relu")


def epsilon_of(norm) -> float:
    """Return what a LayerNorm adds to the variance."""
    return float(norm._epsilon)


def padding_id_of(embedding) -> int:
    """Return the id whose row of an Embedding is zero and does not train; -1: none."""
    padding_id = embedding._padding_idx
    return -1 if padding_id is None else int(padding_id)


def activation_of(layer) -> str:
    """Return which of ACTIVATIONS an encoder layer has, '' for another.

    From 3.2 on the functions of Paddle are called otherwise than they are imported: `_gelu`.
    """
    return next((name for name in ACTIVATIONS if layer.activation is getattr(F, name)), "")
