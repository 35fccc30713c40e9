"""The job of pair training: what a step and an evaluation of the classifier are, and what a step costs."""

from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import numpy as np
import paddle

from data_tools.files.errors import InputError
from ernie_pair.checkpoint.checkpoint_folder import Content
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.networks.kernel_path import logits_of
from ernie_pair.models.networks.plain_model import PlainModel
from ernie_pair.models.temperature import CALIBRATION, Calibration, calibration_bytes, mean_of_orders
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.data.encoded_pairs import Batch, EncodedPairs
from ernie_pair.pair.targets.metrics import find_single_class
from ernie_pair.pair.targets.target_metrics import MeasureFunction, measure_of, refuse_unknown
from ernie_pair.pair.train.loss import Fgm, PairLoss, loss_of
from ernie_pair.runtime.paddle_version import why_programs_do_not_train
from ernie_pair.train.job import LossParts, Pass, StepOperations, TaskJob, WaitingStep

LOSS, DIVERGENCE, RIGHT, PARTS = range(4)  # places among the numbers of a pass, see `LossParts`


class Evaluated(NamedTuple):
    """The logits float32 [N, C] and the labels [N] of an evaluation."""

    logits: np.ndarray
    labels: np.ndarray
    groups: Optional[np.ndarray] = None  # int64 [N], the query of each row, where candidates are ranked


class PairJob(TaskJob):
    """The job of pair training; see `TaskJob`, whose arguments ``more`` are.

    ``valid`` are the rows that ``evaluate("valid")`` measures with ``measure``, None: by what the model is
    for. ``class_weights``: float32 [C], None where all classes count the same. ``loss``: None is that of the
    flags. ``own_evaluation`` replaces that of ``valid``, and returns its metrics.
    """

    def __init__(
        self,
        config: PairConfig,
        model: PairClassifier,
        valid: EncodedPairs,
        total_steps: int,
        process_group,
        *,
        measure: Optional[MeasureFunction] = None,
        class_weights: Optional[np.ndarray] = None,
        loss: Optional[PairLoss] = None,
        own_evaluation: Optional[Callable[[], Dict[str, float]]] = None,
        vocab_file: Optional[Path] = None,
        **more,
    ):
        operations = operations_of(config, model)
        super().__init__(
            config, model, total_steps, process_group, vocab_file=vocab_file, operations=operations, **more
        )
        self.own_evaluation, self.splits = own_evaluation, {"valid": valid}
        self.measure = measure or measure_of(model.spec.labels, valid.groups)
        compiled = compile_forward(config, model, process_group.size)
        if compiled is not None:
            self.parallel.forward = compiled
        self.is_compiled = compiled is not None
        self.loss = loss or loss_of(model.spec.labels, config, class_weights)
        self.fgm: Optional[Fgm] = None
        if config.fgm_epsilon:
            words = model.encoder.embeddings.word_embeddings.weight
            self.fgm = Fgm(words, config.fgm_epsilon, process_group.average)
        self.evaluated: Optional[Evaluated] = None  # the last time
        self.single_class: Optional[int] = None  # that `evaluate` got for all rows, though the labels differ

    def placer(self) -> Optional[Callable[[List[Batch]], List[Batch]]]:
        """Return what lays the next micro-batches into pinned memory, from which a GPU reads on its own."""
        return self.place if self.config.device == "gpu" else None

    def place(self, micro_batches: List[Batch]) -> List[Batch]:
        """Return the micro-batches of a step in pinned memory; nothing of the job changes."""
        if self.loss.passes_twice:  # the rows are doubled first
            return micro_batches
        return [PinnedBatch.of(batch) for batch in micro_batches]

    def loss_of(self, batch: Batch) -> LossParts:
        """Return the loss of a micro-batch, as `PairLoss` computes it."""
        to_device = batch.to_device if isinstance(batch, PinnedBatch) else paddle.to_tensor
        return self.loss(self.forward, batch, to_device)

    def weight_of(self, batch: Batch) -> float:
        """Return what the rows of a micro-batch count; 1 without class weights."""
        return self.loss.weight_of(batch)

    def weight_of_all(self, batches: List[Batch]) -> float:
        """Return what the rows of the global batch count; known before the first forward pass."""
        if self.loss.class_weights is None:
            return super().weight_of_all(batches)
        mine = sum(map(self.loss.weight_of, batches))
        return float(self.process_group.all_reduce_now(np.array([mine]))[0]) or 1.0

    def run_micro_batches(self, batches: List[Batch], number: int) -> Tuple[List[Pass], float]:
        """Run forward and backward over the micro-batches; with FGM once more, the embedding moved."""
        if self.fgm is None:
            return super().run_micro_batches(batches, number)
        whole = self.weight_of_all(batches)
        passes = self.go_through(batches, number, whole, is_last_round=False)
        with self.fgm.applied():
            moved = self.go_through(batches, number, whole, first_pass=len(batches))
        return [*passes, *(one._replace(is_adversarial=True) for one in moved)], whole

    def sums_of(self, passes: List[Pass], numbers: List[np.ndarray]) -> np.ndarray:
        """Return the sums over the passes of this rank: loss, divergence, accuracy, parts; FGM's loss."""
        total = np.zeros(len(numbers[0]) + 1)
        for one, row in zip(passes, numbers):
            if one.is_adversarial:
                total[-1] += one.weight * row[LOSS]
                continue
            of_rows = one.weight * row
            of_rows[RIGHT] = row[RIGHT] / one.rows
            total[:-1] += of_rows
        return total

    def metrics_of(self, step: WaitingStep, sums: List[float]) -> Dict[str, float]:
        """Return loss and accuracy, or what `PairLoss.metric` names, and the parts of the loss."""
        metrics = {"loss": sums[LOSS] / step.whole}
        if self.loss.metric:
            metrics[self.loss.metric] = sums[RIGHT] / (len(step.batches) * self.process_group.size)
        metrics.update({name: value / step.whole for name, value in zip(self.loss.parts, sums[PARTS:])})
        if self.loss.has_divergence:
            metrics["divergence"] = sums[DIVERGENCE] / step.whole
        if self.fgm is not None:
            metrics["adversarial_loss"] = sums[-1] / step.whole
        return metrics

    def evaluate(self, split: str) -> Dict[str, float]:
        """Return the metrics that ``measure`` gives of ``split``.

        Every row counts the same there, whatever the class weights.
        """
        self.read()
        if self.own_evaluation is not None:
            metrics = self.own_evaluation()
            refuse_unknown(self.config.best_metric, metrics)
            return metrics
        rows = self.splits[split]
        asked = rows if rows.orders is None else rows.orders
        with self.precision.casting():
            logits = logits_of(self.model, asked, self.config.batch_size, self.process_group, self.on_batch)
        logits = logits if rows.orders is None else mean_of_orders(logits)
        self.evaluated = Evaluated(logits, rows.known_labels, rows.groups)
        if self.model.spec.labels.has_classes:
            self.single_class = find_single_class(logits, rows.known_labels)
        return self.measure(logits, rows.known_labels)

    def more_files(self) -> Iterator[Tuple[str, Content]]:
        """Yield calibration.json with --symmetric average: the model is asked as it learns."""
        if self.vocab_file is not None and self.config.scored_as != "none":
            yield CALIBRATION, calibration_bytes(Calibration(symmetric=self.config.scored_as))


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
