"""The floating-point operations of an encoder: what a step has to compute, from its shapes alone.

A product of [m, k] by [k, n] counts 2 m k n; embeddings, norms, softmax and activations count nothing, and
neither does recompute. B sequences of S tokens, D hidden, F inner width:

- a layer: 2 B S (4 D^2 + 2 D F) for its weights, 4 B S^2 D for scores and their use (PaLM, appendix B)
- the last layer, of which the heads read only R rows (the first token of each sequence, the masked tokens):
  keys and values of all tokens, and the rest for R tokens: query, attention, output and feed-forward
- heads: the pooler 2 B D^2, a classifier 2 B D C, masked LM 2 P (D^2 + D V) for P masked tokens

Training takes three times the forward pass: the backward pass multiplies twice. Only necessary work counts: a
path that computes padding, or more than the heads read, reaches a lower rate.
"""

import math
from typing import Callable, Iterator, Mapping, NamedTuple, Optional

from ernie_pair.checkpoint.manifest import TrainState, Window
from ernie_pair.core.errors import NumbersError
from ernie_pair.training.schedule import Schedule

FORWARD_PASSES_OF_TRAINING = 3


class EncoderSize(NamedTuple):
    """The sizes of an encoder's products."""

    layers: int
    hidden: int
    inner: int


def count_encoder(size: EncoderSize, batch: int, length: int, rows_read: Optional[int] = None) -> int:
    """Return the operations of a forward pass over ``batch`` sequences of ``length`` tokens.

    ``rows_read``: how many rows of the last layer the heads read, of all sequences; None: all.
    """
    if not size.layers:
        return 0
    every = batch * length
    last = every if rows_read is None else min(rows_read, every)
    of_layer, of_last = (_count_layer(size, batch, length, rows) for rows in (every, last))
    return (size.layers - 1) * of_layer + of_last


def _count_layer(size: EncoderSize, batch: int, length: int, rows: int) -> int:
    keys_and_values = 2 * size.hidden**2 * batch * length
    query_and_output = 2 * size.hidden**2 * rows
    attention = 2 * size.hidden * length * rows
    feed_forward = 2 * size.hidden * size.inner * rows
    return 2 * (keys_and_values + query_and_output + attention + feed_forward)


def count_classifier(size: EncoderSize, batch: int, num_classes: int) -> int:
    """Return the operations of pooler and classifier in a forward pass."""
    return 2 * batch * (size.hidden**2 + size.hidden * num_classes)


def count_pretraining(size: EncoderSize, batch: int, length: int, masked: int, vocab_size: int) -> int:
    """Return the operations of a forward pass of pretraining, of ``masked`` tokens and a class a sequence."""
    encoder = count_encoder(size, batch, length, rows_read=masked + batch)
    masked_lm = 2 * masked * (size.hidden**2 + size.hidden * vocab_size)
    return encoder + masked_lm + count_classifier(size, batch, 2)


TERA = 1e12


class StepWork(NamedTuple):
    """The work of steps, over all ranks: samples, their tokens without and with padding, operations.

    ``flops`` is what the shapes require, however it is computed. 0 if it is not counted.
    """

    samples: float = 0
    tokens: float = 0
    padded_tokens: float = 0
    flops: float = 0

    def plus(self, other: "StepWork") -> "StepWork":
        """Return the sum of both."""
        return StepWork(*(mine + theirs for mine, theirs in zip(self, other)))

    def speeds(self, seconds: float, product_rate: float = 0) -> dict[str, float]:
        """Return the speeds of a line; ``product_rate``: FLOP/s of products on all ranks, 0: not known."""
        speeds = {"samples_per_second": self.samples / seconds}
        if self.padded_tokens:
            speeds["tokens_per_second"] = self.padded_tokens / seconds
            speeds["real_tokens_per_second"] = self.tokens / seconds
        if self.flops:
            speeds["tera_flops_per_second"] = self.flops / seconds / TERA
        if self.flops and product_rate:
            speeds["product_share"] = self.flops / seconds / product_rate
        return speeds


def take_work(metrics: dict[str, float], samples: int) -> StepWork:
    """Remove the counts of a step from its metrics, since they are not metrics, and return them."""
    counts = {name: metrics.pop(name) for name in StepWork._fields if name in metrics}
    return StepWork(samples=samples, **counts)


