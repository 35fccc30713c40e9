"""The parts of a training run, for the user's own training loop, on one process or on several."""

import math
from contextlib import ExitStack
from functools import partial
from typing import Any, Callable, Iterator, Mapping, Sequence, Union

import numpy as np
import paddle

from ernie_pair.core.cli.options import check_unset, defaults_of
from ernie_pair.core.errors import InputError, NumbersError
from ernie_pair.inference.token_rows import Batch, EncodedPairs
from ernie_pair.pairs.train.loss import wide_logits
from ernie_pair.pairs.train.overrides import INPUTS
from ernie_pair.pairs.train.train_pair import PairTask
from ernie_pair.runtime.paddle_patches.optimizer_state import scheduler_in
from ernie_pair.training.data_parallel import Zero2


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

    def __init__(self, task: PairTask):
        done = " is done by PairTrainer.train, and not by a loop of your own; leave it out"
        check_unset(task.config, defaults_of(task.config, "loop"), done)
        self.model, self.optimizer, self.total_steps = task.model, task.optimizer, task.total_steps
        self.dev: EncodedPairs = task.data.dev
        self.steps = Steps(self.total_steps, task.data.updates(0), self._take)
        self.step = 0  # steps taken so far
        self._task = task
        self._batches: list[Batch] = []
        self._pass = ExitStack()  # around the forward and the backward pass of a micro-batch
        self._weight, self._total_weight = 1.0, 0.0
        self._forwards = self._backwards = 0
        self._is_open = False  # a forward pass waits for its backward one
        self._losses: list[paddle.Tensor] = []
        self._unread: list[paddle.Tensor] = []  # losses that nothing has looked at
        self._has_own_loss = False
        self._set_rate(1)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step; 1 is the first."""
        return self._task.learning_rate(step)

    def seed(self, step: int, micro_batch: int) -> None:
        """Let the next forward pass draw the dropout that it draws in `PairTrainer`; see ``forward``."""
        self._task.seed_pass(step, micro_batch)

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
        ids, types = (read(name) for name in INPUTS[:2])
        if paddle.is_grad_enabled():
            self._has_own_loss = True
            self._open_pass(batch)
        return wide_logits(self._task.forward(paddle.to_tensor(ids), paddle.to_tensor(types)))

    def loss(self, batch: Batch) -> paddle.Tensor:
        """Return the loss of the flags on a micro-batch of `steps`: class weights and R-Drop included."""
        self._open_pass(batch)
        return self._task.loss(batch).loss

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
        if not self._total_weight:  # micro-batches of the user's own, which all count the same
            self._total_weight = float(self._num_micro_batches * self._task.process_group.size)
        if not self._is_open:  # a loss that was computed beside ``forward`` and ``loss``
            self._weight, self._has_own_loss = 1.0, True
            if isinstance(self._task.parallel, Zero2):
                raise InputError(
                    "--sharding stage2 sums gradients in the forward pass of its own, and this loss is of "
                    "parts.model; use parts.forward(batch)"
                )
            if self._backwards == self._num_micro_batches - 1:
                self._pass.callback(self._task.parallel.average)
        with self._pass:
            self._task.backward(loss, self._weight * self._task.parallel.loss_factor / self._total_weight)
        self._is_open = False
        self._losses.append(loss.detach().reshape([]))
        self._backwards += 1
        if self._task.loss_scale is not None and self._backwards == self._num_micro_batches:
            self._task.parallel.unscale(self._task.loss_scale)

    def update(self) -> dict[str, float]:
        """Move the weights once at the learning rate of the step, clear the gradients, and return numbers.

        learning_rate; with --on_nan skip or a loss scale also gradient_norm and skipped_updates, and the
        weights stay where they are not finite. Raises InputError where micro-batches are missing, or where
        the loop ignored a flag, and NumbersError for a loss that is not finite, as often as --sync_freq says.
        """
        task = self._task
        if self._backwards < self._num_micro_batches:
            raise InputError(
                f"update: backward was called {self._backwards} times, and a step has "
                f"{self._num_micro_batches} micro-batches (--gradient_accumulation_steps); call it for each"
            )
        if self._has_own_loss:
            what = "part of parts.loss, and this loop has a loss of its own; use parts.loss(batch)"
            check_unset(task.config, defaults_of(task.config, "loss"), f" is {what}, or leave it out")
        rate = self.learning_rate(self.step + 1 - task.skipped_updates)
        numbers: dict[str, float] = {"learning_rate": rate}
        if task.checks_finite:
            loss = float(sum(map(float, self._losses)))
            sums = task.process_group.all_reduce_now(np.array([loss, float(task.parallel.grad_norm_sq())]))
            numbers["gradient_norm"] = math.sqrt(sums[1])
            numbers.update(task.step_if_finite(rate, float(sums[0]), numbers["gradient_norm"]))
        else:
            self._check_losses()
            task.parallel.step(rate)
            task.parallel.clear()
        self.step += 1
        self._batches = []
        self._begin_step()
        return numbers

    def dev_batches(self, batch_size: int = 0) -> Iterator[Batch]:
        """Iterate over all dev pairs once, in order, on every process; 0: the configuration's batch size."""
        size = batch_size or self._task.config.batch_size
        for first in range(0, len(self.dev), size):
            yield self.dev.batch(np.arange(first, min(first + size, len(self.dev))))

    @property
    def _num_micro_batches(self) -> int:
        return len(self._batches) or self._task.config.gradient_accumulation_steps

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
        self._total_weight = self._task.total_weight(batches)
        self._task.enter_training()
        self._set_rate(number)

    def _set_rate(self, number: int) -> None:
        """Let the optimizer have the rate of a step, for a loop that calls it itself."""
        rate = self.learning_rate(number - self._task.skipped_updates)
        if scheduler_in(self.optimizer) is None:
            self.optimizer.set_lr(rate)

    def _begin_step(self) -> None:
        self._forwards = self._backwards = 0
        self._losses, self._has_own_loss, self._is_open = [], False, False
        self._total_weight = 0.0
        self._pass.pop_all()  # of a forward pass without a backward one, which averages nothing

    def _open_pass(self, batch) -> None:
        self._weight = self._task.weight_of(batch) if isinstance(batch, Batch) else 1.0
        self.seed(self.step + 1, self._forwards)
        self._forwards += 1
        if not self._is_open:  # a micro-batch may have several forward passes
            self._is_open = True
            is_last = self._backwards == self._num_micro_batches - 1
            self._pass.enter_context(self._task.parallel.passing(is_last))

    def _check_losses(self) -> None:
        task, number = self._task, self.step + 1
        self._unread += self._losses
        if number % (task.config.sync_freq_on(task.config.device) or task.config.logging_freq):
            return
        total = sum(float(loss) for loss in self._unread)
        self._unread = []
        if not math.isfinite(task.process_group.all_reduce_now(np.array([total]))[0]):
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
