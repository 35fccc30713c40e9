"""What models draw when they are built: in static programs what the dynamic graph would not; or nothing.

A run's weights follow from its seed alone, in both graphs. Both draw in the order in which layers create
parameters; PaddleNLP draws the weights of its models a second time in the dynamic graph (`init_weights`),
nn.Embedding clears its padding row there, and Paddle cuts a TruncatedNormal at -2 and 2 instead of at two
standard deviations.
"""

from contextlib import contextmanager
from typing import Dict, Iterator

import numpy as np
import paddle
from paddle.nn.initializer import Constant, Normal, TruncatedNormal, Uniform
from paddle.nn.initializer.xavier import XavierInitializer

from ernie_pair.runtime.paddle_patches.paddlenlp_import import transformers

CUT = 2.0  # standard deviations
# What the layers of PaddleNLP's models draw with.
RANDOM = (Normal, TruncatedNormal, Uniform, XavierInitializer)


@contextmanager
def drawing_nothing() -> Iterator[None]:
    """Leave at zero what models that are built inside would draw: their weights are read from a file.

    To draw them takes longer than to read them. `init_weights` of PaddleNLP's models draws by paddle.normal,
    and runs: it sets the epsilon of norms.
    """
    forwards, normal, zero = [kind.forward for kind in RANDOM], paddle.normal, Constant(0.0)
    for kind in RANDOM:
        kind.forward = lambda self, parameter, block=None: zero(parameter, block)
    paddle.normal = paddle.tensor.normal = lambda mean=0.0, std=1.0, shape=None: paddle.zeros(shape)
    try:
        yield
    finally:
        for kind, forward in zip(RANDOM, forwards):
            kind.forward = forward
        paddle.normal = paddle.tensor.normal = normal


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
