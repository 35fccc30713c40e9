"""Steps of pretraining that were made and have not been read, and what the host has counted of them."""

from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Union

import numpy as np

from ernie_pair.engine.logging_window import perplexity_of
from ernie_pair.engine.readings import DeferredMetrics
from ernie_pair.pretrain.data import MicroBatch
from ernie_pair.pretrain.graph.step_monitors import GRADIENT_NORM

# Of what a loss and the hits of it are summed up, in the order of the records, each with its labels.
LABELS = {"lm": "masked_lm_labels", "sop": "next_sentence_labels", "ngram": "ngram_labels"}
NUM_WORK = 3  # numbers that say what a step has computed


class PlacedBatch(NamedTuple):
    """A micro-batch as it is fed, and what is counted of it: float64 [L + 3], its labels, then its work."""

    feed: Dict[str, Any]
    counts: np.ndarray


class WaitingStep(NamedTuple):
    """A step that was made and has not been read; its micro-batches have ``counts`` in all.

    ``feeds``, one for each pass, are held until then: a GPU may not have read them yet.
    """

    metrics: DeferredMetrics
    feeds: List[Dict[str, Any]]
    counts: np.ndarray
    rate: float

    @property
    def passes(self) -> int:
        """Return how many passes the step has."""
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
    """Set the metrics of ``steps``, whose passes have left ``rows``, see `PretrainProgram.records`.

    ``add_up``: float64 [N] -> the sums over the ranks. ``monitored``: what the last of them left besides.
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
    """Count labelled tokens and samples and, where there is a lexicon, n-grams: float64 [2 or 3]."""
    return np.array([(batch[name] >= 0).sum() for name in LABELS.values() if name in batch], np.float64)


def weighed_labels(labelled: np.ndarray) -> np.ndarray:
    """Return over how many labels the step's two losses are means: of masked tokens and n-grams, of samples.

    ``labelled``: float64 [2 or 3], see `count_labels`; so is the order of the two.
    """
    return labelled[:2] + [labelled[2:].sum(), 0]


def means_of(sums: np.ndarray, labelled: np.ndarray) -> Dict[str, float]:
    """Return the losses and accuracies of ``sums`` [4 or 6] over what is ``labelled`` [2 or 3].

    The loss is the mean over all masked symbols, tokens and n-grams alike, and that of the sentence order.
    """
    lm_loss, lm_accuracy, sop_loss, sop_accuracy, *of_ngrams = (
        sums / np.maximum(labelled, 1).repeat(2)
    ).tolist()
    masked_loss = lm_loss
    if of_ngrams:
        masked_loss = float((sums[0] + sums[4]) / max(weighed_labels(labelled)[0], 1))
    return {
        "loss": masked_loss + sop_loss,
        "lm_loss": lm_loss,
        "perplexity": perplexity_of(lm_loss),
        "sop_loss": sop_loss,
        "lm_accuracy": lm_accuracy,
        "sop_accuracy": sop_accuracy,
        **dict(zip(("ngram_loss", "ngram_accuracy"), of_ngrams)),
    }
