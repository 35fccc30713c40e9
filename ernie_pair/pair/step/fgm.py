"""FGM: an adversarial step of given length on the word embedding (Miyato et al. 2017).

The step is epsilon * g / |g|, and g the gradient of the whole global batch: all micro-batches of a step go
through once, g is averaged over the ranks, and then all go through again with the embedding moved, their
gradients on top of the first. So the perturbation, and the step of the optimizer, are the same in every
layout.
"""

from contextlib import contextmanager
from typing import Callable, Iterator

import paddle

from data_tools.base.errors import InputError


class Fgm:
    """The perturbation of ``embedding``; ``average`` makes a tensor the mean over all ranks, in place.

    Raises InputError when the embedding is frozen.
    """

    def __init__(self, embedding, epsilon: float, average: Callable[[paddle.Tensor], None]):
        if embedding.stop_gradient:
            raise InputError(
                f"--fgm_epsilon {epsilon} follows the gradient of the word embedding, which is frozen; let "
                "it train, or use --fgm_epsilon 0"
            )
        self.embedding, self.epsilon, self.average = embedding, epsilon, average

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Move the embedding within the context, and restore it bit by bit afterwards.

        A gradient that is zero or not finite moves nothing, on all ranks alike.
        """
        with paddle.no_grad():
            gradient = self.embedding.grad.clone()
            self.average(gradient)
            length = gradient.norm()  # it stays on the device: nobody waits for it
            before = self.embedding.clone()
            has_direction = paddle.logical_and(paddle.isfinite(length), length > 0)
            moved = before + gradient * (self.epsilon / length)
            paddle.assign(paddle.where(has_direction, moved, before), self.embedding)
        try:
            yield
        finally:
            with paddle.no_grad():
                paddle.assign(before, self.embedding)
