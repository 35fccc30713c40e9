"""The job of pair training: what a step and an evaluation of the classifier are."""

import math
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import paddle

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint, Content
from ernie_pair.engine.hooks import StopRequests
from ernie_pair.engine.lr_schedule import learning_rate
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.data.encoded_pairs import Batch, EncodedPairs
from ernie_pair.pair.metrics import find_single_class, measure
from ernie_pair.pair.model.classifier import PairClassifier
from ernie_pair.pair.model.logits import logits_of
from ernie_pair.pair.step.amp import AmpContext, loss_scale_of
from ernie_pair.pair.step.data_parallel import DataParallel
from ernie_pair.pair.step.fgm import Fgm
from ernie_pair.pair.step.loss import PairLoss
from ernie_pair.pair.step.optimizer import new_optimizer
from ernie_pair.pair.step.zero2 import Zero2
from ernie_pair.pair.train import job_state
from ernie_pair.processes.world import seed_of

MeasureFunction = Callable[[np.ndarray, np.ndarray], Dict[str, float]]


class StepSums(NamedTuple):
    """Sums over the micro-batches of a step, to be all-reduced over the ranks."""

    loss: float = 0.0  # each pass counted by the weight of its rows
    divergence: float = 0.0  # the same
    accuracy: float = 0.0
    adversarial_loss: float = 0.0
    tokens: int = 0
    places: int = 0


class Evaluated(NamedTuple):
    """The logits float32 [N, C] and the labels int64 [N] of an evaluation."""

    logits: np.ndarray
    labels: np.ndarray


