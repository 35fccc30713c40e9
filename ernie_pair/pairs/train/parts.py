"""The parts of a training run, for the user's own training loop, on one process or on several."""

import inspect
import math
from contextlib import ExitStack
from functools import partial
from itertools import count, islice
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Union

import numpy as np
import paddle
from paddle import nn

from ernie_pair.core.cli.options import refuse_set
from ernie_pair.core.errors import InputError, NumbersError
from ernie_pair.inference.token_rows import Batch, EncodedPairs
from ernie_pair.models.labels import RANKING
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.spec import ModelSpec
from ernie_pair.pairs.config.pair_config import PairConfig, usual_of
from ernie_pair.pairs.train.datasets import PairData
from ernie_pair.pairs.train.loss import Forward, PairLoss, ToDevice, wide_logits
from ernie_pair.runtime.paddle_patches.optimizer_state import scheduler_in
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.data_parallel import Zero2
from ernie_pair.training.job import LossParts
from ernie_pair.training.optimizer import move_if_sound

INPUTS = ("input_ids", "token_type_ids", "labels")
# What the loss of the flags does and one of the user's own does not: {flag: its default}.
OF_THE_LOSS = usual_of(["class_weights", "rdrop_alpha", "symmetric", "ranking_loss"])
Inputs = dict[str, Any]
# Takes a model and its inputs, and returns the loss of a micro-batch with the outputs of the model, or None.
ComputeLoss = Callable[[Any, Inputs], tuple[Any, Any]]


class TrainedModel:
    """The model that a loss of the user's own calls, as the training step computes it.

    A call returns what ``model`` returns, with the precision and the processes of the run; everything else
    is an attribute of ``model``.
    """

    def __init__(self, forward: Callable, model: PairClassifier):
        self._forward, self._model = forward, model

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Return what the model returns."""
        return self._forward(*inputs, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class UserLoss(PairLoss):
    """The loss that ``compute`` returns; ``metric`` is empty where outputs do not show what was right."""

    def __init__(self, compute: ComputeLoss, model: PairClassifier, name: str):
        super().__init__()
        self.compute, self.model, self.name = compute, model, name
        self.fingerprint = {"loss": name}
        self.metric = "accuracy" if model.spec.labels.has_classes else ""

    def __call__(self, forward: Forward, batch: Batch, to_device: ToDevice = paddle.to_tensor) -> LossParts:
        """Return the loss of a micro-batch; see `PairLoss`. Raises InputError for what is no loss."""
        assert batch.labels is not None  # training reads them
        arrays = batch.input_ids, batch.token_type_ids, batch.labels
        inputs = {name: to_device(array) for name, array in zip(INPUTS, arrays)}
        loss, outputs = self.compute(TrainedModel(forward, self.model), inputs)
        if not isinstance(loss, paddle.Tensor) or loss.size != 1 or loss.stop_gradient:
            what = f"a tensor {list(loss.shape)}" if isinstance(loss, paddle.Tensor) else type(loss).__name__
            raise InputError(
                f"{self.name} returned {what}, not a loss; return one number with its gradient, a tensor of "
                "shape [] or [1]"
            )
        loss = loss.reshape([]).astype("float32")
        logits = logits_in(outputs, len(batch.labels)) if self.metric else None
        with paddle.no_grad():
            if logits is None:
                self.metric, right = "", loss.detach() * 0
            else:
                right = (logits.argmax(axis=1) == paddle.to_tensor(batch.labels)).astype("float32").sum()
            numbers = paddle.stack([loss.detach(), loss.detach() * 0, right.reshape([])])
        return LossParts(loss, numbers, len(batch.labels))


def logits_in(outputs: Any, rows: int) -> Optional[paddle.Tensor]:
    """Return the logits [B, C] among what a model returned: a tensor, a tuple, ``logits`` of it; or None."""
    if isinstance(outputs, Mapping):
        outputs = outputs.get("logits")
    outputs = getattr(outputs, "logits", outputs)
    for found in outputs if isinstance(outputs, (tuple, list)) else [outputs]:
        if isinstance(found, paddle.Tensor) and found.ndim == 2 and found.shape[0] == rows:
            return found
    return None


def loss_of_override(compute_loss: Callable) -> ComputeLoss:
    """Return what calls ``compute_loss`` of a subclass, with return_outputs where it takes that."""
    parameters = inspect.signature(compute_loss).parameters.values()
    takes_it = any(p.name == "return_outputs" or p.kind is p.VAR_KEYWORD for p in parameters)

    def compute(model: Any, inputs: Inputs) -> tuple[Any, Any]:
        found = compute_loss(model, inputs, **({"return_outputs": True} if takes_it else {}))
        return (found[0], found[1]) if isinstance(found, (tuple, list)) and len(found) == 2 else (found, None)

    return compute


def loss_of_function(function: Callable) -> ComputeLoss:
    """Return what calls ``function`` with the outputs of the model, which have ``logits``, and the labels.

    A loss of Paddle's, a layer such as `paddle.nn.CrossEntropyLoss`, gets the logits themselves.
    """

    def compute(model: Any, inputs: Inputs) -> tuple[Any, Any]:
        labels = inputs.pop("labels")
        logits = model(**inputs)
        if isinstance(function, nn.Layer):
            return function(logits, labels), logits
        from paddlenlp.transformers.model_outputs import SequenceClassifierOutput

        return function(SequenceClassifierOutput(logits=logits), labels), logits

    return compute


def loss_of_flags(
    loss: PairLoss, model: Callable, inputs: Mapping[str, Any]
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return the flags' loss on ``inputs`` of ``model``, and logits [B, C]. Raises InputError for a lack."""
    missing = [name for name in INPUTS if inputs.get(name) is None]
    if missing:
        raise InputError(f"compute_loss: the inputs have no {missing[0]}; pass the inputs as they were given")
    seen = []

    def forward(input_ids, token_type_ids):
        seen.append(model(input_ids, token_type_ids))
        return seen[-1]

    batch = Batch(*(np.asarray(inputs[name]) for name in INPUTS))
    found = loss(forward, batch).loss
    return found, seen[0][: len(batch.input_ids)]


