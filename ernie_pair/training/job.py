"""The step of a training in the dynamic graph, and the content of its checkpoints.

model.safetensors                       the weights, under structured names
distillation.safetensors                what is trained along, and is no part of the model
config.json, vocab.txt, tokenizer_config.json    with them it loads as a model
optimizer.safetensors                   the state of each, `classifier.weight.moment1`, and the loss scale
optimizer-00000-of-00002.safetensors    with --sharding: a process's part; the first's has the scale
"""

import math
from abc import ABC, abstractmethod
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np
import paddle
from paddle.optimizer.lr import LRScheduler

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint, Content
from ernie_pair.core.errors import InputError
from ernie_pair.kernels.adamw import FusedAdamW
from ernie_pair.models.networks.encoders import TRAINING_ONLY, EncoderModel, is_token_in
from ernie_pair.models.networks.kernel_path import constant_weights, seed_dropout
from ernie_pair.runtime.processes.world import seed_of
from ernie_pair.training.data_parallel import DataParallel, Zero2
from ernie_pair.training.hooks import NoStop, StopRequests
from ernie_pair.training.loop import learning_rate
from ernie_pair.training.optimizer import (
    FINITE,
    INFINITE,
    SCALE,
    AmpContext,
    LossScale,
    move_if_sound,
    new_optimizer,
    refuse_other_state,
)
from ernie_pair.training.recompute import num_frozen_layers
from ernie_pair.training.run_flags import TrainingFlags
from ernie_pair.training.step_work import DeferredMetrics, EncoderSize, count_classifier, count_encoder
from ernie_pair.weights.half_tensors import widen_tensors
from ernie_pair.weights.parameter_names import match_parameters
from ernie_pair.weights.weight_files import Arrays

MODEL_FILE, ANY_OPTIMIZER = "model.safetensors", "optimizer*.safetensors"
BESIDE_FILE = f"{TRAINING_ONLY}.safetensors"
SCALE_STATE = (SCALE, FINITE, INFINITE)


class LossParts(NamedTuple):
    """The loss of one micro-batch as a tensor with its graph, and numbers for the log, on the device."""

    loss: paddle.Tensor  # its mean over the rows, each counted by its weight
    numbers: paddle.Tensor  # float32 [K], the loss first; `TaskJob.names` names them
    rows: int  # that were asked, with two passes of a pair each twice


class Pass(NamedTuple):
    """The numbers of a pass over one micro-batch; ``weight``: what its rows count in the loss."""

    on_device: paddle.Tensor
    rows: int
    weight: float = 1.0
    tokens: float = 0
    padded_tokens: float = 0
    flops: float = 0
    is_adversarial: bool = False  # of FGM, whose work is that of the pass before it


class WaitingStep(NamedTuple):
    """A step whose numbers have not been read yet.

    ``batches`` are held until then: a GPU may not have read them yet. ``squares``: what this rank adds to the
    squared norm of the gradient, [1] where the device has it; 0.0 where nobody asked. ``whole``: what all
    passes of all ranks count.
    """

    metrics: DeferredMetrics
    batches: list
    passes: list[Pass]
    squares: Union[float, paddle.Tensor]
    has_norm: bool
    whole: float
    rate: float


class StepOperations:
    """Counts the operations of training ``model``; frozen layers pass forward alone.

    ``passes``: how often a step lets each row pass; ``num_classes``: of the head, 0: there is none;
    ``first_token``: whether the head reads the first token alone.
    """

    def __init__(
        self, config: TrainingFlags, model, passes: int = 1, num_classes: int = 0, first_token: bool = False
    ):
        spec = model.spec
        self.size = EncoderSize(spec.num_layers, spec.hidden_size, spec.intermediate_size)
        frozen = num_frozen_layers(config, spec.num_layers) or 0
        self.trained = self.size._replace(layers=spec.num_layers - frozen)
        self.passes, self.num_classes, self.first_token = passes, num_classes, first_token

    def count(self, batch: int, length: int) -> int:
        """Return the operations of one micro-batch of ``batch`` rows of ``length`` tokens."""
        read = batch if self.first_token else None
        forward, trained = (count_encoder(size, batch, length, read) for size in (self.size, self.trained))
        head = count_classifier(self.size, batch, self.num_classes) if self.num_classes else 0
        return self.passes * (forward + head + 2 * (trained + head))