# Values without a mean: a training line shows them as of its own step.
AS_OF_NOW = ("learning_rate", "loss_scale", "skipped_updates", "gpu_memory_gb")
MAX_EXPONENT = 700


def add_step(window: Window, metrics: dict[str, float]) -> Window:
    """Return ``window`` with one more step, as a new one; values that are not finite are left out."""
    grown = dict(window)
    for name, value in metrics.items():
        if name not in AS_OF_NOW and math.isfinite(value):
            total, count = grown.get(name, (0.0, 0))
            grown[name] = (total + float(value), count + 1)
    return grown


def window_means(window: Window, latest: dict[str, float]) -> dict[str, float]:
    """Return the metrics of a training line, under the names of ``latest``, the metrics of its step.

    Those AS_OF_NOW, and those that had no finite value in the whole window, are as in ``latest``.
    The perplexity is that of the mean lm_loss.
    """
    means = {name: total / count for name, (total, count) in window.items() if name in latest}
    line = {**latest, **means}
    if "perplexity" in line:
        line["perplexity"] = perplexity_of(line["lm_loss"])
    return line


def perplexity_of(lm_loss: float) -> float:
    """Return exp(lm_loss); the loss, in nats per token, is capped at MAX_EXPONENT."""
    return math.exp(min(lm_loss, MAX_EXPONENT))


MAX_SKIPPED_IN_A_ROW = 50


class DeferredMetrics(Mapping[str, float]):
    """Metrics of a step, read on first access: ``read`` then calls `set` of all that are pending."""

    def __init__(self, read: Callable[[], None]):
        self._read = read
        self._values: Optional[dict[str, float]] = None

    def set(self, values: dict[str, float]) -> None:
        """Set the metrics as numbers."""
        self._values = values

    def _known(self) -> dict[str, float]:
        if self._values is None:
            self._read()
        assert self._values is not None  # ``read`` has set them
        return self._values

    def __getitem__(self, name: str) -> float:
        return self._known()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())


class MetricsBuffer:
    """The steps of a loop whose metrics have not been read yet; reading them updates ``state``.

    ``latest``: the metrics of the last step that was read.
    """

    def __init__(self, state: TrainState, schedule: Schedule):
        self.state, self.schedule = state, schedule
        self.latest: dict[str, float] = {}
        self._steps: list[tuple[int, int, Mapping[str, float]]] = []  # number, last sample, metrics
        self._skipped_in_a_row, self._work = 0, StepWork()

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of the step that ``state`` has just taken."""
        self._steps.append((self.state.step, self.state.consumed_samples - 1, metrics))

    def read(self) -> None:
        """Read all pending metrics, in their order. Raises NumbersError if a step must not be kept."""
        steps, self._steps = self._steps, []
        for number, last_sample, read in steps:
            metrics = dict(read)
            self._work = self._work.plus(take_work(metrics, self.schedule.global_batch_size))
            self._check_numbers(metrics, number, last_sample)
            self.state.window = add_step(self.state.window, metrics)
            self.latest = metrics

    def take_work(self) -> StepWork:
        """Return the work of the steps that were read since the last call."""
        work, self._work = self._work, StepWork()
        return work

    def _check_numbers(self, metrics: dict[str, float], number: int, last: int) -> None:
        """Count skipped steps. Raises NumbersError if the run must not continue."""
        state = self.state
        skipped = int(metrics.get("skipped_updates", state.skipped_updates))
        in_a_row = self._skipped_in_a_row + 1 if skipped > state.skipped_updates else 0
        state.skipped_updates, self._skipped_in_a_row = skipped, in_a_row
        if in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise NumbersError(
                f"{in_a_row} steps in a row were skipped, up to {number}: their numbers were not "
                f"finite; lower the learning rate, or look at the samples up to {last}, then start the same "
                "command again"
            )
        if not in_a_row and not math.isfinite(metrics["loss"]):
            first = last + 1 - self.schedule.global_batch_size
            raise NumbersError(
                f"the loss of step {number} (samples {first} to {last}) is {metrics['loss']}; lower the "
                "learning rate, or look at these samples, then start the same command again"
            )
