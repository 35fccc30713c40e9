"""What a step of pairs costs, and how it may run: operations, a compiled forward pass, pinned memory."""

from typing import Callable, Dict, Optional, Union

import numpy as np
import paddle

from data_tools.files.errors import InputError
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.networks.plain_model import PlainModel
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.data.encoded_pairs import Batch
from ernie_pair.runtime.paddle_version import why_programs_do_not_train
from ernie_pair.train.job import StepOperations


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
    """Return what counts the operations of a step of ``model``.

    R-Drop and --symmetric let every pair pass twice, FGM every batch.
    """
    if isinstance(model, PlainModel):
        return PlainOperations(config, model)
    return StepOperations(
        config, model, config.passes_of_a_pair, model.num_classes, first_token=model.pooling == "cls"
    )


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
