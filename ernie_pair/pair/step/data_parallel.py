"""Plain data parallelism: every rank holds all gradients and the whole state of the optimizer."""

from contextlib import contextmanager
from typing import Iterable, Iterator, Tuple

import paddle

from ernie_pair.device.paddle_patches.gradients import squared_norm
from ernie_pair.pair.step.optimizer import optimizer_arrays, restore_optimizer
from ernie_pair.weights.weight_files import Arrays

OPTIMIZER_FILE = "optimizer.safetensors"


class DataParallel:
    """Data parallelism over one rank, or over several that average gradients in the last pass of a step."""

    def __init__(self, model, optimizer, process_group):
        self.model, self.optimizer, self.process_group = model, optimizer, process_group
        self.forward = process_group.share_gradients(model)
        self.loss_factor = process_group.size  # of a process's part of the loss: Paddle divides the sum by it

    @contextmanager
    def passing(self, is_last: bool) -> Iterator[None]:
        """Wrap a pass: the gradients add up on this rank, and in the last one of a step over all ranks."""
        with self.process_group.passing(self.forward, is_last):
            yield
        if is_last:
            self.process_group.average_gradients(self.model)

    def unscale(self, loss_scale) -> None:
        """Divide the gradients by the loss scale."""
        loss_scale.unscale_(self.optimizer)

    def squares(self) -> float:
        """Return what this rank adds to the squared norm of the gradient: all of it on rank 0, else 0."""
        return squares_of(p.grad for p in self.model.parameters()) if self.process_group.rank == 0 else 0.0

    def step(self, rate: float) -> None:
        """Move the weights at the learning rate ``rate``."""
        self.optimizer.set_lr(rate)
        self.optimizer.step()

    def clear(self) -> None:
        """Clear the gradients."""
        self.optimizer.clear_grad()

    def files(self, more: Arrays) -> Iterator[Tuple[str, Arrays]]:
        """Yield (name, arrays) of the checkpoint file of rank 0, with ``more``, which all ranks have."""
        if self.process_group.rank == 0:
            yield OPTIMIZER_FILE, {**optimizer_arrays(self.model, self.optimizer), **more}

    def restore(self, arrays: Arrays, where: str) -> None:
        """Take the state of all parameters. Raises CheckpointError naming ``where``, with nothing set."""
        restore_optimizer(self.model, self.optimizer, arrays, where)


def squares_of(gradients: Iterable) -> float:
    """Return the sum of the squares of all gradients, added up in float32; None is no gradient."""
    given = [gradient for gradient in gradients if gradient is not None]
    wide = [
        gradient if gradient.dtype == paddle.float32 else gradient.astype("float32") for gradient in given
    ]
    return paddle.add_n(list(map(squared_norm, wide))).item() if wide else 0.0
