"""What the dropout of the fused kernels is drawn by: a number per forward pass, and no generator's state."""

import numpy as np


class DropoutSeed:
    """The number of the forward pass that is going on; the same for all layers of a model.

    Whoever trains sets it before a pass, by run, rank, step and micro-batch. Passes that nobody sets it for
    differ from each other all the same.
    """

    def __init__(self) -> None:
        self._set, self._passes, self.value = 0, 0, 0

    def set(self, seed: int) -> None:
        """Let the next forward pass draw by ``seed``, 32 bits."""
        self._set, self._passes = seed, 0

    def begin_pass(self) -> None:
        """Begin a forward pass: the first draws by the number that was set, the next by others."""
        entropy = np.random.SeedSequence([self._set, self._passes])
        self.value = int(entropy.generate_state(1)[0]) if self._passes else self._set
        self._passes += 1
