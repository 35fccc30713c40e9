"""The job of pair training: what a step and an evaluation of the classifier are."""

import math
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
import paddle
from paddle.optimizer.lr import LRScheduler

from data_tools.files.errors import InputError
from ernie_pair.checkpoint.checkpoint_folder import Checkpoint, Content
from ernie_pair.kernels.adamw import FusedAdamW
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.networks.encoders import EncoderModel
from ernie_pair.models.networks.kernel_path import constant_weights, logits_of, seed_dropout
from ernie_pair.models.temperature import CALIBRATION, Calibration, calibration_bytes, mean_of_orders
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.data.encoded_pairs import Batch, EncodedPairs
from ernie_pair.pair.targets.metrics import find_single_class
from ernie_pair.pair.targets.target_metrics import MeasureFunction, measure_of, refuse_unknown
from ernie_pair.pair.train import job_state
from ernie_pair.pair.train.loss import Fgm, PairLoss, loss_of
from ernie_pair.pair.train.operations import (
    PassNumbers,
    PinnedBatch,
    StepSums,
    WaitingStep,
    compile_forward,
    operations_of,
    read_steps,
)
from ernie_pair.runtime.processes.world import seed_of
from ernie_pair.train.hooks import NoStop, StopRequests
from ernie_pair.train.loop import learning_rate
from ernie_pair.train.step.amp import AmpContext, loss_scale_of, move_if_sound
from ernie_pair.train.step.data_parallel import DataParallel
from ernie_pair.train.step.optimizer import OptimizerFlags, ScheduleFlags, new_optimizer
from ernie_pair.train.step.zero2 import Zero2
from ernie_pair.train.step_work import DeferredMetrics

Passes = List[PassNumbers]


class Evaluated(NamedTuple):
    """The logits float32 [N, C] and the labels [N] of an evaluation."""

    logits: np.ndarray
    labels: np.ndarray
    groups: Optional[np.ndarray] = None  # int64 [N], the query of each row, where candidates are ranked


