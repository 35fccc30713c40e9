"""Data parallelism, plain or with ZeRO stage 2: who holds which gradients, and which state of the optimizer.

Plain, every rank holds all of it. With ZeRO stage 2 by Paddle's group sharding, each parameter has an owner,
who alone keeps its gradient and its state, moves it, and sends it to all. Every backward pass sums the
gradients at their owners, and each process takes its part of the loss.

With offload the owner keeps its parameters' float32 masters, gradients and moments in the CPU's memory, as
one flat tensor. Paddle updates that tensor as if it were a parameter: it has no name of a norm or a bias,
so Paddle does not decay it, and `_Offloaded.decay` does.
"""

from contextlib import contextmanager, nullcontext
from typing import ContextManager, Iterable, Iterator, NamedTuple, Optional, Sequence, Union

import numpy as np
import paddle

from data_tools.files.errors import InputError
from ernie_pair.kernels.adamw import FusedAdamW
from ernie_pair.models.networks.plain_model import PlainModel
from ernie_pair.runtime.paddle_patches.optimizer_state import (
    masters_of,
    parameters_of,
    scheduler_in,
    slot_name,
    squared_norm,
    state_of,
)
from ernie_pair.runtime.paddle_patches.process_groups import offloaded_of, owners_of, shard, sums_in_float32
from ernie_pair.train.optimizer import (
    BETAS,
    MASTER,
    MOMENTS,
    decays,
    optimizer_arrays,
    restore_optimizer,
    state_shapes,
    trained_parameters,
)
from ernie_pair.weights.weight_files import Arrays, refuse_mismatch

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

    def files(self, more: Arrays) -> Iterator[tuple[str, Arrays]]:
        """Yield (name, arrays) of the checkpoint file of rank 0, with ``more``, which all ranks have."""
        if self.process_group.rank == 0:
            yield OPTIMIZER_FILE, {**optimizer_arrays(self.model, self.optimizer), **more}

    def restore(self, arrays: Arrays, where: str) -> None:
        """Take the state of all parameters. Raises CheckpointError naming ``where``, with nothing set."""
        restore_optimizer(self.model, self.optimizer, arrays, where)


def squares_of(gradients: Iterable) -> Squares:
    """Return the sum of the squares of all gradients, float32 []; None is no gradient. 0.0: there is none."""
    known = [gradient for gradient in gradients if gradient is not None]
    wide = [each if each.dtype == paddle.float32 else each.astype("float32") for each in known]
    return paddle.add_n(list(map(squared_norm, wide))).reshape([]) if wide else 0.0


PART_FILE = "optimizer-{part:05d}-of-{parts:05d}.safetensors"


class Zero2:
    """ZeRO stage 2, with the methods of `DataParallel`; ``optimizer`` is Paddle's own, without a wrapper.

    ``widens_sums``: gradients in half precision are summed in float32, and rounded once. Raises InputError
    for a single process.
    """

    loss_factor = 1  # Paddle adds up what the processes have

    def __init__(
        self, model, optimizer, process_group, offload: bool, weight_decay: float, widens_sums: bool = False
    ):
        if process_group.size == 1:
            raise InputError(
                "--sharding stage2 splits the state over several processes, and this is one; launch with "
                "--gpus 0,1, or use --sharding none"
            )
        self.model, self.inner, self.process_group = model, optimizer, process_group
        self.widens_sums = widens_sums
        self.forward, self.optimizer = shard(model, optimizer, offload)
        owners = owners_of(self.optimizer)
        mine = {n: p for n, p in trained_parameters(model).items() if owners[p.name] == process_group.rank}
        self.state = _Offloaded(self.optimizer, mine, weight_decay) if offload else _OnDevice(optimizer, mine)

    def passing(self, is_last: bool) -> ContextManager:
        """Return the context of a pass: every backward pass sums its gradients at their owners."""
        return sums_in_float32() if self.widens_sums else nullcontext()

    def unscale(self, loss_scale) -> None:
        """Divide the gradients that this rank owns by the loss scale.

        (GroupShardedScaler misses the first step of an offloaded state.)
        """
        with self.state.on_its_device():
            loss_scale.unscale_(self.inner)

    def squares(self) -> float:
        """Return what this rank adds to the squared norm of the gradient: that of what it owns."""
        with self.state.on_its_device():
            return float(squares_of(self.state.gradients()))

    def step(self, rate: float, norm: Optional[float] = None) -> None:
        """Move the weights at the learning rate ``rate``; Paddle finds the norm of the gradient itself."""
        self.optimizer.set_lr(rate)
        self.state.decay(rate)
        self.optimizer.step()

    def clear(self) -> None:
        """Clear the gradients."""
        self.optimizer.clear_grad()

    def files(self, more: Arrays) -> Iterator[tuple[str, Arrays]]:
        """Yield (name, arrays) of this rank's part of the state; rank 0 has ``more`` too."""
        arrays = self.state.arrays(self.model)
        name = PART_FILE.format(part=self.process_group.rank, parts=self.process_group.size)
        yield name, {**arrays, **(more if self.process_group.rank == 0 else {})}

    def restore(self, arrays: Arrays, where: str) -> None:
        """Take this rank's part of the state, however it was split. CheckpointError: nothing is set."""
        refuse_mismatch(state_shapes(self.model, self.inner), arrays, where)
        self.state.restore(self.model, arrays, where)


