"""What replaces parts of a run in Python: arguments of PairTrainer, and methods that a subclass overrides.

The names are those of the Trainer of transformers and PaddleNLP.
"""

import inspect
import math
from difflib import get_close_matches
from functools import partial
from itertools import count, islice
from types import CodeType
from typing import Any, Callable, Iterator, Mapping, Optional

import numpy as np
import paddle
from paddle import nn
from paddle.optimizer import LBFGS, Optimizer
from paddle.optimizer.lr import LRScheduler

from ernie_pair.core.cli.options import check_unset, defaults_of
from ernie_pair.core.errors import InputError
from ernie_pair.inference.token_rows import Batch
from ernie_pair.models.labels import RANKING
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.spec import ModelSpec
from ernie_pair.pairs.config.pair_config import PairConfig
from ernie_pair.pairs.targets.metrics import read_own_metrics
from ernie_pair.pairs.train.datasets import PairData
from ernie_pair.pairs.train.loss import Forward, PairLoss, ToDevice
from ernie_pair.pairs.train.train_pair import Overrides
from ernie_pair.runtime.paddle_patches.optimizer_state import parameters_of, scheduler_in
from ernie_pair.runtime.processes.world import gather_results
from ernie_pair.training.process_group import join_process_group
from ernie_pair.training.training_step import LossParts

TIMES = ("runtime", "samples_per_second")  # among the metrics of an evaluation that was asked for
INPUTS = ("input_ids", "token_type_ids", "labels")
CALLED = ("compute_loss", "create_optimizer", "create_scheduler", "evaluate", "get_train_dataloader", "log")

Inputs = dict[str, Any]
# Takes a model and its inputs, and returns the loss of a micro-batch with the outputs of the model, or None.
ComputeLoss = Callable[[Any, Inputs], tuple[Any, Any]]


def overridden_methods(trainer: object, base: type) -> list[str]:
    """Return the methods of CALLED that the class of ``trainer`` defines itself.

    Raises InputError for a public method that is named like those that are called, and that nothing calls,
    its class neither: it overrides what other trainers have, or is misspelt.
    """
    kinds = [kind for kind in type(trainer).__mro__ if issubclass(kind, base) and kind is not base]
    own = {name: value for kind in kinds for name, value in vars(kind).items() if callable(value)}
    codes = [value.__code__ for value in own.values() if hasattr(value, "__code__")]
    used = {name for code in codes for name in _names_in(code)}
    named_like = {stem for name in (*CALLED, "predict", "train") for stem in _stems(name)}
    for name in sorted(own.keys() - used - {*CALLED, *dir(base)}):
        if not name.startswith("_") and named_like & _stems(name):
            (nearest,) = get_close_matches(name, CALLED, n=1, cutoff=0)
            raise InputError(
                f"PairTrainer: nothing calls {type(trainer).__name__}.{name}; what is called of a subclass "
                f"is {', '.join(CALLED)}; use {nearest}, another of these or a callback, or begin the "
                "name of a method of your own with _"
            )
    return [name for name in CALLED if name in own]


def _names_in(code: CodeType) -> set[str]:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return {*code.co_names, *(name for one in inner for name in _names_in(one))}


def _stems(name: str) -> set[str]:
    return {word[:5] for word in name.split("_") if len(word) > 4}


def build_overrides(trainer: Any) -> Overrides:
    """Return the parts of the next run that a PairTrainer replaces."""
    names = trainer.overridden
    has_optimizer = trainer.optimizer is not None or "create_optimizer" in names
    has_scheduler = trainer.lr_scheduler is not None or "create_scheduler" in names
    return Overrides(
        compute_metrics=trainer.compute_metrics,
        loss=_build_loss(trainer),
        make_optimizer=partial(_make_optimizer, trainer, has_scheduler) if has_optimizer else None,
        make_scheduler=partial(_make_scheduler, trainer) if has_scheduler else None,
        evaluate=partial(_evaluate, trainer) if "evaluate" in names else None,
        log=trainer.log if "log" in names else None,
    )


