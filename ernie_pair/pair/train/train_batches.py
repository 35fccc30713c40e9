"""The micro-batches of an epoch, for `PairTrainer.get_train_dataloader` and for what a user returns there.

B rows, S tokens.
"""

from itertools import count, islice
from typing import Any, Dict, Iterator, List, Mapping

import numpy as np

from data_tools.base.errors import InputError
from ernie_pair.inference.token_rows import Batch
from ernie_pair.model_files.labels import RANKING
from ernie_pair.model_files.spec import ModelSpec
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.train.datasets import PairData
from ernie_pair.pair.train.user_loss import INPUTS


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

    def __iter__(self) -> Iterator[Dict[str, np.ndarray]]:
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

    def updates(consumed: int) -> Iterator[List[Batch]]:
        epoch, skipped = divmod(consumed // rows_per_batch, length)
        batches = _batches_from(loader, epoch, skipped, spec)
        while True:
            yield list(islice(batches, config.gradient_accumulation_steps))

    return data._replace(updates=updates, num_rows=length * rows_per_batch, train=None)


def _batches_from(loader: Any, first_epoch: int, skipped: int, spec: ModelSpec) -> Iterator[Batch]:
    for epoch in count(first_epoch):
        for told in (loader, getattr(loader, "batch_sampler", None)):
            set_epoch = getattr(told, "set_epoch", None)
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
