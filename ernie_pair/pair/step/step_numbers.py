"""The numbers of a step for the log, which stay on the device until they are read."""

from typing import Iterable, List, NamedTuple, Sequence, Tuple, Union

import numpy as np
import paddle

from ernie_pair.engine.readings import DeferredMetrics
from ernie_pair.pair.data.encoded_pairs import Batch

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