class TaskJob(ABC):
    """The steps of ``model``; satisfies ``ernie_pair.training.loop.Job``.

    ``total_steps`` bounds the schedule. ``beginning`` says in words what the initial weights are.
    Without ``vocab_file`` a checkpoint holds the weights alone, and does not load as a model. ``optimizer``,
    ``scheduler``: of the user's own, None: those of the flags; the scheduler is one of Paddle's, at its first
    step. ``operations`` counts those of a micro-batch, see `StepOperations`.
    """

    names: Sequence[str] = ("loss",)  # of the numbers of a pass

    def __init__(
        self,
        config: Any,
        model: Any,
        total_steps: int,
        process_group,
        *,
        beginning: str = "start from the model as given",
        vocab_file: Optional[Path] = None,
        optimizer: Optional[paddle.optimizer.Optimizer] = None,
        scheduler: Optional[LRScheduler] = None,
        operations: Any = None,
    ):
        self.config, self.model, self.process_group = config, model, process_group
        self.total_steps, self.beginning, self.vocab_file = total_steps, beginning, vocab_file
        self.scheduler, self._scheduler_steps = scheduler, 0  # taken so far
        self._first_rate = {} if scheduler is None else dict(scheduler.state_dict())
        self._first_epoch = 0 if scheduler is None else scheduler.last_epoch
        self.rates: Optional[dict[str, Any]] = None  # keyword arguments of ``learning_rate``
        if not scheduler:
            self.rates = {
                "max_lr": config.learning_rate,
                "min_lr": 0.0,
                "warmup_steps": config.count_warmup_steps(total_steps),
                "decay_steps": total_steps + 1,
                "style": config.lr_scheduler_type,
            }
        self.precision = AmpContext(config, model)
        self.loss_scale = LossScale(config) if config.scales_loss else None
        self.optimizer = open_optimizer(config, model) if optimizer is None else optimizer
        self.parallel: Any  # a DataParallel, or a Zero2
        shared = model, self.optimizer, process_group
        if getattr(config, "sharding", "none") == "none":
            self.parallel = DataParallel(*shared, widens_sums=config.narrows_weights)
        else:
            self.parallel = Zero2(*shared, widens_sums=config.narrows_weights)
        self.operations = operations or StepOperations(config, model)
        self.skipped_updates = 0
        # Whether the numbers of a step decide, on the host, whether the weights move.
        self.judges = self.loss_scale is not None or config.on_nan == "skip"
        self._reads_each_step = config.sync_freq_on(config.device) == 1
        self._waiting: list[WaitingStep] = []
        self._stop: StopRequests = NoStop()  # that of the last step
        self._has_entered = False
        # Told the events within a step, and the rows of each batch of an evaluation; see `PairCallback`.
        self.on_event: Callable[[str], None] = lambda event: None
        self.on_batch: Optional[Callable[[int], None]] = None

    @abstractmethod
    def loss_of(self, batch) -> LossParts:
        """Return the loss of a micro-batch, whose logits are those of ``forward``."""

    @abstractmethod
    def evaluate(self, split: str) -> dict[str, float]:
        """Return the metrics of ``split``, equal on every rank; `read` first."""

    def more_files(self) -> Iterator[tuple[str, Content]]:
        """Yield (name, content) of what a kind of training adds to a checkpoint; on rank 0."""
        return iter(())

    def placer(self) -> Optional[Callable[[list], list]]:
        """Return what a thread does with the micro-batches of the next step; None: nothing."""
        return None

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

    def step(self, micro_batches: list, number: int, stop: StopRequests) -> Mapping[str, float]:
        """Move the weights once and return the metrics of the step, means over the rows of all ranks.

        With --on_nan skip the weights stay where the loss or the gradient is not finite, and with a loss
        scale where the gradient is not: on all ranks alike. The schedule does not count such a step.
        gradient_norm is there in steps that are logged, and where something goes by it.
        """
        rate = self.learning_rate(number - self.skipped_updates)
        self.enter_training()
        with constant_weights(self.model):  # FGM moves none of the layers
            passes, whole = self.run_micro_batches(micro_batches, number)
        if self.loss_scale is not None:
            self.parallel.unscale(self.loss_scale)
        is_logged = number % self.config.logging_freq == 0 or number == self.total_steps
        has_norm = self.judges or is_logged
        squares = self.parallel.squares() if has_norm else 0.0
        metrics, self._stop = DeferredMetrics(self.read), stop
        self._waiting.append(WaitingStep(metrics, micro_batches, passes, squares, has_norm, whole, rate))
        if self.process_group.size == 1:
            stop.set_total(stop.local())
        if self.judges:
            self.read()
            return {**metrics, **move_if_sound(self, rate, metrics["loss"], metrics["gradient_norm"])}
        is_known = has_norm and self.process_group.rank == 0 and isinstance(squares, float)
        self.on_event("on_pre_optimizer_step")
        self.parallel.step(rate, math.sqrt(squares) if is_known else None)
        self.on_event("on_optimizer_step")
        self.parallel.clear()
        if self._reads_each_step:
            self.read()
        return metrics

    def enter_training(self) -> None:
        """Set training mode where something, an evaluation for example, has left it: it visits all layers."""
        if not (self._has_entered and self.model.training):
            self.model.train()
            self._has_entered = True

    def weight_of(self, batch) -> float:
        """Return what a micro-batch counts among others of its size."""
        return 1.0

    def weight_of_all(self, batches: list) -> float:
        """Return what the rows of the global batch count; known before the first forward pass."""
        return float(len(batches) * self.process_group.size)

    def run_micro_batches(self, batches: list, number: int) -> tuple[list[Pass], float]:
        """Run forward and backward over the micro-batches; return the passes, and what all ranks count."""
        whole = self.weight_of_all(batches)
        return self.go_through(batches, number, whole), whole

    def go_through(
        self, batches: list, step: int, whole: float, first_pass: int = 0, is_last_round: bool = True
    ) -> list[Pass]:
        """Run forward and backward over the micro-batches, and return what is known of each.

        Dropout is drawn anew in every pass; the gradients add up to that of the mean over all rows.
        """
        passes = []
        for place, batch in enumerate(batches):
            self.seed_pass(step, first_pass + place)
            weight = self.weight_of(batch)
            with self.parallel.passing(is_last_round and place == len(batches) - 1):
                answer = self.loss_of(batch)
                self.backward(answer.loss, weight, whole)
            if place < len(batches) - 1:
                self.on_event("on_substep_end")
            passes.append(Pass(answer.numbers, answer.rows, weight, *self.work_of(batch)))
        return passes

    def work_of(self, batch) -> tuple[int, int, int]:
        """Return tokens, tokens including padding, and operations on the tokens of a micro-batch."""
        lengths = is_token_in(batch.input_ids, self.model.pad_id).sum(axis=1)
        alike = zip(*np.unique(lengths, return_counts=True))
        flops = sum(self.operations.count(int(rows), int(length)) for length, rows in alike)
        return int(lengths.sum()), batch.input_ids.size, flops

    def seed_pass(self, step: int, number: int) -> None:
        """Let the next forward pass draw the dropout of pass ``number``, from 0, of a step."""
        seed_dropout(self.model, seed_of(self.config.seed, self.process_group.rank, step, number))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return what the model returns in training: of ids and types int64 [B, S] the logits [B, C]."""
        with self.precision.casting():
            return self.parallel.forward(*inputs, **named)

    def backward(self, loss: paddle.Tensor, weight: float, weight_of_all: float) -> None:
        """Add gradients of ``loss``, the mean of rows that count ``weight`` of ``weight_of_all``."""
        part = weight * self.parallel.loss_factor / weight_of_all
        loss = loss if part == 1.0 else loss * part
        (loss if self.loss_scale is None else self.loss_scale.scale(loss)).backward()

    def read(self) -> None:
        """Set the metrics of all steps that wait, by one copy from the device and one sum over the ranks."""
        steps, self._waiting = self._waiting, []
        if not steps:
            return
        added = self.process_group.all_reduce_now(np.append(self._own_sums(steps), self._stop.local()))
        self._stop.set_total(added[-1])
        for step, sums in zip(steps, added[:-1].reshape(len(steps), -1).tolist()):
            *numbers, tokens, padded_tokens, flops, squares = sums
            metrics = self.metrics_of(step, numbers)
            metrics["padding_share"] = 1 - tokens / padded_tokens
            metrics.update(tokens=tokens, padded_tokens=padded_tokens, flops=flops, learning_rate=step.rate)
            if step.has_norm:
                metrics["gradient_norm"] = math.sqrt(squares)
            step.metrics.set(metrics)

    def _own_sums(self, steps: list[WaitingStep]) -> np.ndarray:
        """Return the sums of this rank, float64 [steps * N]: of the numbers, of the work, of squares."""
        numbers = [one.on_device for step in steps for one in step.passes]
        squares = [step.squares for step in steps if isinstance(step.squares, paddle.Tensor)]
        with paddle.no_grad():
            flat = paddle.concat([*numbers, *(each.reshape([1]) for each in squares)]).numpy()
        width = numbers[0].shape[0]
        rows = iter(flat[: width * len(numbers)].reshape(-1, width).astype(np.float64))
        rest = iter(flat[width * len(numbers) :])
        found = []
        for step in steps:
            sums = self.sums_of(step.passes, [next(rows) for _ in step.passes])
            work = np.zeros(3)
            for one in step.passes:
                if not one.is_adversarial:
                    work += (one.tokens, one.padded_tokens, one.flops)
            of_norm = float(next(rest)) if isinstance(step.squares, paddle.Tensor) else step.squares
            found.append([*sums, *work, of_norm])
        return np.array(found, np.float64).ravel()

    def sums_of(self, passes: list[Pass], numbers: list[np.ndarray]) -> np.ndarray:
        """Return the sums of a step over the passes of this rank; ``numbers`` float64 [K] of each."""
        total = np.zeros(len(numbers[0]))
        for one, row in zip(passes, numbers):
            total += one.weight * row
        return total

    def metrics_of(self, step: WaitingStep, sums: list[float]) -> dict[str, float]:
        """Return the metrics of a step of the sums over all ranks."""
        return {name: value / step.whole for name, value in zip(self.names, sums)}

    def state_files(self) -> Iterator[tuple[str, Content]]:
        """Yield (name, content) of the checkpoint files of this rank; the names differ between the ranks."""
        if self.process_group.rank == 0:
            tensors = self.model.saved_tensors()
            beside = {name: p for name, p in tensors.items() if name.startswith(f"{TRAINING_ONLY}.")}
            yield MODEL_FILE, widen_tensors({name: p for name, p in tensors.items() if name not in beside})
            if beside:
                yield BESIDE_FILE, widen_tensors(beside)
            if self.vocab_file is not None:
                yield from self.model.files_beside(self.vocab_file, self.config.max_seq_len).items()
        yield from self.parallel.files({} if self.loss_scale is None else self.loss_scale.arrays())
        if self.process_group.rank == 0:
            yield from self.more_files()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore what any number of ranks wrote; all is matched first. Raises CheckpointError."""
        weights: Arrays = {}
        for name in (MODEL_FILE, BESIDE_FILE):
            if name == MODEL_FILE or name in checkpoint.files:
                weights.update(checkpoint.arrays(name))
        chosen = match_parameters(self.model.saved_tensors(), weights, f"{checkpoint.folder}/{MODEL_FILE}")
        parts = sorted(name for name in checkpoint.files if fnmatch(name, ANY_OPTIMIZER))
        where = f"{checkpoint.folder}/{parts[0] if len(parts) == 1 else ANY_OPTIMIZER}"
        state: Arrays = {}
        for name in parts:
            state.update(checkpoint.arrays(name))
        # The loss scale may be switched on by --allow_change: then it starts afresh.
        scale = {name: state.pop(name) for name in SCALE_STATE if name in state}
        refuse_other_state(self.model, self.optimizer, state, where)
        self.skipped_updates = checkpoint.state().skipped_updates
        self.model.set(chosen)
        self.parallel.restore(state, where)
        if self.loss_scale is not None and len(scale) == len(SCALE_STATE):
            self.loss_scale.restore(scale)


def open_optimizer(config: TrainingFlags, model: EncoderModel) -> paddle.optimizer.AdamW:
    """Return the optimizer of a run, over the weights of ``model`` that are not frozen."""
    clip = paddle.nn.ClipGradByGlobalNorm(config.grad_clip) if config.grad_clip else None
    if model.fused_state is None:
        return new_optimizer(model, config, multi_precision=config.narrows_weights, grad_clip=clip)
    optimizer = new_optimizer(model, config, grad_clip=clip, kind=FusedAdamW)
    optimizer.threads = model.fused_state.threads
    return optimizer
