"""Data parallelism, plain or with ZeRO stage 2: who holds which gradients, and which state of the optimizer.

Plain, every rank holds all of it. With ZeRO stage 2 by Paddle's group sharding, each parameter has an owner,
who alone keeps its gradient and its state, moves it, and sends it to all. Every backward pass sums the
gradients at their owners, and each process takes its part of the loss.
"""

from contextlib import contextmanager, nullcontext
from typing import ContextManager, Iterable, Iterator, Optional, Union

import paddle

from ernie_pair.core.errors import InputError
from ernie_pair.kernels.adamw import FusedAdamW
from ernie_pair.models.networks.custom_model import CustomModel
from ernie_pair.runtime.paddle_patches.optimizer_state import parameters_of, scheduler_in, squared_norm
from ernie_pair.runtime.paddle_patches.process_groups import owners_of, reduce_in_float32, shard
from ernie_pair.training.optimizer import (
    optimizer_arrays,
    restore_optimizer,
    state_shapes,
    trained_parameters,
)
from ernie_pair.weights.weight_files import Arrays, check_match

OPTIMIZER_FILE = "optimizer.safetensors"
GradNormSq = Union[float, paddle.Tensor]


class DataParallel:
    """Data parallelism over one rank, or over several that average gradients in the last pass of a step.

    ``fp32_sums``: they average those in half precision as float32. Which parameters of a layer of the
    user's own get a gradient is unknown: these are averaged when the backward pass is over.
    """

    def __init__(self, model, optimizer, process_group, *, fp32_sums: bool = False):
        self.model, self.optimizer, self.process_group = model, optimizer, process_group
        is_own = isinstance(model, CustomModel)
        if is_own and process_group.size > 1:
            model.check_no_running_statistics()
        self.forward = process_group.share_gradients(model, fp32_sums, afterwards=is_own)
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

    def grad_norm_sq(self) -> GradNormSq:
        """Return what this rank adds to the squared norm of the gradient: all of it on rank 0, else 0.

        A tensor [1] has not been computed yet.
        """
        if self.process_group.rank != 0:
            return 0.0
        if isinstance(self.optimizer, FusedAdamW):
            return self.optimizer.squares()
        return sum_squares(p.grad for p in self.model.parameters())

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

    def files(self, more: Arrays) -> Iterator[tuple[str, Arrays]]:
        """Yield (name, arrays) of the checkpoint file of rank 0, with ``more``, which all ranks have."""
        if self.process_group.rank == 0:
            yield OPTIMIZER_FILE, {**optimizer_arrays(self.model, self.optimizer), **more}

    def restore(self, arrays: Arrays, where: str) -> None:
        """Take the state of all parameters. Raises CheckpointError naming ``where``, with nothing set."""
        restore_optimizer(self.model, self.optimizer, arrays, where)


def sum_squares(gradients: Iterable) -> GradNormSq:
    """Return the sum of the squares of all gradients, float32 []; None is no gradient. 0.0: there is none."""
    known = [gradient for gradient in gradients if gradient is not None]
    wide = [each if each.dtype == paddle.float32 else each.astype("float32") for each in known]
    return paddle.add_n(list(map(squared_norm, wide))).reshape([]) if wide else 0.0


PART_FILE = "optimizer-{part:05d}-of-{parts:05d}.safetensors"


class Zero2:
    """ZeRO stage 2, with the methods of `DataParallel`; ``optimizer`` is Paddle's own, without a wrapper.

    ``fp32_sums``: gradients in half precision are summed in float32, and rounded once. Raises InputError
    for a single process.
    """

    loss_factor = 1  # Paddle adds up what the processes have

    def __init__(self, model, optimizer, process_group, fp32_sums: bool = False):
        if process_group.size == 1:
            raise InputError(
                "--sharding stage2 splits the state over several processes, and this is one; launch with "
                "--gpus 0,1, or use --sharding none"
            )
        self.model, self.inner, self.process_group = model, optimizer, process_group
        self.fp32_sums = fp32_sums
        self.forward, self.optimizer = shard(model, optimizer)
        owners = owners_of(self.optimizer)
        rank, trained = process_group.rank, trained_parameters(model)
        self.own = {name: parameter for name, parameter in trained.items() if owners[parameter.name] == rank}

    def passing(self, is_last: bool) -> ContextManager:
        """Return the context of a pass: every backward pass sums its gradients at their owners."""
        return reduce_in_float32() if self.fp32_sums else nullcontext()

    def unscale(self, loss_scale) -> None:
        """Divide the gradients that this rank owns by the loss scale."""
        loss_scale.unscale_(self.inner)

    def grad_norm_sq(self) -> float:
        """Return what this rank adds to the squared norm of the gradient: that of what it owns."""
        return float(sum_squares(parameter.grad for parameter in self.own.values()))

    def step(self, rate: float, norm: Optional[float] = None) -> None:
        """Move the weights at the learning rate ``rate``; Paddle finds the norm of the gradient itself."""
        self.optimizer.set_lr(rate)
        self.optimizer.step()

    def clear(self) -> None:
        """Clear the gradients."""
        self.optimizer.clear_grad()

    def files(self, more: Arrays) -> Iterator[tuple[str, Arrays]]:
        """Yield (name, arrays) of this rank's part of the state; rank 0 has ``more`` too."""
        arrays = optimizer_arrays(self.model, self.inner, self.own)
        name = PART_FILE.format(part=self.process_group.rank, parts=self.process_group.size)
        yield name, {**arrays, **(more if self.process_group.rank == 0 else {})}

    def restore(self, arrays: Arrays, where: str) -> None:
        """Take this rank's part of the state, however it was split. CheckpointError: nothing is set."""
        check_match(state_shapes(self.model, self.inner), arrays, where)
        restore_optimizer(self.model, self.inner, arrays, where, self.own)
