"""Recompute: an encoder layer keeps only its input, and runs again in the backward pass.

The second run draws the dropout of the first: the same gradients as without, to the last bit. Paddle
knows how to rewind its random numbers on a GPU alone, so it is done here.
"""

from typing import Callable

import paddle
from paddle.distributed.fleet.utils import recompute

from ernie_pair.device.paddle_patches.layer_forward import own_forward, set_forward
from ernie_pair.kernels.encoder_layer import FusedLayer


def recompute_layers(model, is_wanted: bool) -> None:
    """Turn recompute on or off for every encoder layer of a `PairClassifier`."""
    for layer in model.layers():
        fused = own_forward(layer)
        if isinstance(fused, FusedLayer):  # its dropout needs no random numbers of before
            fused.is_recomputed = is_wanted
            continue
        set_forward(layer, None)  # of an earlier run
        if is_wanted:
            set_forward(layer, _Forgetful(layer.forward))


class _Forgetful:
    def __init__(self, forward: Callable):
        self.forward = forward

    def for_first_token(self, plain: Callable) -> "_Forgetful":
        """Return what stands in for the layer where it runs for the first token alone, as ``plain`` does."""
        return _Forgetful(plain)

    def __call__(self, states, *others, **named):
        """Run the layer, and let it run again for its gradient if ``states`` have one.

        Without a gradient they are those of an evaluation, or stand above what is frozen.
        """
        if states.stop_gradient:
            return self.forward(states, *others, **named)
        forward = _Twice(self.forward)
        # Reentrant, Paddle's other way, lets DataParallel see a gradient before it is whole.
        return recompute(forward, states, *others, use_reentrant=False, preserve_rng_state=False, **named)


class _Twice:
    """A forward pass whose second run has the random numbers of the first, and leaves no trace of it."""

    def __init__(self, forward: Callable):
        self.forward, self.numbers = forward, None

    def __call__(self, *given, **named):
        if self.numbers is None:
            self.numbers = paddle.get_rng_state()
            return self.forward(*given, **named)
        later = paddle.get_rng_state()
        paddle.set_rng_state(self.numbers)
        try:
            return self.forward(*given, **named)
        finally:
            paddle.set_rng_state(later)
