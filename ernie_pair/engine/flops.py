"""The floating-point operations of an encoder: what a step has to compute, from its shapes alone.

A product of [m, k] by [k, n] counts 2 m k n; embeddings, norms, softmax and activations count nothing, and
neither does recompute. B sequences of S tokens, D hidden, F inner width:

- a layer: 2 B S (4 D^2 + 2 D F) for its weights, 4 B S^2 D for scores and their use (PaLM, appendix B)
- the last layer, of which the heads read only R rows (the first token of each sequence, the masked tokens):
  keys and values of all tokens, and the rest for R tokens: query, attention, output and feed-forward
- heads: the pooler 2 B D^2, a classifier 2 B D C, masked LM 2 P (D^2 + D V) for P masked tokens

Training takes three times the forward pass: the backward pass multiplies twice. Only necessary work counts: a
path that computes more than the heads read reaches a lower rate.
"""

from typing import NamedTuple, Optional

FORWARD_PASSES_OF_TRAINING = 3


class EncoderSize(NamedTuple):
    """The sizes of an encoder's products."""

    layers: int
    hidden: int
    inner: int


def count_encoder(size: EncoderSize, batch: int, length: int, rows_read: Optional[int] = None) -> int:
    """Return the operations of a forward pass over ``batch`` sequences of ``length`` tokens.

    ``rows_read``: how many rows of the last layer the heads read, of all sequences; None: all.
    """
    if not size.layers:
        return 0
    every = batch * length
    last = every if rows_read is None else min(rows_read, every)
    return (size.layers - 1) * _count_layer(size, batch, length, every) + _count_layer(
        size, batch, length, last
    )


def _count_layer(size: EncoderSize, batch: int, length: int, rows: int) -> int:
    keys_and_values = 2 * size.hidden**2 * batch * length
    query_and_output = 2 * size.hidden**2 * rows
    attention = 2 * size.hidden * length * rows
    feed_forward = 2 * size.hidden * size.inner * rows
    return 2 * (keys_and_values + query_and_output + attention + feed_forward)


def count_classifier(size: EncoderSize, batch: int, num_classes: int) -> int:
    """Return the operations of pooler and classifier in a forward pass."""
    return 2 * batch * (size.hidden**2 + size.hidden * num_classes)


def count_pretraining(size: EncoderSize, batch: int, length: int, masked: int, vocab_size: int) -> int:
    """Return the operations of a forward pass of pretraining, of ``masked`` tokens and a class a sequence."""
    encoder = count_encoder(size, batch, length, rows_read=masked + batch)
    masked_lm = 2 * masked * (size.hidden**2 + size.hidden * vocab_size)
    return encoder + masked_lm + count_classifier(size, batch, 2)