class PairJob:
    """The job of pair training; satisfies ``ernie_pair.engine.run.Job``.

    ``valid`` are the rows that ``evaluate("valid")`` measures with ``measure``; ``total_steps`` bounds the
    schedule; ``class_weights``: float32 [C], None where all classes count the same. ``beginning`` says in
    words what the initial weights of ``model`` are. Without ``vocab_file`` a checkpoint holds the weights
    alone, and does not load as a model.
    """

    def __init__(
        self,
        config: PairConfig,
        model: PairClassifier,
        valid: EncodedPairs,
        total_steps: int,
        process_group,
        *,
        measure: MeasureFunction = measure,
        class_weights: Optional[np.ndarray] = None,
        beginning: str = "start from the model as given",
        vocab_file: Optional[Path] = None,
    ):
        self.config, self.model, self.process_group, self.measure = config, model, process_group, measure
        self.total_steps, self.splits = total_steps, {"valid": valid}
        self.rates = rates_of(config, total_steps)
        self.precision, self.loss_scale = AmpContext(config, model), loss_scale_of(config)
        self.optimizer = open_optimizer(config, model)
        self.parallel = _parallel(config, model, self.optimizer, process_group)
        self.loss = PairLoss(config.rdrop_alpha, class_weights)
        self.fgm = _fgm(config, model, process_group)
        self.beginning, self.vocab_file, self.skipped_updates = beginning, vocab_file, 0
        self.evaluated: Optional[Evaluated] = None  # the last time
        self.single_class: Optional[int] = None  # that `evaluate` got for all rows, though the labels differ

    def load_initial_weights(self) -> str:
        """Return in words what the initial weights are: the model has been given them already."""
        return self.beginning

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step: warm-up along a line, then as --lr_scheduler_type says.

        Where it falls, it reaches 0 one step after the last.
        """
        return learning_rate(step, **self.rates)

    def step(self, micro_batches: List[Batch], number: int, stop: StopRequests) -> Dict[str, float]:
        """Move the weights once and return the metrics of the step.

        loss and accuracy are means over the micro-batches of all ranks. With --on_nan skip the weights stay
        where the loss or the gradient is not finite, and with a loss scale where the gradient is not: on all
        ranks alike. The schedule does not count such a step.
        """
        rate = self.learning_rate(number - self.skipped_updates)
        self.model.train()
        weight = self._weight_of_all(micro_batches)
        sums = self._run_micro_batches(micro_batches, number, weight)
        if self.loss_scale is not None:
            self.parallel.unscale(self.loss_scale)
        *sums, squares, heard = self.process_group.all_reduce_now(
            np.array([*sums, self.parallel.squares(), stop.local()])
        )
        stop.set_total(heard)
        metrics = self._metrics(StepSums(*sums), len(micro_batches), weight)
        norm = math.sqrt(squares)
        self._move(rate, metrics["loss"], norm)
        metrics.update(learning_rate=rate, gradient_norm=norm)
        if self.loss_scale is not None:
            metrics["loss_scale"] = self.loss_scale.value
        if self.loss_scale is not None or self.config.on_nan == "skip":
            metrics["skipped_updates"] = self.skipped_updates
        return metrics

    def _weight_of_all(self, batches: List[Batch]) -> float:
        """Return what the rows of the global batch count; known before the first forward pass."""
        if self.loss.class_weights is None:
            return float(len(batches) * self.process_group.size)
        mine = sum(map(self.loss.weight_of, batches))
        return float(self.process_group.all_reduce_now(np.array([mine]))[0]) or 1.0

    def _run_micro_batches(self, batches: List[Batch], step: int, weight: float) -> StepSums:
        """Run forward and backward over the micro-batches; with FGM once more, the embedding moved."""
        if self.fgm is None:
            return self._go_through(batches, step, weight)
        sums = self._go_through(batches, step, weight, is_last_round=False)
        with self.fgm.applied():
            moved = self._go_through(batches, step, weight, first_pass=len(batches))
        return sums._replace(adversarial_loss=moved.loss)

    def _go_through(
        self,
        batches: List[Batch],
        step: int,
        weight_of_all: float,
        first_pass: int = 0,
        is_last_round: bool = True,
    ) -> StepSums:
        """Run forward and backward over the micro-batches, and return their sums on this rank.

        Dropout is drawn anew in every pass; the gradients add up to that of the mean over all rows.
        """
        sums = np.zeros(len(StepSums._fields))
        for number, batch in enumerate(batches):
            paddle.seed(seed_of(self.config.seed, self.process_group.rank, step, first_pass + number))
            weight = self.loss.weight_of(batch)
            with self.parallel.passing(is_last_round and number == len(batches) - 1):
                answer = self.loss(self._forward, batch)
                part = weight * self.parallel.loss_factor / weight_of_all
                loss = answer.loss if part == 1.0 else answer.loss * part
                (loss if self.loss_scale is None else self.loss_scale.scale(loss)).backward()
            tokens = np.count_nonzero(batch.input_ids != self.model.pad_id)
            sums += StepSums(
                loss=weight * float(answer.loss),
                divergence=weight * answer.divergence,
                accuracy=answer.accuracy,
                tokens=tokens,
                places=batch.input_ids.size,
            )
        return StepSums(*sums)

    def _forward(self, input_ids, token_type_ids):
        with self.precision.casting():
            return self.parallel.forward(input_ids, token_type_ids)

    def _move(self, rate: float, loss: float, norm: float) -> None:
        is_sound = math.isfinite(norm) or (self.loss_scale is None and self.config.on_nan == "stop")
        if self.config.on_nan == "skip":
            is_sound = is_sound and math.isfinite(loss)
        if is_sound:
            self.parallel.step(rate)
        else:
            self.skipped_updates += 1
        if self.loss_scale is not None:
            self.loss_scale.judge(is_sound)
        self.parallel.clear()

    def _metrics(self, sums: StepSums, num_batches: int, weight: float) -> Dict[str, float]:
        metrics = {
            "loss": sums.loss / weight,
            "accuracy": sums.accuracy / (num_batches * self.process_group.size),
            "padding_share": 1 - sums.tokens / sums.places,
        }
        if self.loss.rdrop_alpha:
            metrics["divergence"] = sums.divergence / weight
        if self.fgm is not None:
            metrics["adversarial_loss"] = sums.adversarial_loss / weight
        return {name: float(value) for name, value in metrics.items()}

    def evaluate(self, split: str) -> Dict[str, float]:
        """Return the metrics that ``measure`` gives of ``split``.

        Every row counts the same there, whatever the class weights.
        """
        rows = self.splits[split]
        with self.precision.casting():
            logits = logits_of(self.model, rows, self.config.batch_size, self.process_group)
        self.evaluated = Evaluated(logits, rows.known_labels)
        self.single_class = find_single_class(logits, rows.known_labels)
        return self.measure(logits, rows.known_labels)

    def state_files(self) -> Iterator[Tuple[str, Content]]:
        """Iterate over (name, content) of the checkpoint files of this rank; see `job_state`."""
        return job_state.state_files(self)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore a checkpoint, all ranks together. Raises CheckpointError with nothing set."""
        job_state.restore(self, checkpoint)


def open_optimizer(config: PairConfig, model: PairClassifier) -> paddle.optimizer.AdamW:
    """Return the optimizer of a run, over the weights of ``model`` that are not frozen."""
    clip = paddle.nn.ClipGradByGlobalNorm(config.grad_clip) if config.grad_clip else None
    return new_optimizer(model, config, multi_precision=config.narrows_weights, grad_clip=clip)


def rates_of(config: PairConfig, total_steps: int) -> Dict[str, Any]:
    """Return the schedule of a run, as keyword arguments of ``learning_rate``. Raises InputError."""
    return {
        "max_lr": config.learning_rate,
        "min_lr": 0.0,
        "warmup_steps": config.count_warmup_steps(total_steps),
        "decay_steps": total_steps + 1,
        "style": config.lr_scheduler_type,
    }


def _parallel(config: PairConfig, model: PairClassifier, optimizer, process_group):
    if config.sharding == "none":
        return DataParallel(model, optimizer, process_group)
    return Zero2(
        model, optimizer, process_group, offload=config.sharding_offload, weight_decay=config.weight_decay
    )


def _fgm(config: PairConfig, model: PairClassifier, process_group) -> Optional[Fgm]:
    if not config.fgm_epsilon:
        return None
    return Fgm(model.encoder.embeddings.word_embeddings.weight, config.fgm_epsilon, process_group.average)
