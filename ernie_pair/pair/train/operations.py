"""The floating-point operations of a training step of a pair classifier."""

from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import paddle

from data_tools.files.errors import InputError
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.networks.plain_model import PlainModel
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.data.encoded_pairs import Batch
from ernie_pair.runtime.paddle_version import why_programs_do_not_train
from ernie_pair.train.step.recompute import num_frozen_layers
from ernie_pair.train.step_work import DeferredMetrics, EncoderSize, count_classifier, count_encoder


class StepOperations:
    """Counts the operations of training ``model`` as ``config`` says.

    R-Drop and --symmetric let every pair pass twice, FGM every batch. Frozen layers pass forward alone.
    """

    def __init__(self, config: PairConfig, model: PairClassifier):
        spec = model.spec
        self.size = EncoderSize(spec.num_layers, spec.hidden_size, spec.intermediate_size)
        self.trained = self.size._replace(
            layers=spec.num_layers - (num_frozen_layers(config, spec.num_layers) or 0)
        )
        self.passes = config.passes_of_a_pair
        self.num_classes, self.first_token_only = model.num_classes, model.pooling == "cls"

    def count(self, batch: int, length: int) -> int:
        """Return the operations of one micro-batch of ``batch`` pairs of ``length`` tokens."""
        forward, trained = (
            count_encoder(size, batch, length, batch if self.first_token_only else None)
            for size in (self.size, self.trained)
        )
        head = count_classifier(self.size, batch, self.num_classes)
        return self.passes * (forward + head + 2 * (trained + head))


class PlainOperations:
    """Estimates the operations of training a layer of the user's own: two per weight and token forward.

    Twice as many for the gradients of what is trained. Products of states, as in attention, are not counted.
    """

    def __init__(self, config: PairConfig, model: PlainModel):
        trained = model.num_product_weights(trained_only=True)
        self.of_a_token = config.passes_of_a_pair * (2 * model.num_product_weights() + 4 * trained)

    def count(self, batch: int, length: int) -> int:
        """Return the operations of one micro-batch of ``batch`` pairs of ``length`` tokens."""
        return batch * length * self.of_a_token


def operations_of(config: PairConfig, model: Union[PairClassifier, PlainModel]):
    """Return what counts the operations of a step of ``model``."""
    return (PlainOperations if isinstance(model, PlainModel) else StepOperations)(config, model)


ON_DEVICE = 3  # the numbers of every pass that its forward computes; `PairLoss.parts` come behind


class PassNumbers(NamedTuple):
    """The numbers of a pass over one micro-batch.

    ``on_device``: float32 [3 + parts], its loss, its divergence, how many of its ``rows`` were predicted
    right, and the parts of its loss. ``weight``: what its rows count in the loss; see `PairLoss`.
    """

    on_device: paddle.Tensor
    rows: int
    weight: float
    tokens: int = 0
    padded_tokens: int = 0
    flops: int = 0


class StepSums(NamedTuple):
    """Sums over the micro-batches of a step, to be all-reduced over the ranks."""

    loss: float = 0.0  # each pass counted by the weight of its rows
    divergence: float = 0.0  # the same
    accuracy: float = 0.0
    adversarial_loss: float = 0.0
    tokens: float = 0
    padded_tokens: float = 0
    flops: float = 0
    squares: float = 0.0  # of the gradient


class WaitingStep(NamedTuple):
    """A step whose numbers have not been read yet.

    ``batches`` are held until then: a GPU may not have read them yet. ``adversarial``: the passes of FGM.
    ``squares``: what this rank adds to the squared norm of the gradient, [1] where the device has it; 0.0
    where nobody asked. ``weight``: what the rows of all ranks count.
    """

    metrics: DeferredMetrics
    batches: List[Batch]
    passes: List[PassNumbers]
    adversarial: List[PassNumbers]
    squares: Union[float, paddle.Tensor]
    has_norm: bool
    weight: float
    rate: float


