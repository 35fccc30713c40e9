"""The metrics of steps and evaluations, and the floating-point operations of an encoder, from its shapes.

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
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional

import numpy as np

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


# Counts of the probabilities of class 1 in an event of an evaluation, and what VisualDL draws of them.
PROBABILITY_COUNTS = "probability_counts"
PARTS, BARS = 100, 20  # thresholds of a curve, at most 127 in VisualDL; bars of a histogram
MAX_BAR_ROWS = 1_000_000  # of a histogram; of more, every second, third, ... is drawn
MAX_COUNT = 1 << 40


def count_probabilities(probabilities: np.ndarray, labels: np.ndarray) -> list[list[int]]:
    """Return the counts of probabilities of class 1, float64 [N], by labels int64 [N]; NaN is ignored."""
    finite = np.isfinite(probabilities)
    parts = np.minimum((probabilities[finite] * PARTS).astype(np.int64), PARTS - 1)
    known = labels[finite]
    return [np.bincount(parts[known == label], minlength=PARTS).tolist() for label in (0, 1)]


def parse_counts(content: object) -> Optional[np.ndarray]:
    """Return the counts of an event, int64 [2, PARTS]; None if it has no valid ones."""
    sound = (
        isinstance(content, list)
        and len(content) == 2
        and all(isinstance(row, list) and len(row) == PARTS for row in content)
        and all(type(count) is int and 0 <= count < MAX_COUNT for row in content for count in row)
    )
    return np.array(content, dtype=np.int64) if sound else None


def curve_of(counts: np.ndarray) -> dict[str, list]:
    """Return the precision-recall curve of counts [2, PARTS] at the lower ends of the parts.

    If nothing is predicted as class 1, the precision is 1, as in scikit-learn.
    """
    fp, tp = (row[::-1].cumsum()[::-1] for row in counts)
    tn, fn = fp[0] - fp, tp[0] - tp
    precision = np.where(tp + fp, tp / np.maximum(tp + fp, 1), 1.0)
    recall = tp / max(int(tp[0]), 1)
    content = {"tp": tp, "fp": fp, "tn": tn, "fn": fn, "precision": precision, "recall": recall}
    return {name: values.tolist() for name, values in content.items()}


def draw_counts(writer: Any, group: str, counts: np.ndarray, step: int) -> None:
    """Draw a step with a `LogWriter` of VisualDL: a histogram of each label, and the curve."""
    from unittest.mock import patch

    from visualdl.component import base_component

    bars = counts.reshape(2, BARS, -1).sum(axis=2)
    bars //= 1 + bars.sum() // MAX_BAR_ROWS
    edges = np.linspace(0, 1, BARS + 1)
    for label, rows in enumerate(bars):
        values = np.repeat((edges[:-1] + edges[1:]) / 2, rows)
        writer.add_histogram(f"{group}/probability of 1, label {label}", values, step, buckets=edges)
    # VisualDL 2.5.3 computes the curve itself, with np.float, which NumPy 1.24 removed.
    with patch.object(base_component, "compute_curve", return_value=curve_of(counts)):
        writer.add_pr_curve(f"{group}/class 1", [], [], step)
