"""Plain data parallelism: every rank holds all gradients and the whole state of the optimizer."""

from contextlib import contextmanager
from typing import Iterable, Iterator, Optional, Tuple, Union

import paddle

from ernie_pair.kernels.adamw import FusedAdamW
from ernie_pair.models.networks.plain_model import PlainModel
from ernie_pair.runtime.paddle_patches.optimizer_state import parameters_of, scheduler_in, squared_norm
from ernie_pair.train.optimizer import optimizer_arrays, restore_optimizer
from ernie_pair.weights.weight_files import Arrays

OPTIMIZER_FILE = "optimizer.safetensors"
Squares = Union[float, paddle.Tensor]


class DataParallel:
    """Data parallelism over one rank, or over several that average gradients in the last pass of a step.

    ``widens_sums``: they average those in half precision as float32. Which parameters of a layer of the
    user's own get a gradient is unknown: these are averaged when the backward pass is over.
    """

    def __init__(self, model, optimizer, process_group, *, widens_sums: bool = False):
        self.model, self.optimizer, self.process_group = model, optimizer, process_group
        is_own = isinstance(model, PlainModel)
        if is_own and process_group.size > 1:
            model.refuse_running_statistics()
        self.forward = process_group.share_gradients(model, widens_sums, afterwards=is_own)
        moved = {id(parameter) for parameter in parameters_of(optimizer)}
        # Of an optimizer of the user's own: gradients that it would not clear.
        self._unmoved = [p for p in model.parameters() if not (p.stop_gradient or id(p) in moved)]
        self.loss_factor = process_group.size  # of a process's part of the loss: Paddle divides the sum by it

    @contextmanager
    def passing(self, is_last: bool) -> Iterator[None]:
        """Wrap a pass: the gradients add up on this rank, and in the last one of a step over all ranks."""
        with self.process_group.passing(self.forward, is_last):
            yield
        if is_last:
            self.process_group.average_gradients(self.model)

    def average(self) -> None:
        """Average the gradients over all ranks after passes of ``model`` itself, instead of ``forward``."""
        self.process_group.average_gradients(self.model, of_forward=False)

    def unscale(self, loss_scale) -> None:
        """Divide the gradients by the loss scale."""
        loss_scale.unscale_(self.optimizer)

    def squares(self) -> Squares:
        """Return what this rank adds to the squared norm of the gradient: all of it on rank 0, else 0.

        A tensor [1] has not been computed yet.
        """
        if self.process_group.rank != 0:
            return 0.0
        if isinstance(self.optimizer, FusedAdamW):
            return self.optimizer.squares()
        return squares_of(p.grad for p in self.model.parameters())

    def step(self, rate: float, norm: Optional[float] = None) -> None:
        """Move the weights at the learning rate ``rate``; ``norm``: of the gradient, where it is known."""
        if scheduler_in(self.optimizer) is None:
            self.optimizer.set_lr(rate)
        if isinstance(self.optimizer, FusedAdamW):
            self.optimizer.known_norm = norm
        self.optimizer.step()

    def clear(self) -> None:
        """Clear the gradients."""
        self.optimizer.clear_grad()
        for parameter in self._unmoved:
            parameter.clear_gradient()

    def files(self, more: Arrays) -> Iterator[Tuple[str, Arrays]]:
        """Yield (name, arrays) of the checkpoint file of rank 0, with ``more``, which all ranks have."""
        if self.process_group.rank == 0:
            yield OPTIMIZER_FILE, {**optimizer_arrays(self.model, self.optimizer), **more}

    def restore(self, arrays: Arrays, where: str) -> None:
        """Take the state of all parameters. Raises CheckpointError naming ``where``, with nothing set."""
        restore_optimizer(self.model, self.optimizer, arrays, where)


def squares_of(gradients: Iterable) -> Squares:
    """Return the sum of the squares of all gradients, added up in float32, [1]; None is no gradient.

    0.0 where there is none.
    """
    given = [gradient for gradient in gradients if gradient is not None]
    wide = [
        gradient if gradient.dtype == paddle.float32 else gradient.astype("float32") for gradient in given
    ]
    return paddle.add_n(list(map(squared_norm, wide))) if wide else 0.0
