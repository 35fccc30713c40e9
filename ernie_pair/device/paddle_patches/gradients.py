"""Numbers about gradients.

Names, as in Paddle 2.6.2: `paddle.nn.clip._squared_l2_norm`, which `ClipGradByGlobalNorm` uses.
"""

import paddle
from paddle.nn import clip


def squared_norm(gradient: paddle.Tensor) -> paddle.Tensor:
    """Return the sum of all squares in one pass, where (g * g).sum() makes three."""
    return clip._squared_l2_norm(gradient)
