"""FGM: the word embedding, moved a step of given length to where the loss grows (Miyato et al. 2017).

The step is epsilon * g / |g|, and g the gradient of the whole global batch: all passes of an update go
through once, g is averaged over the processes, and then all go through again with the embedding moved,
their gradients on top of the first. So the step, and the update, are the same in every layout.
"""

import math
from contextlib import contextmanager
from typing import Callable, Iterator

import paddle

from data_tools.base.errors import InputError


class Perturbation:
    """Of the tensor ``embedding``; ``average`` makes a tensor the mean over all processes, in place."""

    def __init__(self, embedding, epsilon: float, average: Callable[[paddle.Tensor], None]):
        if embedding.stop_gradient:
            raise InputError(
                f"--fgm_epsilon {epsilon} follows the gradient of the word embedding, which is frozen; let "
                "it train, or use --fgm_epsilon 0"
            )
        self.embedding, self.epsilon, self.average = embedding, epsilon, average

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within it the embedding is moved; then it is back, to the bit.

        A gradient that is zero or not finite moves nothing, on all processes alike.
        """
        with paddle.no_grad():
            gradient = self.embedding.grad.clone()
            self.average(gradient)
            length = float(gradient.norm())
            before = self.embedding.clone()
            if 0 < length < math.inf:
                self.embedding.set_value(before + gradient * (self.epsilon / length))
        try:
            yield
        finally:
            self.embedding.set_value(before)