class PairJob:
    """The job of pair training; satisfies ``ernie_pair.train.run.Job``.

    ``valid`` are the rows that ``evaluate("valid")`` measures with ``measure``, None: by what the model is
    for. ``total_steps`` bounds the schedule. ``class_weights``: float32 [C], None where all classes count the
    same. ``beginning`` says in words what the initial weights of ``model`` are. Without ``vocab_file`` a
    checkpoint holds the weights alone, and does not load as a model. ``loss``: None is that of the flags.
    ``optimizer``, ``scheduler``: of the user's own, None: those of the flags; the scheduler is one of
    Paddle's, at its first step. ``own_evaluation`` replaces that of ``valid``, and returns its metrics.
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
        beginning: str = "start from the model as given",
        vocab_file: Optional[Path] = None,
        loss: Optional[PairLoss] = None,
        optimizer: Optional[paddle.optimizer.Optimizer] = None,
        scheduler: Optional[LRScheduler] = None,
        own_evaluation: Optional[Callable[[], Dict[str, float]]] = None,
    ):
        self.config, self.model, self.process_group = config, model, process_group
        self.scheduler, self.own_evaluation = scheduler, own_evaluation
        self.on_event: Callable[[str], None] = lambda event: None  # told those in a step, see `PairCallback`
        self._scheduler_steps = 0  # taken so far
        self._first_rate = {} if scheduler is None else dict(scheduler.state_dict())
        self._first_epoch = 0 if scheduler is None else scheduler.last_epoch
        self.measure = measure or measure_of(model.spec.labels, valid.groups)
        self.total_steps, self.splits = total_steps, {"valid": valid}
        self.rates = None if scheduler else rates_of(config, total_steps)
        self.precision, self.loss_scale = AmpContext(config, model), loss_scale_of(config)
        self.optimizer = open_optimizer(config, model) if optimizer is None else optimizer
        self.parallel = _parallel(config, model, self.optimizer, process_group)
        compiled = compile_forward(config, model, process_group.size)
        if compiled is not None:
            self.parallel.forward = compiled
        self.is_compiled = compiled is not None
        self.loss = loss or loss_of(model.spec.labels, config, class_weights)
        self.fgm = _fgm(config, model, process_group)
        self.operations = operations_of(config, model)
        self.beginning, self.vocab_file, self.skipped_updates = beginning, vocab_file, 0
        # Whether the numbers of a step decide, on the host, whether the weights move.
        self.judges = self.loss_scale is not None or config.on_nan == "skip"
        self._reads_each_step = config.sync_freq_on(config.device) == 1
        self._waiting: List[WaitingStep] = []
        self._stop: StopRequests = NoStop()  # that of the last step
        self._has_entered = False
        self.on_batch: Optional[Callable[[int], None]] = None  # told the rows of each batch of an evaluation
        self.evaluated: Optional[Evaluated] = None  # the last time
        self.single_class: Optional[int] = None  # that `evaluate` got for all rows, though the labels differ

    def load_initial_weights(self) -> str:
        """Return in words what the initial weights are: the model has been given them already."""
        return self.beginning

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step: warm-up along a line, then as --lr_scheduler_type says.

        Where it falls, it reaches 0 one step after the last. A scheduler of the user's own is moved to the
        step. Raises InputError where anybody else has moved it.
        """
        if self.scheduler is None:
            assert self.rates is not None
            return learning_rate(step, **self.rates)
        if self.scheduler.last_epoch != self._first_epoch + self._scheduler_steps:
            raise InputError(
                f"{type(self.scheduler).__name__} was moved outside of the run, which moves it once per "
                "step; leave its step() out"
            )
        if step - 1 < self._scheduler_steps:
            self.scheduler.set_state_dict(dict(self._first_rate))
            self._scheduler_steps = 0
        while self._scheduler_steps < step - 1:
            self.scheduler.step()
            self._scheduler_steps += 1
        return float(self.scheduler())

    def place(self, micro_batches: List[Batch]) -> List[Batch]:
        """Return the micro-batches of a step, on a GPU in pinned memory, from which it reads on its own.

        It touches nothing of the job: a thread may do it for the next step.
        """
        if self.config.device != "gpu" or self.loss.passes_twice:  # the rows are doubled first
            return micro_batches
        return [PinnedBatch.of(batch) for batch in micro_batches]

    def step(self, micro_batches: List[Batch], number: int, stop: StopRequests) -> Mapping[str, float]:
        """Move the weights once and return the metrics of the step.

        loss and accuracy, or what `PairLoss.metric` names, are means over the micro-batches of all ranks.
        With --on_nan skip the weights stay where the loss or the gradient is not finite, and with a loss
        scale where the gradient is not: on all ranks alike. The schedule does not count such a step.
        gradient_norm is there in steps that are logged, and where something goes by it.
        """
        rate = self.learning_rate(number - self.skipped_updates)
        self.enter_training()
        weight = self.weight_of_all(micro_batches)
        passes, adversarial = self._run_micro_batches(micro_batches, number, weight)
        if self.loss_scale is not None:
            self.parallel.unscale(self.loss_scale)
        has_norm = self.judges or self._is_logged(number)
        squares = self.parallel.squares() if has_norm else 0.0
        metrics, self._stop = DeferredMetrics(self._read), stop
        held = (micro_batches, passes, adversarial)
        self._waiting.append(WaitingStep(metrics, *held, squares, has_norm, weight, rate))
        if self.process_group.size == 1:
            stop.set_total(stop.local())
        if self.judges:
            self._read()
            return {**metrics, **move_if_sound(self, rate, metrics["loss"], metrics["gradient_norm"])}
        is_known = has_norm and self.process_group.rank == 0 and isinstance(squares, float)
        self._move(rate, math.sqrt(squares) if is_known else None)
        if self._reads_each_step:
            self._read()
        return metrics

    def enter_training(self) -> None:
        """Set training mode where something, an evaluation for example, has left it: it visits all layers."""
        if not (self._has_entered and self.model.training):
            self.model.train()
            self._has_entered = True

    def _is_logged(self, number: int) -> bool:
        return number % self.config.logging_freq == 0 or number == self.total_steps

    def weight_of_all(self, batches: List[Batch]) -> float:
        """Return what the rows of the global batch count; known before the first forward pass."""
        if self.loss.class_weights is None:
            return float(len(batches) * self.process_group.size)
        mine = sum(map(self.loss.weight_of, batches))
        return float(self.process_group.all_reduce_now(np.array([mine]))[0]) or 1.0

    def _run_micro_batches(self, batches: List[Batch], step: int, weight: float) -> Tuple[Passes, Passes]:
        """Run forward and backward over the micro-batches; with FGM once more, the embedding moved.

        Returns the passes of both rounds, the second of which is empty without FGM.
        """
        with constant_weights(self.model):  # FGM moves none of the layers
            if self.fgm is None:
                return self._go_through(batches, step, weight), []
            passes = self._go_through(batches, step, weight, is_last_round=False)
            with self.fgm.applied():
                return passes, self._go_through(batches, step, weight, first_pass=len(batches))

    def _go_through(
        self,
        batches: List[Batch],
        step: int,
        weight_of_all: float,
        first_pass: int = 0,
        is_last_round: bool = True,
    ) -> Passes:
        """Run forward and backward over the micro-batches, and return what is known of each.

        Dropout is drawn anew in every pass; the gradients add up to that of the mean over all rows.
        """
        passes = []
        for number, batch in enumerate(batches):
            self.seed_pass(step, first_pass + number)
            weight = self.loss.weight_of(batch)
            to_device = batch.to_device if isinstance(batch, PinnedBatch) else paddle.to_tensor
            with self.parallel.passing(is_last_round and number == len(batches) - 1):
                answer = self.loss(self.forward, batch, to_device)
                self.backward(answer.loss, weight, weight_of_all)
            if number < len(batches) - 1:
                self.on_event("on_substep_end")
            shape = batch.input_ids.shape
            tokens = np.count_nonzero(batch.input_ids != self.model.pad_id)
            counts = (tokens, batch.input_ids.size, self.operations.count(*shape))
            passes.append(PassNumbers(answer.numbers, answer.rows, weight, *counts))
        return passes

    def seed_pass(self, step: int, number: int) -> None:
        """Let the next forward pass draw the dropout of pass ``number``, from 0, of a step."""
        seed_dropout(self.model, seed_of(self.config.seed, self.process_group.rank, step, number))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return what the model returns in training: of ids and types int64 [B, S] the logits [B, C]."""
        with self.precision.casting():
            return self.parallel.forward(*inputs, **named)

    def backward(self, loss: paddle.Tensor, weight: float, weight_of_all: float) -> None:
        """Add the gradients of a micro-batch to those of the mean over the rows of all ranks.

        ``weight`` is what its rows count, of ``weight_of_all``; ``loss`` is their mean.
        """
        part = weight * self.parallel.loss_factor / weight_of_all
        loss = loss if part == 1.0 else loss * part
        (loss if self.loss_scale is None else self.loss_scale.scale(loss)).backward()

    def _move(self, rate: float, norm: Optional[float] = None) -> None:
        self.on_event("on_pre_optimizer_step")
        self.parallel.step(rate, norm)
        self.on_event("on_optimizer_step")
        self.parallel.clear()

    def _read(self) -> None:
        """Set the metrics of all steps that wait, by one copy from the device and one sum over the ranks."""
        steps, self._waiting = self._waiting, []
        if not steps:
            return
        own = np.append(read_steps(steps).ravel(), self._stop.local())
        added = self.process_group.all_reduce_now(own)
        self._stop.set_total(added[-1])
        for step, row in zip(steps, added[:-1].reshape(len(steps), -1).tolist()):
            sums, parts = StepSums(*row[: len(StepSums._fields)]), row[len(StepSums._fields) :]
            step.metrics.set(self._metrics(step, sums, dict(zip(self.loss.parts, parts))))

    def _metrics(self, step: WaitingStep, sums: StepSums, parts: Mapping[str, float]) -> Dict[str, float]:
        metrics = {"loss": sums.loss / step.weight}
        if self.loss.metric:
            metrics[self.loss.metric] = sums.accuracy / (len(step.passes) * self.process_group.size)
        metrics["padding_share"] = 1 - sums.tokens / sums.padded_tokens
        metrics.update({name: getattr(sums, name) for name in ("tokens", "padded_tokens", "flops")})
        metrics.update({name: value / step.weight for name, value in parts.items()})
        if self.loss.has_divergence:
            metrics["divergence"] = sums.divergence / step.weight
        if self.fgm is not None:
            metrics["adversarial_loss"] = sums.adversarial_loss / step.weight
        metrics["learning_rate"] = step.rate
        if step.has_norm:
            metrics["gradient_norm"] = math.sqrt(sums.squares)
        return metrics

    def evaluate(self, split: str) -> Dict[str, float]:
        """Return the metrics that ``measure`` gives of ``split``.

        Every row counts the same there, whatever the class weights.
        """
        self._read()
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

    def state_files(self) -> Iterator[Tuple[str, Content]]:
        """Iterate over (name, content) of the checkpoint files of this rank; see `job_state`."""
        yield from job_state.state_files(self)
        loads_as_a_model = self.process_group.rank == 0 and self.vocab_file is not None
        if loads_as_a_model and self.config.scored_as != "none":
            yield CALIBRATION, calibration_bytes(Calibration(symmetric=self.config.scored_as))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore a checkpoint, all ranks together. Raises CheckpointError with nothing set."""
        job_state.restore(self, checkpoint)


def open_optimizer(config: OptimizerFlags, model: EncoderModel) -> paddle.optimizer.AdamW:
    """Return the optimizer of a run, over the weights of ``model`` that are not frozen."""
    clip = paddle.nn.ClipGradByGlobalNorm(config.grad_clip) if config.grad_clip else None
    if model.fused_state is None:
        return new_optimizer(model, config, multi_precision=config.narrows_weights, grad_clip=clip)
    optimizer = new_optimizer(model, config, grad_clip=clip, kind=FusedAdamW)
    optimizer.threads = model.fused_state.threads
    return optimizer


def rates_of(config: ScheduleFlags, total_steps: int) -> Dict[str, Any]:
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
        return DataParallel(model, optimizer, process_group, widens_sums=config.widens_sums)
    return Zero2(
        model,
        optimizer,
        process_group,
        offload=config.sharding_offload,
        weight_decay=config.weight_decay,
        widens_sums=config.widens_sums,
    )


def _fgm(config: PairConfig, model: PairClassifier, process_group) -> Optional[Fgm]:
    if not config.fgm_epsilon:
        return None
    return Fgm(model.encoder.embeddings.word_embeddings.weight, config.fgm_epsilon, process_group.average)
