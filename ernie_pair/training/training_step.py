"""The step of a training in the dynamic graph, and the content of its checkpoints.

model.safetensors                       the weights, under structured names
distillation.safetensors                what is trained along, and is no part of the model
config.json, vocab.txt, tokenizer_config.json    with them it loads as a model
optimizer.safetensors                   the state of each, `classifier.weight.moment1`, and the loss scale
optimizer-00000-of-00002.safetensors    with --sharding: a process's part; the first's has the scale
"""

import math
from abc import ABC, abstractmethod
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np
import paddle
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint, Content
from ernie_pair.core.errors import InputError
from ernie_pair.kernels.adamw import FusedAdamW
from ernie_pair.models.networks.encoders import (
    TRAINING_ONLY,
    EncoderModel,
    constant_weights,
    is_token_in,
    widen_tensors,
)
from ernie_pair.models.networks.kernel_path import seed_dropout
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import seed_of
from ernie_pair.training.data_parallel import DataParallel, Zero2
from ernie_pair.training.optimizer import (
    FINITE,
    INFINITE,
    SCALE,
    LossScale,
    autocast,
    check_optimizer_state,
    new_optimizer,
)
from ernie_pair.training.recompute import num_frozen_layers
from ernie_pair.training.run_flags import TrainingFlags
from ernie_pair.training.schedule import learning_rate
from ernie_pair.training.step_metrics import DeferredMetrics, EncoderSize, count_classifier, count_encoder
from ernie_pair.weights.parameter_names import match_parameters
from ernie_pair.weights.weight_files import Arrays

MODEL_FILE, ANY_OPTIMIZER = "model.safetensors", "optimizer*.safetensors"
BESIDE_FILE = f"{TRAINING_ONLY}.safetensors"
SCALE_STATE = (SCALE, FINITE, INFINITE)


class LossParts(NamedTuple):
    """The loss of one micro-batch as a tensor with its graph, and numbers for the log, on the device."""

    loss: paddle.Tensor  # its mean over the rows, each counted by its weight
    numbers: paddle.Tensor  # float32 [K], the loss first; `TrainingStep.names` names them
    rows: int  # that were asked, with two passes of a pair each twice


class MicroBatchResult(NamedTuple):
    """The numbers of a pass over one micro-batch; ``weight``: what its rows count in the loss."""

    numbers: paddle.Tensor  # float32 [K], on the device
    rows: int
    weight: float = 1.0
    is_adversarial: bool = False  # of FGM


class PendingStep(NamedTuple):
    """A step whose numbers have not been read yet.

    ``batches`` are held until then: a GPU may not have read them yet. ``grad_norm_sq``: what this rank adds
    to the squared norm of the gradient, [1] where the device has it; 0.0 where nobody asked.
    ``total_weight``: what all passes of all ranks count; ``work`` [3]: tokens, with padding, FLOPs.
    """

    metrics: DeferredMetrics
    batches: list
    results: list[MicroBatchResult]
    work: np.ndarray
    grad_norm_sq: Union[float, paddle.Tensor]
    has_norm: bool
    total_weight: float
    rate: float