# What PairTrainer does and a user's own loop does not.
OF_THE_LOOP = (
    "fgm_epsilon", "early_stopping_patience", "report_to", "dry_run", "evaluation_strategy", "save_strategy",
    "save_format", "keep_best", "keep_every",
)  # fmt: skip


class TrainingParts:
    """The objects of a run. A loop that uses them as `PairTrainer` does has its losses and its weights.

        parts = trainer.open_parts()
        for step, batches in parts.steps:
            for batch in batches:
                parts.backward(parts.loss(batch))
            parts.update()

    ``model`` is the classifier, ``optimizer`` AdamW with the decay, clipping and layer rates of the
    configuration, ``dev`` the encoded dev pairs, ``total_steps`` the length of the run. With several
    processes all of them run the loop: each gets its own micro-batches, and the same weights.

    Plain Paddle works beside them: a loop over `steps`, which set the learning rate of the optimizer, may
    call ``model``, ``loss.backward``, ``optimizer.step`` and ``clear_grad`` itself, and on several processes
    with ``paddle.DataParallel(parts.model)``.
    """

    def __init__(self, job: Any, data: PairData):  # of a PairJob
        for name, nothing in usual_of(OF_THE_LOOP).items():
            if getattr(job.config, name) != nothing:
                raise InputError(
                    f"--{name} {getattr(job.config, name)} is done by PairTrainer.train, and not by a loop "
                    "of your own; leave it out"
                )
        self.model, self.optimizer, self.total_steps = job.model, job.optimizer, job.total_steps
        self.dev: EncodedPairs = data.dev
        self.steps = Steps(self.total_steps, data.updates(0), self._take)
        self.step = 0  # steps taken so far
        self._job = job
        self._batches: list[Batch] = []
        self._pass = ExitStack()  # around the forward and the backward pass of a micro-batch
        self._weight, self._weight_of_all = 1.0, 0.0
        self._forwards = self._backwards = 0
        self._is_open = False  # a forward pass waits for its backward one
        self._losses: list[paddle.Tensor] = []
        self._unread: list[paddle.Tensor] = []  # losses that nothing has looked at
        self._has_own_loss = False
        self._set_rate(1)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step; 1 is the first."""
        return self._job.learning_rate(step)

    def seed(self, step: int, micro_batch: int) -> None:
        """Let the next forward pass draw the dropout that it draws in `PairTrainer`; see ``forward``."""
        self._job.seed_pass(step, micro_batch)

    def forward(self, batch: Union[Batch, Mapping[str, Any], Sequence[Any]]) -> paddle.Tensor:
        """Return the logits float32 [B, C] of a micro-batch, for a loss of your own.

        Its dropout and its precision are those of `PairTrainer`. ``batch``: one that `steps` gives, a mapping
        with input_ids and token_type_ids, int64 [B, S], or a list that begins with them. Under
        `paddle.no_grad` it is no part of a step: one process may call it alone, as in an evaluation.
        """
        fields: Any = batch
        if isinstance(batch, (list, tuple)) and not isinstance(batch, Batch):
            fields = dict(zip(INPUTS, batch))
        read = fields.get if isinstance(fields, Mapping) else partial(getattr, fields)
        ids, types = (read(name, None) for name in INPUTS[:2])
        for name, array in zip(INPUTS, (ids, types)):
            if array is None:
                raise InputError(
                    f"a batch has no {name}; give input_ids and token_type_ids, int64 [rows, tokens]"
                )
        if paddle.is_grad_enabled():
            self._has_own_loss = True
            self._open_pass(batch)
        return wide_logits(self._job.forward(paddle.to_tensor(ids), paddle.to_tensor(types)))

    def loss(self, batch: Batch) -> paddle.Tensor:
        """Return the loss of the flags on a micro-batch of `steps`: class weights and R-Drop included."""
        self._open_pass(batch)
        return self._job.loss(self._job.forward, batch).loss

    def backward(self, loss: paddle.Tensor) -> None:
        """Add the gradients of the mean loss of a micro-batch to those of the step.

        It divides by the micro-batches of all processes and scales the loss where the precision needs it; the
        last one of a step averages the gradients over the processes. ``loss`` may be of logits that
        ``model`` itself gave. Afterwards the gradients are those of the step, and may be clipped by hand.
        Raises InputError where the step has had all of its micro-batches.
        """
        if self._backwards == self._num_micro_batches:
            raise InputError(
                f"backward was called once more than a step has micro-batches, {self._num_micro_batches}; "
                "call update first, or add up the losses of a micro-batch"
            )
        if not self._weight_of_all:  # micro-batches of the user's own, which all count the same
            self._weight_of_all = float(self._num_micro_batches * self._job.process_group.size)
        if not self._is_open:  # a loss that was computed beside ``forward`` and ``loss``
            self._weight, self._has_own_loss = 1.0, True
            if isinstance(self._job.parallel, Zero2):
                raise InputError(
                    "--sharding stage2 sums gradients in the forward pass of its own, and this loss is of "
                    "parts.model; use parts.forward(batch)"
                )
            if self._backwards == self._num_micro_batches - 1:
                self._pass.callback(self._job.parallel.average)
        with self._pass:
            self._job.backward(loss, self._weight, self._weight_of_all)
        self._is_open = False
        self._losses.append(loss.detach().reshape([]))
        self._backwards += 1
        if self._job.loss_scale is not None and self._backwards == self._num_micro_batches:
            self._job.parallel.unscale(self._job.loss_scale)

    def update(self) -> dict[str, float]:
        """Move the weights once at the learning rate of the step, clear the gradients, and return numbers.

        learning_rate; with --on_nan skip or a loss scale also gradient_norm and skipped_updates, and the
        weights stay where they are not finite. Raises InputError where micro-batches are missing, or where
        the loop ignored a flag, and NumbersError for a loss that is not finite, as often as --sync_freq says.
        """
        job = self._job
        if self._backwards < self._num_micro_batches:
            raise InputError(
                f"update: backward was called {self._backwards} times, and a step has "
                f"{self._num_micro_batches} micro-batches (--gradient_accumulation_steps); call it for each"
            )
        if self._has_own_loss:
            what = "part of parts.loss, and this loop has a loss of its own; use parts.loss(batch)"
            refuse_set(job.config, OF_THE_LOSS, f" is {what}, or leave it out")
        rate = self.learning_rate(self.step + 1 - job.skipped_updates)
        numbers: dict[str, float] = {"learning_rate": rate}
        if job.judges:
            loss = float(sum(map(float, self._losses)))
            sums = job.process_group.all_reduce_now(np.array([loss, float(job.parallel.squares())]))
            numbers["gradient_norm"] = math.sqrt(sums[1])
            numbers.update(move_if_sound(job, rate, float(sums[0]), numbers["gradient_norm"]))
        else:
            self._refuse_bad_losses()
            job.parallel.step(rate)
            job.parallel.clear()
        self.step += 1
        self._batches = []
        self._begin_step()
        return numbers

    def dev_batches(self, batch_size: int = 0) -> Iterator[Batch]:
        """Iterate over all dev pairs once, in order, on every process; 0: the configuration's batch size."""
        size = batch_size or self._job.config.batch_size
        for first in range(0, len(self.dev), size):
            yield self.dev.batch(np.arange(first, min(first + size, len(self.dev))))

    @property
    def _num_micro_batches(self) -> int:
        return len(self._batches) or self._job.config.gradient_accumulation_steps

    def _take(self, number: int, batches: list[Batch]) -> None:
        """Begin a step with its micro-batches. Raises InputError if gradients of the one before are there."""
        gradients = [p.grad for p in self.model.parameters() if self._backwards and p.grad is not None]
        if any(float(gradient.abs().max()) != 0 for gradient in gradients):
            raise InputError(
                f"backward was called in step {self.step + 1} and update was not: its gradients would add to "
                "those of the next step; call parts.update, or parts.optimizer.clear_grad to drop them"
            )
        self.step, self._batches = number - 1, batches
        self._begin_step()
        self._weight_of_all = self._job.weight_of_all(batches)
        self._job.enter_training()
        self._set_rate(number)

    def _set_rate(self, number: int) -> None:
        """Let the optimizer have the rate of a step, for a loop that calls it itself."""
        rate = self.learning_rate(number - self._job.skipped_updates)
        if scheduler_in(self.optimizer) is None:
            self.optimizer.set_lr(rate)

    def _begin_step(self) -> None:
        self._forwards = self._backwards = 0
        self._losses, self._has_own_loss, self._is_open = [], False, False
        self._weight_of_all = 0.0
        self._pass.pop_all()  # of a forward pass without a backward one, which averages nothing

    def _open_pass(self, batch) -> None:
        self._weight = self._job.loss.weight_of(batch) if isinstance(batch, Batch) else 1.0
        self.seed(self.step + 1, self._forwards)
        self._forwards += 1
        if not self._is_open:  # a micro-batch may have several forward passes
            self._is_open = True
            is_last = self._backwards == self._num_micro_batches - 1
            self._pass.enter_context(self._job.parallel.passing(is_last))

    def _refuse_bad_losses(self) -> None:
        job, number = self._job, self.step + 1
        self._unread += self._losses
        if number % (job.config.sync_freq_on(job.config.device) or job.config.logging_freq):
            return
        total = sum(float(loss) for loss in self._unread)
        self._unread = []
        if not math.isfinite(job.process_group.all_reduce_now(np.array([total]))[0]):
            raise NumbersError(
                f"the loss is not finite up to step {number} of your loop; lower --learning_rate, or look at "
                "the samples; --on_nan skip leaves such a step out"
            )


