"""The weights that a static start-up program of Paddle 2.6 draws, drawn in the dynamic graph of any version.

Both graphs draw in the order in which layers create parameters. Where the numbers would differ: PaddleNLP
draws the weights of its models a second time in the dynamic graph alone (`init_weights`), nn.Embedding clears
its padding row there, and Paddle 3.3 cuts a TruncatedNormal at -2 and 2 where 2.6 cut at two standard
deviations.
"""

from contextlib import contextmanager
from typing import Dict, Iterator

import numpy as np
from paddle.nn.initializer import TruncatedNormal

from ernie_pair.runtime.paddle_patches.paddlenlp_import import transformers

CUT = 2.0  # standard deviations


@contextmanager
def drawing_as_static() -> Iterator[Dict[str, np.ndarray]]:
    """Draw the parameters of models that are built inside as a static program would.

    Yields {name of a parameter: what a TruncatedNormal drew for it}; others hold what they drew.
    """
    drawn: Dict[str, np.ndarray] = {}
    forward, init_weights = TruncatedNormal.forward, transformers.PretrainedModel.init_weights

    def draw(self, parameter, block=None):
        if hasattr(self, "_a"):
            self._a, self._b = (self._mean + sign * CUT * self._std_dev for sign in (-1, 1))
        result = forward(self, parameter, block)
        drawn[parameter.name] = parameter.numpy()
        return result

    TruncatedNormal.forward = draw
    transformers.PretrainedModel.init_weights = lambda self: None
    try:
        yield drawn
    finally:
        TruncatedNormal.forward = forward
        transformers.PretrainedModel.init_weights = init_weights
