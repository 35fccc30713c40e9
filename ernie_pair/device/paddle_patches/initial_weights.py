"""Fresh weights as PaddleNLP draws them.

Names, as in PaddleNLP 2.8.1: `PretrainedModel._init_weights`, which it applies to the layers of its models.
"""


def init_like(encoder, layer) -> None:
    """Draw the weights of ``layer`` in the way of ``encoder``, a model of PaddleNLP."""
    layer.apply(encoder._init_weights)
