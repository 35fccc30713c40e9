"""The dropout seed of the fused kernels: one number per forward pass, without generator state."""

import numpy as np


class DropoutSeed:
    """The number of the current forward pass; the same for all layers of a model.

    The training loop sets it before a pass, from run, rank, step and micro-batch. Passes for which nobody
    sets it still differ from each other.
    """

    def __init__(self) -> None:
        self._set, self._passes, self.value = 0, 0, 0

    def set(self, seed: int) -> None:
        """Set the seed of the next forward pass, 32 bits."""
        self._set, self._passes = seed, 0

    def begin_pass(self) -> None:
        """Begin a forward pass: the first uses the seed that was set, later ones other seeds."""
        entropy = np.random.SeedSequence([self._set, self._passes])
        self.value = int(entropy.generate_state(1)[0]) if self._passes else self._set
        self._passes += 1