class TrainingStep(ABC):
    """The steps of ``model``; satisfies ``ernie_pair.training.trainer.Job`` once `prepare` was called.

    ``beginning`` says in words what the initial weights are, ``source`` has the files of the vocabulary.
    """

    config: Any
    model: Any
    source: Any
    beginning: str = "start from the model as given"
    names: Sequence[str] = ("loss",)  # of the numbers of a pass
    num_classes = 0  # of the head, for the count of FLOPs
    passes_per_row = 1  # in a step
    skipped_updates = 0
    scheduler: Optional[LRScheduler] = None  # of the user's own
    # Told the events within a step, and the rows of each batch of an evaluation; see `PairCallback`.
    on_event: Callable[[str], None] = staticmethod(lambda event: None)
    on_batch: Optional[Callable[[int], Any]] = None

    def prepare(
        self,
        total_steps: int,
        process_group: Any,
        optimizer: Optional[Optimizer] = None,
        scheduler: Optional[LRScheduler] = None,
    ) -> None:
        """Open the optimizer of a run of ``total_steps``.

        ``optimizer``, ``scheduler``: of the user's own, None: those of the flags; the scheduler is one of
        Paddle's, at its first step.
        """
        config, model = self.config, self.model
        self.total_steps, self.process_group, self.scheduler = total_steps, process_group, scheduler
        self.lr_kwargs: Optional[dict[str, Any]] = None  # of `learning_rate`
        if scheduler is None:
            self.lr_kwargs = {
                "max_lr": config.learning_rate,
                "min_lr": 0.0,
                "warmup_steps": config.count_warmup_steps(total_steps),
                "decay_steps": total_steps + 1,
                "style": config.lr_scheduler_type,
            }
        else:
            self._scheduler_steps, self._first_epoch = 0, scheduler.last_epoch  # steps taken so far
            self._first_rate = dict(scheduler.state_dict())
        if config.weights_are_half:
            paddle.amp.decorate(models=model, level="O2", dtype=config.amp_dtype)
        self.loss_scale = LossScale(config) if config.scales_loss else None
        self.optimizer = open_optimizer(config, model) if optimizer is None else optimizer
        kind: Any = Zero2 if getattr(config, "sharding", "none") != "none" else DataParallel
        self.parallel = kind(model, self.optimizer, process_group, fp32_sums=config.weights_are_half)
        # Whether the numbers of a step decide, on the host, whether the weights move.
        self.checks_finite = self.loss_scale is not None or config.on_nan == "skip"
        self._pending: list[PendingStep] = []
        self._stop = StopSignals()  # that of the last step
        self._has_entered = False

    @abstractmethod
    def loss(self, batch: Any) -> LossParts:
        """Return the loss of a micro-batch; `forward` calls the model."""

    @abstractmethod
    def evaluate(self, split: str) -> dict[str, float]:
        """Return the metrics of ``split``, equal on every rank, computed within `evaluating`."""

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Read the metrics of all steps, and compute within in the precision of the run."""
        self.read()
        with self.autocast():
            yield

    def autocast(self) -> Any:
        """Return a context in which the forward pass computes in half precision where that is safe."""
        return autocast(self.config, self.config.amp_level)

    def more_files(self) -> Iterator[tuple[str, Content]]:
        """Yield (name, content) of what a kind of training adds to a checkpoint; on rank 0."""
        return iter(())

    def load_initial_weights(self) -> str:
        """Return in words what the initial weights are: the model has been given them already."""
        return self.beginning

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step: warm-up along a line, then as --lr_scheduler_type says.

        Where it falls, it reaches 0 one step after the last. A scheduler of the user's own is moved to the
        step. Raises InputError where anybody else has moved it.
        """
        if self.scheduler is None:
            assert self.lr_kwargs is not None
            return learning_rate(step, **self.lr_kwargs)
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

    def step(self, micro_batches: list, number: int, stop: StopSignals) -> Mapping[str, float]:
        """Move the weights once and return the metrics of the step, means over the rows of all ranks.

        With --on_nan skip the weights stay where the loss or the gradient is not finite, and with a loss
        scale where the gradient is not: on all ranks alike. The schedule does not count such a step.
        gradient_norm is there in steps that are logged, and where something goes by it.
        """
        rate = self.learning_rate(number - self.skipped_updates)
        self.enter_training()
        with constant_weights(self.model):  # FGM moves none of the layers
            results, total_weight = self.forward_backward(micro_batches, number)
        if self.loss_scale is not None:
            self.parallel.unscale(self.loss_scale)
        is_logged = number % self.config.logging_freq == 0 or number == self.total_steps
        has_norm = self.checks_finite or is_logged
        grad_norm_sq = self.parallel.grad_norm_sq() if has_norm else 0.0
        work = np.sum([self.count_work(batch) for batch in micro_batches], axis=0)
        metrics, self._stop = DeferredMetrics(self.read), stop
        self._pending.append(
            PendingStep(metrics, micro_batches, results, work, grad_norm_sq, has_norm, total_weight, rate)
        )
        if self.process_group.size == 1:
            stop.set_total(stop.local())
        if self.checks_finite:
            self.read()
            return {**metrics, **self.step_if_finite(rate, metrics["loss"], metrics["gradient_norm"])}
        is_known = has_norm and self.process_group.rank == 0 and isinstance(grad_norm_sq, float)
        self._move_weights(rate, math.sqrt(grad_norm_sq) if is_known else None)
        self.parallel.clear()
        if self.config.sync_freq_on(self.config.device) == 1:
            self.read()
        return metrics

    def _move_weights(self, rate: float, norm: Optional[float]) -> None:
        self.on_event("on_pre_optimizer_step")
        self.parallel.step(rate, norm)
        self.on_event("on_optimizer_step")

    def step_if_finite(self, rate: float, loss: float, norm: float) -> dict[str, float]:
        """Move the weights or skip the step, and return what is to be logged of it.

        ``loss`` and ``norm``, of the gradient, are the same on all ranks, and so is what is done: with
        --on_nan skip both have to be finite, with a loss scale the norm.
        """
        is_finite = math.isfinite(norm) and (self.config.on_nan == "stop" or math.isfinite(loss))
        if is_finite:
            self._move_weights(rate, norm)
        else:
            self.skipped_updates += 1
        self.parallel.clear()
        metrics: dict[str, float] = {}
        if self.loss_scale is not None:
            self.loss_scale.judge(is_finite)
            metrics["loss_scale"] = self.loss_scale.value
        return {**metrics, "skipped_updates": self.skipped_updates}

    def enter_training(self) -> None:
        """Set training mode where something, an evaluation for example, has left it: it visits all layers."""
        if not (self._has_entered and self.model.training):
            self.model.train()
            self._has_entered = True

    def weight_of(self, batch: Any) -> float:
        """Return what a micro-batch counts among others of its size."""
        return 1.0

    def total_weight(self, batches: list) -> float:
        """Return what the rows of the global batch count; known before the first forward pass."""
        return float(len(batches) * self.process_group.size)

    def forward_backward(self, batches: list, number: int) -> tuple[list[MicroBatchResult], float]:
        """Run forward and backward over the micro-batches; return their results, and what all ranks count."""
        total_weight = self.total_weight(batches)
        return self.run_passes(batches, number, total_weight), total_weight

    def run_passes(
        self, batches: list, step: int, total_weight: float, first: int = 0, is_last_round: bool = True
    ) -> list[MicroBatchResult]:
        """Run forward and backward over the micro-batches, the passes ``first`` and on of the step.

        Dropout is drawn anew in every pass; the gradients add up to that of the mean over all rows.
        """
        results = []
        for place, batch in enumerate(batches):
            self.seed_pass(step, first + place)
            weight = self.weight_of(batch)
            with self.parallel.passing(is_last_round and place == len(batches) - 1):
                answer = self.loss(batch)
                self.backward(answer.loss, weight * self.parallel.loss_factor / total_weight)
            if place < len(batches) - 1:
                self.on_event("on_substep_end")
            results.append(MicroBatchResult(answer.numbers, answer.rows, weight))
        return results

    def count_work(self, batch: Any) -> tuple[int, int, int]:
        """Return tokens, tokens including padding, and FLOPs on the tokens of a micro-batch."""
        lengths = is_token_in(batch.input_ids, self.model.pad_id).sum(axis=1)
        alike = zip(*np.unique(lengths, return_counts=True))
        flops = sum(self.count_flops(int(rows), int(length)) for length, rows in alike)
        return int(lengths.sum()), batch.input_ids.size, flops

    def count_flops(self, rows: int, length: int) -> int:
        """Return the FLOPs of training on rows of ``length`` tokens; frozen layers only pass forward."""
        spec = self.model.spec
        size = EncoderSize(spec.num_layers, spec.hidden_size, spec.intermediate_size)
        frozen = num_frozen_layers(self.config, spec.num_layers) or 0
        sizes = size, size._replace(layers=spec.num_layers - frozen)
        read = rows if getattr(self.model, "pooling", "") == "cls" else None  # of the last layer
        forward, trained = (count_encoder(one, rows, length, read) for one in sizes)
        head = count_classifier(size, rows, self.num_classes) if self.num_classes else 0
        return self.passes_per_row * (forward + head + 2 * (trained + head))

    def seed_pass(self, step: int, number: int) -> None:
        """Let the next forward pass draw the dropout of pass ``number``, from 0, of a step."""
        seed_dropout(self.model, seed_of(self.config.seed, self.process_group.rank, step, number))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return what the model returns in training: of ids and types int64 [B, S] the logits [B, C]."""
        with self.autocast():
            return self.parallel.forward(*inputs, **named)

    def backward(self, loss: paddle.Tensor, part: float = 1.0) -> None:
        """Add the gradients of ``part`` times ``loss``."""
        loss = loss if part == 1.0 else loss * part
        (loss if self.loss_scale is None else self.loss_scale.scale(loss)).backward()

    def read(self) -> None:
        """Set the metrics of all pending steps, by one copy from the device and one sum over the ranks."""
        steps, self._pending = self._pending, []
        if not steps:
            return
        added = self.process_group.all_reduce_now(np.append(self._sums_of_rank(steps), self._stop.local()))
        self._stop.set_total(added[-1])
        for step, sums in zip(steps, added[:-1].reshape(len(steps), -1).tolist()):
            *numbers, tokens, padded_tokens, flops, grad_norm_sq = sums
            metrics = self.metrics_of(step, numbers)
            metrics["padding_share"] = 1 - tokens / padded_tokens
            metrics.update(tokens=tokens, padded_tokens=padded_tokens, flops=flops, learning_rate=step.rate)
            if step.has_norm:
                metrics["gradient_norm"] = math.sqrt(grad_norm_sq)
            step.metrics.set(metrics)

    def _sums_of_rank(self, steps: list[PendingStep]) -> np.ndarray:
        """Return the sums of this rank, float64 [steps * N]: numbers, work and squared norm of each."""
        numbers = [one.numbers for step in steps for one in step.results]
        norms = [step.grad_norm_sq for step in steps if isinstance(step.grad_norm_sq, paddle.Tensor)]
        with paddle.no_grad():
            flat = paddle.concat([*numbers, *(each.reshape([1]) for each in norms)]).numpy()
        width = numbers[0].shape[0]
        rows = iter(flat[: width * len(numbers)].reshape(-1, width).astype(np.float64))
        rest = iter(flat[width * len(numbers) :])
        found = []
        for step in steps:
            norm = step.grad_norm_sq
            norm = float(next(rest)) if isinstance(norm, paddle.Tensor) else norm
            found.append([*self.sum_numbers(step.results, rows), *step.work, norm])
        return np.array(found, np.float64).ravel()

    def sum_numbers(self, results: list[MicroBatchResult], rows: Iterator[np.ndarray]) -> np.ndarray:
        """Return the sums of a step over the passes of this rank; ``rows`` yields float64 [K] of each."""
        return sum(one.weight * row for one, row in zip(results, rows))  # type: ignore[return-value]

    def metrics_of(self, step: PendingStep, sums: list[float]) -> dict[str, float]:
        """Return the metrics of a step of the sums over all ranks."""
        return {name: value / step.total_weight for name, value in zip(self.names, sums)}

    def state_files(self) -> Iterator[tuple[str, Content]]:
        """Yield (name, content) of the checkpoint files of this rank; the names differ between the ranks."""
        if self.process_group.rank == 0:
            tensors = self.model.saved_tensors()
            beside = {name: p for name, p in tensors.items() if name.startswith(f"{TRAINING_ONLY}.")}
            yield MODEL_FILE, widen_tensors({name: p for name, p in tensors.items() if name not in beside})
            if beside:
                yield BESIDE_FILE, widen_tensors(beside)
            yield from self.model.files_beside(self.source.vocab_file, self.config.max_seq_len).items()
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
        check_optimizer_state(self.model, self.optimizer, state, where)
        self.skipped_updates = checkpoint.state().skipped_updates
        self.model.set(chosen)
        self.parallel.restore(state, where)
        if self.loss_scale is not None and len(scale) == len(SCALE_STATE):
            self.loss_scale.restore(scale)


def open_optimizer(config: TrainingFlags, model: EncoderModel) -> paddle.optimizer.AdamW:
    """Return the optimizer of a run, over the weights of ``model`` that are not frozen."""
    clip = paddle.nn.ClipGradByGlobalNorm(config.grad_clip) if config.grad_clip else None
    if model.fused_state is None:
        return new_optimizer(model, config, multi_precision=config.weights_are_half, grad_clip=clip)
    optimizer = new_optimizer(model, config, grad_clip=clip, kind=FusedAdamW)
    optimizer.threads = model.fused_state.threads
    return optimizer
