"""Steps of pretraining whose numbers have not been read yet, and what the host has counted for them."""

from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Union

import numpy as np

from ernie_pair.engine.logging_window import perplexity_of
from ernie_pair.engine.readings import DeferredMetrics
from ernie_pair.pretrain.data import MicroBatch
from ernie_pair.pretrain.graph.step_monitors import GRADIENT_NORM

# What losses and hits are summed over, in the order of the records, each with its labels.
LABELS = {"lm": "masked_lm_labels", "sop": "next_sentence_labels", "ngram": "ngram_labels"}
NUM_WORK = 3  # numbers that say what a step has computed


class PlacedBatch(NamedTuple):
    """A micro-batch as it is fed, and its counts: float64 [L + 3], labels first, then work."""

    feed: Dict[str, Any]
    counts: np.ndarray


class WaitingStep(NamedTuple):
    """A step that has not been read yet; ``counts`` is the sum over its micro-batches.

    ``feeds``, one per pass, are kept until then: a GPU may not have read them yet.
    """

    metrics: DeferredMetrics
    feeds: List[Dict[str, Any]]
    counts: np.ndarray
    rate: float

    @property
    def passes(self) -> int:
        """Return the number of passes of the step."""
        return len(self.feeds)


def count_passes(steps: Sequence[WaitingStep]) -> int:
    """Return the passes of all ``steps``."""
    return sum(step.passes for step in steps)


def set_metrics(
    steps: List[WaitingStep],
    rows: np.ndarray,
    add_up: Callable[[np.ndarray], np.ndarray],
    monitored: Dict[str, float],
) -> None:
    """Set the metrics of ``steps``, whose passes recorded ``rows``, see `PretrainProgram.records`.

    ``add_up``: float64 [N] -> the sums over the ranks. ``monitored``: the other values of the last step.
    """
    ends = np.cumsum([step.passes for step in steps])
    parts = [rows[end - step.passes : end] for step, end in zip(steps, ends)]
    num_labels = len(steps[0].counts) - NUM_WORK
    num_sums = 2 * num_labels
    own = [np.append(sum_rows(part[:, :num_sums]), step.counts) for step, part in zip(steps, parts)]
    added = add_up(np.concatenate(own)).reshape(len(steps), -1)
    for step, part, values in zip(steps, parts, added):
        sums, labelled, (tokens, padded_tokens, flops) = np.split(values, [num_sums, num_sums + num_labels])
        norm = {GRADIENT_NORM: float(part[-1, num_sums])} if GRADIENT_NORM in monitored else {}
        work = {"tokens": tokens, "padded_tokens": padded_tokens, "flops": flops}
        metrics = {**means_of(sums, labelled), "learning_rate": step.rate, **monitored, **norm, **work}
        step.metrics.set({**metrics, "padding_share": 1 - tokens / padded_tokens})


def sum_rows(rows: np.ndarray, start: Union[np.ndarray, float] = 0.0) -> np.ndarray:
    """Return ``start`` plus the rows [N, K] one after another, float64 [K]."""
    total = np.zeros(rows.shape[1]) + start
    for row in rows:
        total += row
    return total


def count_labels(batch: MicroBatch) -> np.ndarray:
    """Count labelled tokens and samples and, with a lexicon, n-grams: float64 [2 or 3]."""
    return np.array([(batch[name] >= 0).sum() for name in LABELS.values() if name in batch], np.float64)


def weighed_labels(labelled: np.ndarray) -> np.ndarray:
    """Return the label counts of the step's two losses: masked tokens and n-grams together, and samples.

    ``labelled``: float64 [2 or 3], see `count_labels`.
    """
    return labelled[:2] + [labelled[2:].sum(), 0]


def means_of(sums: np.ndarray, labelled: np.ndarray) -> Dict[str, float]:
    """Return the losses and accuracies of ``sums`` [4 or 6] over the label counts ``labelled`` [2 or 3].

    The loss is the mean over all masked tokens and n-grams, plus that of the sentence order, if any sample is
    labelled with one.
    """
    lm_loss, lm_accuracy, sop_loss, sop_accuracy, *of_ngrams = (
        sums / np.maximum(labelled, 1).repeat(2)
    ).tolist()
    masked_loss = lm_loss
    if of_ngrams:
        masked_loss = float((sums[0] + sums[4]) / max(weighed_labels(labelled)[0], 1))
    metrics = {
        "loss": masked_loss + sop_loss,
        "lm_loss": lm_loss,
        "perplexity": perplexity_of(lm_loss),
        "sop_loss": sop_loss,
        "lm_accuracy": lm_accuracy,
        "sop_accuracy": sop_accuracy,
        **dict(zip(("ngram_loss", "ngram_accuracy"), of_ngrams)),
    }
    if not labelled[1]:
        del metrics["sop_loss"], metrics["sop_accuracy"]
    return metrics
