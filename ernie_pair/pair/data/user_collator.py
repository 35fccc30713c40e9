"""The data_collator of a user: makes a batch of rows in place of the padding of this package.

It is called with the rows of a micro-batch, [{"input_ids": [...], "token_type_ids": [...], "labels": 1},
...], and returns {"input_ids": [B, S], ...} of arrays or tensors. Which rows these are is settled before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional

import numpy as np

from data_tools.files.errors import InputError
from ernie_pair.inference.token_rows import Batch, EncodedPairs
from ernie_pair.models.spec import ModelSpec

DataCollator = Callable[[List[Dict[str, Any]]], Mapping]

KEYS = ("input_ids", "token_type_ids", "attention_mask", "labels", "label")


@dataclass(frozen=True)
class UserCollator:
    """Makes the batches of the model ``spec`` with ``function``; see `EncodedPairs.collator`."""

    function: DataCollator
    spec: ModelSpec

    def __call__(self, rows: EncodedPairs, picked: np.ndarray) -> Batch:
        """Return the batch of the rows ``picked``, int64 [B]; raises InputError when it cannot be used."""
        arrays = _arrays_of(self.function(rows.features(picked)))
        ids = arrays["input_ids"]
        if ids.ndim != 2 or len(ids) != len(picked):
            raise _refused(
                f"input_ids of the shape {list(ids.shape)} for {len(picked)} rows", "one row for each"
            )
        width = ids.shape[1]
        if width > self.spec.max_positions:
            raise _refused(
                f"rows of {width} tokens", f"at most {self.spec.max_positions}, as the model reads"
            )
        if ((ids < 0) | (ids >= self.spec.vocab_size)).any():
            raise _refused("ids outside of the vocabulary", f"ids below {self.spec.vocab_size}")
        own = rows.padded(picked, width)
        real = _real_tokens(ids, own, rows.lengths[picked], rows.pad_id)
        mask = arrays.get("attention_mask")
        if mask is not None and (mask.size != ids.size or (mask.reshape(ids.shape) != real).any()):
            raise _refused("an attention_mask that is not 1 of tokens and 0 of padding", "none, or that one")
        _refuse_other_labels(arrays, own.labels)
        types = self._types(arrays.get("token_type_ids"), ids, own)
        return own._replace(input_ids=ids, token_type_ids=types)

    def _types(self, given: Optional[np.ndarray], ids: np.ndarray, own: Batch) -> np.ndarray:
        is_own = np.array_equal(ids, own.input_ids)
        if is_own and (given is None or self.spec.token_types < 2):
            return own.token_type_ids
        if given is None:
            raise _refused("other input_ids than it was given and no token_type_ids", "both")
        # A model with one type reads none of them; --symmetric tells the two texts by 0 and 1.
        if given.shape != ids.shape or not np.isin(given, range(max(2, self.spec.token_types))).all():
            raise _refused(
                "token_type_ids that do not fit its input_ids", "the segment of each token, 0 or 1"
            )
        return given


def _arrays_of(returned: Any) -> Dict[str, np.ndarray]:
    """Return what a collator returned as arrays, whole numbers as int64."""
    if not isinstance(returned, Mapping) or "input_ids" not in returned:
        raise _refused(
            f"{type(returned).__name__} without input_ids", "a dictionary of arrays with input_ids"
        )
    unknown = [str(key) for key in returned if key not in KEYS]
    if unknown:
        raise _refused(
            f"{', '.join(unknown)}, which the model does not take", f"nothing but {', '.join(KEYS)}"
        )
    arrays = {}
    for key, value in returned.items():
        try:
            array = np.asarray(value)
        except (TypeError, ValueError):  # lists of several lengths
            array = np.zeros(0, object)
        if array.dtype.kind not in ("iubf" if "label" in key else "iub"):
            raise _refused(f"{key} that are no array of whole numbers", "rows of one length: pad them")
        arrays[key] = array.astype(np.int64) if array.dtype.kind in "iub" else array
    return arrays


def _real_tokens(ids: np.ndarray, own: Batch, lengths: np.ndarray, pad_id: int) -> np.ndarray:
    """Return which of ``ids`` are no padding, bool [B, S]. Raises InputError for padding of another kind."""
    within = np.arange(ids.shape[1]) < lengths[:, None]
    if ids.shape == own.input_ids.shape:
        if np.array_equal(ids, own.input_ids):
            return within
        if np.array_equal(ids[within], own.input_ids[within]):
            other = ids[~within & (ids != pad_id)][0]
            raise _refused(f"rows padded with the id {other}", f"padding of this model, which is {pad_id}")
    real = ids != pad_id
    if (real[:, 1:] > real[:, :-1]).any() or not real[:, 0].all():
        raise _refused("padding before tokens", "padding at the end of rows alone")
    return real


def _refuse_other_labels(arrays: Dict[str, np.ndarray], labels: Optional[np.ndarray]) -> None:
    """Raise InputError when the labels of a batch are not those of its rows."""
    for name in ("labels", "label"):
        found = arrays.get(name)
        if found is None:
            continue
        if labels is None or found.size != labels.size or not np.allclose(found.ravel(), labels.ravel()):
            raise _refused(f"other {name} than those of the rows", "them as they were given, or none")


def _refused(what: str, wanted: str) -> InputError:
    return InputError(f"data_collator returned {what}; return {wanted}")
