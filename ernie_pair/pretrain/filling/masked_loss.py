"""The loss of a pretrained model over the masked tokens of samples, and over the order of their segments."""

from typing import Any, Dict, List, NamedTuple, Optional, Protocol, Sequence

import numpy as np

from data_tools.base.errors import InputError
from data_tools.base.progress import CountProgress
from data_tools.ernie_dataset import Sample
from data_tools.samples.collate import NO_LABEL, collate
from ernie_pair.engine.logging_window import perplexity_of

SEED = 1234  # of the resamples


class Asking(NamedTuple):
    """The longest sample in tokens, the batch size, and the resamples for the interval; 0: no interval."""

    max_seq_len: int
    batch_size: int
    bootstrap: int = 0


class Dataset(Protocol):
    """Samples by index."""

    def __getitem__(self, index: int) -> Sample: ...

    def __len__(self) -> int: ...


def measure_masked_loss(
    model: Any, dataset: Dataset, pad_id: int, asking: Asking, documents: Optional[np.ndarray] = None
) -> Dict[str, Any]:
    """Return lm_loss with its 95 % interval, perplexity, lm_accuracy, sop_loss and sop_accuracy, and counts.

    Without labels of the sentence order there are no sop_loss and sop_accuracy.

    Losses are means in nats over the masked tokens, or over the samples. ``documents``: integers [samples],
    the document of each sample; None: each has its own. The interval is a bootstrap over the documents,
    because samples of one document, or of one text with other masks, are not independent. Raises InputError
    when no token is masked.
    """
    parts: List[np.ndarray] = []
    with CountProgress(len(dataset), "sample") as progress:
        for first in range(0, len(dataset), asking.batch_size):
            numbers = range(first, min(first + asking.batch_size, len(dataset)))
            samples = [dataset[number] for number in numbers]
            parts.append(_sums_of(model, collate(samples, pad_id=pad_id, max_seq_len=asking.max_seq_len)))
            progress.advance(len(samples))
    sums = np.concatenate(parts)
    loss, hits, tokens, order_loss, order_hits, ordered = sums.sum(axis=0).tolist()
    if not tokens:
        raise InputError(
            f"no token of the {len(sums)} samples is masked, so there is no loss; correct --masking_fn"
        )
    lm_loss = loss / tokens
    if documents is None:
        documents = np.arange(len(sums))
    interval = _interval(sums, documents, asking.bootstrap) if asking.bootstrap else None
    return {
        "lm_loss": lm_loss,
        **({} if interval is None else {"lm_loss_interval": interval}),
        "perplexity": perplexity_of(lm_loss),
        "lm_accuracy": hits / tokens,
        **({"sop_loss": order_loss / ordered, "sop_accuracy": order_hits / ordered} if ordered else {}),
        "masked_tokens": int(tokens),
        "samples": len(sums),
        "documents": len(np.unique(documents)),
    }


def _sums_of(model: Any, batch: Dict[str, np.ndarray]) -> np.ndarray:
    """Return loss, hits and number of each sample's masked tokens, then of its sentence order, [B, 6]."""
    import paddle
    from paddle.nn import functional as F

    with paddle.no_grad():
        fed = {name: paddle.to_tensor(batch[name]) for name in ("input_ids", "token_type_ids")}
        outputs = model(**fed, masked_positions=paddle.to_tensor(batch["masked_positions"]))
        found = []
        for logits, name in zip(outputs, ("masked_lm_labels", "next_sentence_labels")):
            labels = paddle.to_tensor(batch[name])
            losses = F.cross_entropy(logits, labels, ignore_index=NO_LABEL, reduction="none")
            hits = logits.numpy().argmax(axis=-1) == batch[name]
            found.append((losses.numpy().reshape(-1), hits, batch[name] != NO_LABEL))
    count, length = batch["input_ids"].shape
    places = (batch["masked_positions"] // length, np.arange(count))
    return np.stack(
        [column for each, place in zip(found, places) for column in _by_sample(each, place, count)], axis=1
    )


def _by_sample(found: Sequence[np.ndarray], place: np.ndarray, count: int) -> List[np.ndarray]:
    """Return loss, hits and number of labelled items, summed for each of ``count`` samples."""
    losses, hits, labelled = found
    values = (losses, hits, np.ones(len(labelled)))
    return [
        np.bincount(place[labelled], value[labelled].astype(np.float64), minlength=count) for value in values
    ]


def _interval(sums: np.ndarray, documents: np.ndarray, resamples: int) -> List[float]:
    """Return the 2.5th and 97.5th percentiles of the mean token loss over resampled documents."""
    _, of_document = np.unique(documents, return_inverse=True)
    losses, tokens = (np.bincount(of_document, sums[:, column]) for column in (0, 2))
    rng = np.random.default_rng(SEED)
    means = []
    for _ in range(resamples):
        drawn = rng.integers(len(losses), size=len(losses))
        means.append(losses[drawn].sum() / max(tokens[drawn].sum(), 1))
    return np.percentile(means, [2.5, 97.5]).tolist()
