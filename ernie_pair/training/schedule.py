"""When a run logs, evaluates and saves, how many steps it has, the learning rate and the rows of each.

The rows of a step are a pure function of the seed, the lengths, the global batch and the position.
"""

import logging
import math
from dataclasses import dataclass
from typing import Any, Iterator, Optional

import numpy as np

STABLE = "warmup_stable_decay"
STYLES = ("linear", "cosine", "constant", STABLE)  # the decay after the warm-up
STABLE_SHARE = 0.9  # of the steps after the warm-up, before the rate falls
POOL_BATCHES = 50  # sorted together: more of them pad less, and make batches that are less random

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Schedule:
    """The steps at which something is due. 0 means never; ``samples_per_epoch`` 0: epochs do not count."""

    max_steps: int
    global_batch_size: int
    logging_freq: int
    eval_freq: int
    checkpoint_steps: int
    export_steps: int = 0
    samples_per_epoch: int = 0
    has_validation: bool = True  # False: there is no data for it, and hooks are called without metrics
    has_test: bool = False  # whether there is another evaluation after the last step
    evaluates: bool = True  # False: never, and nothing is judged
    evaluates_epochs: bool = True  # at the end of each epoch too, if epochs count
    saves_epochs: bool = False  # the same
    sync_freq: int = 1  # steps between readings of the metrics; 0: only when something else is due

    def logs_at(self, step: int) -> bool:
        """Return whether a training line is due: every ``logging_freq`` steps and at the end."""
        return step == self.max_steps or _is_multiple(step, self.logging_freq)

    def evaluates_at(self, step: int) -> bool:
        """Return whether to evaluate: at step 0, by ``eval_freq``, where epochs end if asked, at the end."""
        ends_an_epoch = self.evaluates_epochs and self.ends_an_epoch(step)
        is_end = step in (0, self.max_steps)
        return self.evaluates and (is_end or ends_an_epoch or _is_multiple(step, self.eval_freq))

    def saves_at(self, step: int) -> bool:
        """Return whether a checkpoint is due: by ``checkpoint_steps``, after epochs if so, at the end."""
        ends_an_epoch = self.saves_epochs and self.ends_an_epoch(step)
        return step == self.max_steps or ends_an_epoch or _is_multiple(step, self.checkpoint_steps)

    def exports_at(self, step: int) -> bool:
        """Return whether an exported model is due: every ``export_steps`` steps."""
        return _is_multiple(step, self.export_steps)

    def reads_at(self, step: int) -> bool:
        """Return whether to read metrics after a step: by ``sync_freq``, or for what depends on them."""
        due = (self.logs_at, self.evaluates_at, self.saves_at, self.exports_at)
        return _is_multiple(step, self.sync_freq) or any(is_due(step) for is_due in due)

    def begins_an_epoch(self, step: int) -> bool:
        """Return whether ``step`` is the first in an epoch; if epochs do not count, none is."""
        return bool(self.samples_per_epoch) and (step == 1 or self.ends_an_epoch(step - 1))

    def ends_an_epoch(self, step: int) -> bool:
        """Return whether an epoch ends in this step; if epochs do not count, none does."""
        if not self.samples_per_epoch:
            return False
        done, before = step * self.global_batch_size, (step - 1) * self.global_batch_size
        return done // self.samples_per_epoch > before // self.samples_per_epoch


def _is_multiple(step: int, steps: int) -> bool:
    return steps > 0 and step % steps == 0


def count_steps(config: Any, num_rows: int, processes: int) -> int:
    """Return the steps of a whole run with the flags ``config``, whose epochs have ``num_rows`` rows."""
    return config.max_steps or math.ceil(config.epochs * num_rows / config.pairs_per_step(processes))


def learning_rate(
    step: int, *, max_lr: float, min_lr: float, warmup_steps: int, decay_steps: int, style: str = "linear"
) -> float:
    """Return the learning rate of step ``step``; 1 is the first, 0 stands for what comes before it.

    It rises from 0 to ``max_lr`` at ``warmup_steps``, falls to ``min_lr`` at ``decay_steps`` and stays there;
    between them it falls linearly, or along half a cosine wave (Loshchilov and Hutter, "SGDR",
    2017, without restarts). ``style`` constant: it stays at ``max_lr``; warmup_stable_decay: it stays there
    for STABLE_SHARE of the steps between them, and falls linearly in the rest (Hu et al., "MiniCPM", 2024).
    """
    if step < warmup_steps or step == warmup_steps > 0:
        return max_lr * step / warmup_steps
    if style == "constant":
        return max_lr
    if step >= decay_steps:
        return min_lr
    left = (decay_steps - step) / (decay_steps - warmup_steps)
    if style == STABLE:
        left = min(1.0, left / (1 - STABLE_SHARE))
    if style == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return min_lr + (max_lr - min_lr) * left