def _make_optimizer(trainer, has_scheduler: bool) -> Optimizer:
    optimizer = trainer.optimizer or trainer.create_optimizer() or trainer.optimizer
    # LBFGS computes the loss of a step many times; the rate of LookAhead is that of the one inside.
    is_other = isinstance(optimizer, LBFGS) or hasattr(optimizer, "inner_optimizer")
    if not isinstance(optimizer, Optimizer) or is_other:
        raise InputError(
            f"create_optimizer of {type(trainer).__name__} returned {type(optimizer).__name__}; return "
            "an optimizer of Paddle's other than LBFGS and LookAhead"
        )
    known = {id(parameter) for parameter in trainer.model.parameters()}
    if any(id(parameter) not in known for parameter in parameters_of(optimizer)):
        raise InputError(
            "the optimizer moves parameters that this model does not have; make it of those of "
            "trainer.model in create_optimizer, or of a model that is given to PairTrainer"
        )
    own, rate = optimizer.get_lr(), trainer.config.learning_rate
    is_idle = scheduler_in(optimizer) is None and not has_scheduler and own != 0
    if is_idle and not math.isclose(own, rate, rel_tol=1e-6):
        raise InputError(
            f"the optimizer has the learning rate {own:g}, and its steps have that of --learning_rate "
            f"{rate:g}, as --lr_scheduler_type says; pass learning_rate={own:g} in the config, or give the "
            "optimizer a scheduler"
        )
    return optimizer


def _make_scheduler(trainer, steps: int, optimizer: Optional[Optimizer]) -> LRScheduler:
    scheduler = trainer.lr_scheduler or trainer.create_scheduler(steps, optimizer) or trainer.lr_scheduler
    inside = None if optimizer is None else scheduler_in(optimizer)
    if inside is not None and inside is not scheduler:
        raise InputError(
            f"the optimizer has a {type(inside).__name__}, and there is a {type(scheduler).__name__} beside "
            "it; make the optimizer with a number, or leave the other scheduler out"
        )
    return scheduler


def _evaluate(trainer) -> dict[str, float]:
    def own() -> dict[str, float]:
        where = f"evaluate of {type(trainer).__name__}"
        found = read_own_metrics(trainer.evaluate(), trainer.config.best_metric, where)
        return {name: value for name, value in found.items() if name not in TIMES}

    return gather_results(join_process_group(trainer.world).all_reduce, trainer.world, own)[0]


def _build_loss(trainer: Any) -> Optional["UserLoss"]:
    if "compute_loss" in trainer.overridden:
        name = f"{type(trainer).__name__}.compute_loss"
        return UserLoss(_with_flags(trainer, _call_override(trainer.compute_loss), name), trainer.model, name)
    if trainer.compute_loss_func is not None:
        name = "compute_loss_func"
        return UserLoss(_call_function(trainer.compute_loss_func), trainer.model, name)
    return None


def _with_flags(trainer, compute: ComputeLoss, name: str) -> ComputeLoss:
    """Return ``compute``, which raises InputError if it leaves out flags of the loss that are set."""
    of_loss = defaults_of(trainer.config, "loss")
    flags = [flag for flag, nothing in of_loss.items() if getattr(trainer.config, flag) != nothing]

    def compute_with_flags(model: Any, inputs: Inputs) -> tuple[Any, Any]:
        trainer.has_used_flags = False
        found = compute(model, inputs)
        if not trainer.has_used_flags:
            raise InputError(
                f"--{flags[0]} {getattr(trainer.config, flags[0])} is of the loss of the flags, which {name} "
                "does not call; call super().compute_loss, or leave it out"
            )
        return found

    return compute_with_flags if flags else compute


def check_replaced_flags(trainer) -> None:
    """Raise InputError for a flag that what replaces its part would ignore."""
    ignored: dict[str, object] = {}
    if trainer.compute_loss_func is not None:
        ignored.update(defaults_of(trainer.config, "loss"))
    if trainer.optimizer is not None or "create_optimizer" in trainer.overridden:
        ignored.update(sharding=PairConfig.sharding, dry_run=PairConfig.dry_run)
    if trainer.optimizer is not None:
        ignored.update(defaults_of(trainer.config, "optimizer"))
    if trainer.lr_scheduler is not None or (trainer.optimizer and scheduler_in(trainer.optimizer)):
        ignored.update(defaults_of(trainer.config, "schedule"))
    if "get_train_dataloader" in trainer.overridden:
        ignored.update(streaming=PairConfig.streaming)
    check_unset(trainer.config, ignored, " is of a part that PairTrainer is given here; leave it out")


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