class Steps:
    """The micro-batches of this process for each step, in order: (number, batches), from step 1 to the last.

    It is an iterator: a second loop over it goes on where the first ended.
    """

    def __init__(self, count: int, updates: Iterator[list[Batch]], take: Callable[[int, list[Batch]], None]):
        self._count, self._updates, self._take, self._next = count, updates, take, 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> "Steps":
        return self

    def __next__(self) -> tuple[int, list[Batch]]:
        if self._next > len(self):
            raise StopIteration
        number, batches = self._next, next(self._updates)
        self._next += 1
        self._take(number, batches)
        return number, batches


def total_steps(config: PairConfig, num_rows: int, world: World) -> int:
    """Return the number of optimizer steps of the whole run."""
    return config.max_steps or math.ceil(config.epochs * num_rows / config.pairs_per_step(world.size))


class TrainBatches:
    """The micro-batches of this process for one epoch after the other; each iteration is the next epoch."""

    def __init__(self, data: PairData, config: PairConfig, processes: int):
        if not data.num_rows:
            raise InputError("a stream has no epochs to load; leave --streaming out")
        self._data, self._epoch = data, 0
        self._rows_per_batch = config.batch_size * processes
        self._accumulation_steps = config.gradient_accumulation_steps

    def __len__(self) -> int:
        return -(-self._data.num_rows // self._rows_per_batch)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be that of ``epoch``, from 0."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        first, self._epoch = self._epoch * len(self), self._epoch + 1
        step, place = divmod(first, self._accumulation_steps)
        updates = self._data.updates(step * self._rows_per_batch * self._accumulation_steps)
        batches = (batch for of_step in updates for batch in of_step)
        for batch in islice(batches, place, place + len(self)):
            assert batch.labels is not None  # training reads them
            yield dict(zip(INPUTS, (batch.input_ids, batch.token_type_ids, batch.labels)))


def with_batches(
    data: PairData, loader: Any, config: PairConfig, processes: int, spec: ModelSpec
) -> PairData:
    """Return ``data`` with the training batches of ``loader``, which is iterated over once per epoch.

    A resumed run skips what its checkpoint has seen; a loader or its batch sampler with set_epoch is told the
    epoch. Raises InputError for a loader without a length, for batches that the model ``spec`` cannot take,
    and for ranking.
    """
    if spec.labels.target == RANKING:
        raise InputError(
            "get_train_dataloader: ranking draws the candidates of each query itself; leave it out"
        )
    try:
        length = len(loader)
    except (TypeError, ValueError):  # Paddle raises the latter for the loader of an IterableDataset
        length = 0
    if not length:
        raise InputError(
            "get_train_dataloader returned what has no length; return a loader of some batches, or of an "
            "IterableDataset a list of them: [batch for batch in loader]"
        )
    rows_per_batch = config.batch_size * processes

    def updates(consumed: int) -> Iterator[list[Batch]]:
        epoch, skipped = divmod(consumed // rows_per_batch, length)
        batches = _batches_from(loader, epoch, skipped, spec)
        while True:
            yield list(islice(batches, config.gradient_accumulation_steps))

    return data._replace(updates=updates, num_rows=length * rows_per_batch, train=None)


def _batches_from(loader: Any, first_epoch: int, skipped: int, spec: ModelSpec) -> Iterator[Batch]:
    for epoch in count(first_epoch):
        for each in (loader, getattr(loader, "batch_sampler", None)):
            set_epoch = getattr(each, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
        is_empty = True
        for batch in islice(loader, skipped if epoch == first_epoch else 0, None):
            is_empty = False
            yield batch_of(batch, "get_train_dataloader", spec)
        if is_empty and epoch > first_epoch:
            raise InputError("get_train_dataloader: the loader is empty after its first epoch; return a list")


def batch_of(found: Any, where: str, spec: ModelSpec) -> Batch:
    """Return a batch of a mapping, or of a list in the order input_ids, token_type_ids, labels.

    A pair is a mapping of inputs, and labels. Arrays or tensors of ints, ids and types [B, S], labels [B] or
    [B, 1]; without types they are 0. Raises InputError, naming ``where``, for anything else.
    """
    is_sequence = isinstance(found, (list, tuple))
    if is_sequence and len(found) == 2 and isinstance(found[0], Mapping) and "labels" not in found[0]:
        found = {**found[0], "labels": found[1]}
    if not isinstance(found, Mapping):
        if not is_sequence or len(found) != len(INPUTS):
            raise InputError(f"{where} gave a {type(found).__name__}, no batch; give {', '.join(INPUTS)}")
        found = dict(zip(INPUTS, found))
    unknown = sorted(set(map(str, found)) - {*INPUTS, "attention_mask"})
    if unknown or found.get("input_ids") is None or found.get("labels") is None:
        raise InputError(
            f"{where} gave a batch of {', '.join(map(str, found))}; give {', '.join(INPUTS)} alone"
        )
    ids = np.asarray(found["input_ids"])
    types = np.zeros_like(ids) if found.get("token_type_ids") is None else np.asarray(found["token_type_ids"])
    labels = np.asarray(found["labels"])
    labels = labels.reshape(len(labels)) if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if ids.ndim != 2 or types.shape != ids.shape or labels.shape != ids.shape[:1]:
        raise InputError(
            f"{where} gave input_ids {ids.shape}, token_type_ids {types.shape} and labels {labels.shape}; "
            "give [B, S], [B, S] and [B]"
        )
    limits = [("input_ids", ids, spec.vocab_size), ("token_type_ids", types, max(2, spec.token_types))]
    if spec.labels.has_classes:
        limits.append(("labels", labels, spec.num_labels))
    for name, array, limit in limits:
        if array.dtype.kind not in "iub" or array.min(initial=0) < 0 or array.max(initial=0) >= limit:
            raise InputError(
                f"{where} gave {name} that are no whole numbers from 0 to {limit - 1}; correct them"
            )
    if ids.shape[1] > spec.max_positions:
        raise InputError(f"{where} gave rows of {ids.shape[1]} tokens; the model takes {spec.max_positions}")
    if labels.dtype.kind not in "iubf" or not np.isfinite(labels).all():
        raise InputError(f"{where} gave labels that are no finite numbers; correct them")
    labels = labels.astype(np.int64) if labels.dtype.kind in "iub" else labels
    return Batch(ids.astype(np.int64), types.astype(np.int64), labels)