def log_schedule(lr_kwargs: Optional[dict], max_steps: int, done: int = 0) -> None:
    """Log the key points of a run's learning rate, and warn of a warm-up longer than half of the run.

    ``lr_kwargs``: keyword arguments of ``learning_rate``, None: of a schedule that nothing is known of;
    ``done``: the steps taken before this start.
    """
    if lr_kwargs is None:
        logger.info("learning rate: of the scheduler that was given")
        return
    logger.info("%s", describe_schedule(lr_kwargs, max_steps, done))
    if 2 * lr_kwargs["warmup_steps"] > max_steps:
        logger.warning(
            "warm-up takes %d of the %d steps, more than half of the run; is this intended?",
            lr_kwargs["warmup_steps"],
            max_steps,
        )


def describe_schedule(lr_kwargs: dict, max_steps: int, done: int = 0) -> str:
    """Return "learning rate: rises to 1e-4 at step 2,000, is 1e-5 at the last step, 200,000"."""
    peak, decay_steps = max(1, lr_kwargs["warmup_steps"]), lr_kwargs["decay_steps"]
    rises = f"rises to {_format_rate(lr_kwargs['max_lr'])} at step {peak:,}"
    landmarks = [rises if peak > 1 else f"starts at {_format_rate(learning_rate(1, **lr_kwargs))}"]
    lowest = f"{_format_rate(lr_kwargs['min_lr'])} at step {decay_steps:,}"
    if decay_steps < max_steps and lr_kwargs.get("style") != "constant":
        landmarks.append(f"falls to {lowest}")
    landmarks.append(
        f"is {_format_rate(learning_rate(max_steps, **lr_kwargs))} at the last step, {max_steps:,}"
    )
    if decay_steps > max_steps + 1 and lr_kwargs.get("style") != "constant":
        landmarks[-1] += f" (it would be {lowest})"
    if 0 < done < max_steps:
        landmarks.append(f"is {_format_rate(learning_rate(done + 1, **lr_kwargs))} at the next step")
    return "learning rate: " + ", ".join(landmarks)


def _format_rate(rate: float) -> str:
    """Format a rate with three digits, 9.1e-5 for 0.000090990: enough to identify it."""
    digits, power = f"{rate:.2e}".split("e")
    return f"{float(digits):g}e{int(power)}" if rate else "0"


class BatchOrder:
    """The order of rows of ``lengths`` int64 [rows], ``batch_size`` of which make a step over all ranks.

    The rows of an epoch are laid end to end behind those of the epoch before. A step takes the next global
    batch of that stream, so an epoch loses no row and repeats none, and the step in which it ends goes on
    into the next one. With buckets the rows of a batch are of similar length:

        shuffle the epoch                  5 9 2 7 1 8 3 6 4          (lengths)
        sort within pools of some batches  2 5 7 9 | 1 3 6 8 | 4      (2 batches of 2; what is left stays)
        shuffle the batches                6 8 | 2 5 | 1 3 | 7 9 | 4

    The two batches that an epoch shares with its neighbours are drawn from all its lengths.
    """

    def __init__(self, lengths: np.ndarray, seed: int, batch_size: int, bucket: bool):
        self.lengths, self.seed, self.batch_size, self.bucket = lengths, seed, batch_size, bucket
        self._epoch, self._order = -1, np.zeros(0, dtype=np.int64)

    def batches(self, consumed: int) -> Iterator[np.ndarray]:
        """Yield the rows of every step, int64 [batch_size], without end, from row ``consumed`` on."""
        while True:
            yield self.rows_at(consumed, self.batch_size)
            consumed += self.batch_size

    def rows_at(self, first: int, count: int) -> np.ndarray:
        """Return the rows at ``count`` places of the stream from place ``first`` on, int64 [count]."""
        epochs, places = np.divmod(np.arange(first, first + count), len(self.lengths))
        return np.concatenate([self._order_of(int(e))[places[epochs == e]] for e in np.unique(epochs)])

    def _order_of(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            rng = np.random.default_rng([self.seed, epoch])
            order = rng.permutation(len(self.lengths))
            self._epoch, self._order = epoch, self._in_buckets(order, epoch, rng) if self.bucket else order
        return self._order

    def _in_buckets(self, order: np.ndarray, epoch: int, rng: np.random.Generator) -> np.ndarray:
        """Sort whole batches into buckets, and shuffle them; ``head`` rows end the batch before."""
        size, rows = self.batch_size, len(order)
        head = min(-epoch * rows % size, rows)
        whole = slice(head, head + (rows - head) // size * size)
        batches = alike(order[whole], self.lengths, size)
        order[whole] = batches[rng.permutation(len(batches))].ravel()
        return order


def alike(rows: np.ndarray, lengths: np.ndarray, size: int) -> np.ndarray:
    """Return ``rows``, a multiple of ``size``, as batches [n, size] of like length, sorted within pools."""
    num_batches = len(rows) // size
    num_pools = max(1, round(num_batches / POOL_BATCHES))
    pool_of = np.arange(len(rows)) // size * num_pools // max(1, num_batches)
    return rows[np.lexsort((lengths[rows], pool_of))].reshape(num_batches, size)