def read_steps(steps: Sequence[WaitingStep]) -> np.ndarray:
    """Return the `StepSums` of this rank, and the sums of the parts of the loss, each as the loss is.

    float64 [steps, 8 + parts], with one copy from the device.
    """
    parts = [part.on_device for step in steps for part in (*step.passes, *step.adversarial)]
    squares = [step.squares for step in steps if isinstance(step.squares, paddle.Tensor)]
    with paddle.no_grad():
        numbers = paddle.concat([*parts, *(each.reshape([1]) for each in squares)]).numpy()
    width = parts[0].shape[0]
    rows = iter(numbers[: width * len(parts)].reshape(-1, width))
    rest = iter(numbers[width * len(parts) :])
    found = []
    for step in steps:
        sums, of_parts = _sum_passes(step.passes, rows, width)
        moved, _ = _sum_passes(step.adversarial, rows, width)
        own = float(next(rest)) if isinstance(step.squares, paddle.Tensor) else step.squares
        found.append([*sums._replace(adversarial_loss=moved.loss, squares=own), *of_parts])
    return np.array(found, np.float64)


def _sum_passes(passes: Iterable[PassNumbers], rows, width: int) -> Tuple[StepSums, np.ndarray]:
    sums, of_parts = np.zeros(len(StepSums._fields)), np.zeros(width - ON_DEVICE)
    for one in passes:
        loss, divergence, right, *parts = map(float, next(rows))
        of_parts += one.weight * np.array(parts)
        sums += StepSums(
            loss=one.weight * loss,
            divergence=one.weight * divergence,
            accuracy=right / one.rows,
            tokens=one.tokens,
            padded_tokens=one.padded_tokens,
            flops=one.flops,
        )
    return StepSums(*sums), of_parts


ANY_SHAPE = [None, None]
COMPARED = ("ernie", "ernie_gram", "bert")  # families, by the tests


def compile_forward(config: PairConfig, model: PairClassifier, num_processes: int) -> Optional[Callable]:
    """Return the forward pass of ``model`` as a program, or None if the dynamic graph is used.

    ``model`` itself computes on as before. Raises InputError if --to_static true asks for what cannot be.
    """
    is_asked_for = config.to_static is True
    if not is_asked_for and (config.to_static is False or config.device == "cpu"):
        return None
    reason = why_not_compiled(config, model, num_processes)
    if reason and is_asked_for:
        raise InputError(f"--to_static true: {reason}; leave it out")
    if reason:
        return None
    spec = [paddle.static.InputSpec(ANY_SHAPE, "int64", name) for name in ("input_ids", "token_type_ids")]
    return paddle.jit.to_static(model.forward, input_spec=spec, full_graph=True)


def why_not_compiled(config: PairConfig, model: PairClassifier, num_processes: int) -> str:
    """Return why the forward pass of ``model`` cannot be compiled; empty: it can."""
    if type(model) is not PairClassifier:
        name = model.family if isinstance(model, PlainModel) else type(model).__name__
        return f"{name} is a class of your own, whose Python may do what a program cannot"
    if model.family not in COMPARED:
        return f"{model.family} is untested; tested are {', '.join(COMPARED)}"
    if model.fused_state is not None:
        return "the fused kernels of the CPU are no ops of Paddle's; add --kernels plain"
    if config.use_recompute:
        return "--use_recompute true runs a layer twice, with the random numbers of the first time"
    if config.use_amp:
        return "in a program --use_amp true casts by other rules, which is untested"
    if num_processes > 1:
        return f"summing its gradients over processes is untested, and there are {num_processes}"
    return why_programs_do_not_train()


class PinnedBatch(Batch):
    """A micro-batch whose arrays lie in pinned memory too.

    ``pinned``: {id of an array of the batch: its copy}, which lives as long as the batch does.
    """

    pinned: Dict[int, paddle.Tensor]

    @classmethod
    def of(cls, batch: Batch) -> "PinnedBatch":
        """Return ``batch`` with copies of its arrays in pinned memory."""
        made = cls(*batch)
        place = paddle.CUDAPinnedPlace()
        made.pinned = {
            id(array): paddle.to_tensor(array, place=place) for array in batch if array is not None
        }
        return made

    def to_device(self, array: np.ndarray) -> paddle.Tensor:
        """Return an array of this batch as a tensor on the GPU, without waiting for its copy."""
        return self.pinned[id(array)].cuda(blocking=False)