class _OnDevice:
    """The state of the parameters ``mine``, on the GPU and in Paddle's own optimizer."""

    def __init__(self, optimizer, mine: dict[str, paddle.Tensor]):
        self.optimizer, self.mine = optimizer, mine

    def on_its_device(self) -> ContextManager:
        return nullcontext()

    def gradients(self) -> Iterator:
        return (parameter.grad for parameter in self.mine.values())

    def decay(self, rate: float) -> None:
        """Do nothing: Paddle's optimizer decays the parameters."""

    def arrays(self, model) -> Arrays:
        return optimizer_arrays(model, self.optimizer, self.mine)

    def restore(self, model, arrays: Arrays, where: str) -> None:
        restore_optimizer(model, self.optimizer, arrays, where, self.mine)


class FlatSlice(NamedTuple):
    """Where a parameter lies in a flat tensor."""

    start: int
    shape: tuple[int, ...]

    @property
    def inside(self) -> slice:
        """Return the slice of the flat tensor that holds the parameter."""
        return slice(self.start, self.start + int(np.prod(self.shape)))


class _Offloaded:
    """The state of the parameters ``mine`` in the CPU's memory, as one flat tensor of masters."""

    def __init__(self, sharded, mine: dict[str, paddle.Tensor], weight_decay: float):
        self.optimizer, self.buffer, masters, gaps = offloaded_of(sharded)
        self.weight_decay = weight_decay
        names = {parameter.name: name for name, parameter in mine.items()}
        self.masters = {names[master.name]: master for master in masters}
        self.places = places_of({name: tuple(m.shape) for name, m in self.masters.items()}, gaps)

    @contextmanager
    def on_its_device(self) -> Iterator[None]:
        device = paddle.get_device()
        paddle.set_device("cpu")
        try:
            yield
        finally:
            paddle.set_device(device)

    def gradients(self) -> list:
        return [self.buffer.grad]

    def decay(self, rate: float) -> None:
        """Decay the masters as AdamW does before it moves them."""
        with self.on_its_device(), paddle.no_grad():
            for name in filter(decays, self.masters):
                self.masters[name].scale_(1.0 - rate * self.weight_decay)

    def arrays(self, model) -> Arrays:
        flat = {MASTER: self.buffer.numpy()}
        for slot in MOMENTS:
            kept = self._kept(slot)
            flat[slot] = np.zeros_like(flat[MASTER]) if kept is None else kept.numpy()
        arrays = {
            f"{name}.{slot}": array
            for slot, whole in flat.items()
            for name, array in cut_flat(whole, self.places).items()
        }
        for slot, first in BETAS.items():
            kept = self._kept(slot)
            power = np.full(1, first, np.float32) if kept is None else kept.numpy()
            arrays.update({f"{name}.{slot}": power for name in self.places})
        wanted = state_shapes(model, self.optimizer)  # no masters of norms, which are not narrow
        return {name: array for name, array in arrays.items() if name in wanted}

    def restore(self, model, arrays: Arrays, where: str) -> None:
        weights = dict(model.named_parameters())
        # The master of a parameter that is not in half precision is its own, already restored.
        masters = {name: arrays.get(f"{name}.{MASTER}") for name in self.places}
        parts = {
            MASTER: {name: weights[name].numpy() if kept is None else kept for name, kept in masters.items()}
        }
        for slot in MOMENTS:
            parts[slot] = {name: arrays[f"{name}.{slot}"] for name in self.places}
        size = self.buffer.shape[0]
        flat = {slot: lay_flat(values, self.places, size) for slot, values in parts.items()}
        flat.update({slot: arrays[f"{next(iter(self.places))}.{slot}"] for slot in BETAS})
        with self.on_its_device(), paddle.no_grad():
            self.buffer.set_value(flat.pop(MASTER))
            tensors = {slot: paddle.to_tensor(array) for slot, array in flat.items()}
        state = {slot_name(self.optimizer, self.buffer, slot): tensor for slot, tensor in tensors.items()}
        self.optimizer.set_state_dict({**state, "master_weights": masters_of(self.optimizer)})

    def _kept(self, slot: str):
        return state_of(self.optimizer).get(slot_name(self.optimizer, self.buffer, slot))


def places_of(shapes: dict[str, tuple[int, ...]], gaps: Sequence[int]) -> dict[str, FlatSlice]:
    """Return the places of parameters that lie one after another, each with a gap behind it."""
    places, start = {}, 0
    for (name, shape), gap in zip(shapes.items(), gaps):
        places[name] = FlatSlice(start, shape)
        start = places[name].inside.stop + gap
    return places


def cut_flat(flat: np.ndarray, places: dict[str, FlatSlice]) -> Arrays:
    """Return the part of ``flat`` [size] at each place, in the shape of its parameter, not copied."""
    return {name: flat[place.inside].reshape(place.shape) for name, place in places.items()}


def lay_flat(arrays: Arrays, places: dict[str, FlatSlice], size: int) -> np.ndarray:
    """Return a flat float32 [size] array with each of ``arrays`` at its place; the gaps are 0."""
    flat = np.zeros(size, np.float32)
    for name, place in places.items():
        flat[place.inside] = arrays[name].ravel()
    return flat
