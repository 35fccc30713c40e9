"""What the fused layers of one model share."""

import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Iterator, Set

from ernie_pair.kernels.c_interface import PRECISIONS
from ernie_pair.kernels.dropout_seed import DropoutSeed

logger = logging.getLogger(__name__)


@dataclass
class ModelState:
    """How a model is computed, and which forward pass it is in.

    ``weights_epoch`` increases whenever the weights may have changed; then packed copies of them are made
    again. Paddle cannot tell: its optimizers and ``set_value`` do not change ``inplace_version``.
    """

    precision: str
    threads: int
    seed: DropoutSeed = field(default_factory=DropoutSeed)
    weights_epoch: int = 0
    _is_constant: bool = False
    _told: Set[str] = field(default_factory=set)

    @property
    def precision_code(self) -> int:
        """Return the precision as fused.h numbers it."""
        return PRECISIONS[self.precision]

    def begin_pass(self) -> None:
        """Begin a forward pass of the model."""
        self.seed.begin_pass()
        if not self._is_constant:
            self.weights_epoch += 1

    def tell_once(self, reason: str) -> None:
        """Log that Paddle computes a part of the model from now on, and why; each reason once."""
        if reason not in self._told:
            self._told.add(reason)
            logger.warning("a part of the model is left to the plain kernels of Paddle: %s", reason)

    @contextmanager
    def constant_weights(self) -> Iterator[None]:
        """Promise that the weights of the layers stay as they are within this context."""
        self.weights_epoch += 1
        before, self._is_constant = self._is_constant, True
        try:
            yield
        finally:
            self._is_constant = before