def _call_override(compute_loss: Callable) -> ComputeLoss:
    """Return what calls ``compute_loss`` of a subclass, with return_outputs where it takes that."""
    parameters = inspect.signature(compute_loss).parameters.values()
    takes_it = any(p.name == "return_outputs" or p.kind is p.VAR_KEYWORD for p in parameters)

    def compute(model: Any, inputs: Inputs) -> tuple[Any, Any]:
        found = compute_loss(model, inputs, **({"return_outputs": True} if takes_it else {}))
        return (found[0], found[1]) if isinstance(found, (tuple, list)) and len(found) == 2 else (found, None)

    return compute


def _call_function(function: Callable) -> ComputeLoss:
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


def compute_flags_loss(
    loss: PairLoss, model: Callable, inputs: Mapping[str, Any]
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return the loss of the flags on ``inputs`` of ``model``, and the logits [B, C]."""
    seen = []

    def forward(input_ids, token_type_ids):
        seen.append(model(input_ids, token_type_ids))
        return seen[-1]

    batch = Batch(*(np.asarray(inputs[name]) for name in INPUTS))
    return loss(forward, batch).loss, seen[0][: len(batch.input_ids)]


class TrainBatches:
    """The micro-batches of this process for one epoch after the other; each iteration is the next epoch."""

    def __init__(self, data: PairData, config: PairConfig, processes: int):
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
    epoch. Raises InputError for batches that the model ``spec`` cannot take, and for ranking.
    """
    if spec.labels.target == RANKING:
        raise InputError(
            "get_train_dataloader: ranking draws the candidates of each query itself; leave it out"
        )
    length, rows_per_batch = len(loader), config.batch_size * processes

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
    if not isinstance(found, Mapping):
        is_pair = len(found) == 2 and isinstance(found[0], Mapping)
        found = {**found[0], "labels": found[1]} if is_pair else dict(zip(INPUTS, found))
    unknown = sorted(set(map(str, found)) - {*INPUTS, "attention_mask"})
    if unknown or found.get("input_ids") is None or found.get("labels") is None:
        raise InputError(
            f"{where} gave a batch of {', '.join(map(str, found))}; give {', '.join(INPUTS)} alone"
        )
    ids = np.asarray(found["input_ids"])
    types = np.zeros_like(ids) if found.get("token_type_ids") is None else np.asarray(found["token_type_ids"])
    labels = np.asarray(found["labels"])
    labels = labels.reshape(len(labels)) if labels.ndim == 2 and labels.shape[1] == 1 else labels
    shapes = ids.shape, types.shape, labels.shape
    if ids.ndim != 2 or shapes[1:] != (ids.shape, ids.shape[:1]) or ids.shape[1] > spec.max_positions:
        raise InputError(
            f"{where} gave input_ids {shapes[0]}, token_type_ids {shapes[1]} and labels {shapes[2]}; "
            f"give [B, S], [B, S] and [B], with S at most {spec.max_positions}"
        )
    limits = [("input_ids", ids, spec.vocab_size), ("token_type_ids", types, max(2, spec.token_types))]
    if spec.labels.has_classes:
        limits.append(("labels", labels, spec.num_labels))
    for name, array, limit in limits:  # a kernel reads whatever memory an id points at
        if array.dtype.kind not in "iub" or array.min(initial=0) < 0 or array.max(initial=0) >= limit:
            raise InputError(
                f"{where} gave {name} that are no whole numbers from 0 to {limit - 1}; correct them"
            )
    labels = labels.astype(np.int64) if labels.dtype.kind in "iub" else labels
    return Batch(ids.astype(np.int64), types.astype(np.int64), labels)
