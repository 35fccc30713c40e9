"""Sentences -> rows (first sentence, end sentence, target length): which text makes which sample.

Three documents of 2, 1 and 3 sentences with 4 tokens each, target length 8:

    docs = [0 2 3 6]    lens = [4 4 4 4 4 4]    rows = [0 2 8] [2 3 8] [3 6 8]

The last document keeps its third sentence with the first two: a single sentence left over would make a
sample that cannot be split into two segments. Every document gives at least one row; the rows of an
epoch are in random order, epoch after epoch, and a longer map begins with the shorter one.
"""

from pathlib import Path
from typing import Callable, Dict

import numpy as np

from ernie_pair.core.errors import InputError
from ernie_pair.core.files.arrays import chunks
from ernie_pair.core.files.keyed_cache import array_cache, mix, mix_all, mix_range
from ernie_pair.core.installation import raise_interrupt

try:
    from data_tools import _helpers  # compiled from helpers.cpp by setup.py
except ImportError as error:
    raise_interrupt(error)
    _helpers = None  # type: ignore[assignment]  # not compiled: its Python twin is used

VERSION = 1  # of the rows that the same input gives; part of the cache key
SHORTEST = 2
MAX_SAMPLES = 2**31 - 1


def build_sample_map(
    docs: np.ndarray,
    lens: np.ndarray,
    documents: range,
    *,
    num_samples: int,
    target_length: int,
    short_seq_prob: float,
    seed: int,
    min_sentences: int,
) -> np.ndarray:
    """Make exactly ``num_samples`` rows (first sentence, end sentence, target length) over ``documents``.

    ``docs`` int64 [D + 1]: the sentence each document starts at; ``lens`` int32 [N]: tokens of each
    sentence. A row of fewer than ``min_sentences`` sentences occurs only if a document has no more. With
    probability ``short_seq_prob`` a target is uniform in 2..target_length. Returns int64 [num_samples, 3],
    a pure function of the arguments. Raises InputError for no sentence, or above MAX_SAMPLES.
    """
    if num_samples > MAX_SAMPLES:
        raise InputError(
            f"the run asks for {num_samples} samples, more than {MAX_SAMPLES}; use fewer steps or a "
            "smaller global batch"
        )
    cut = _helpers.cut_documents if _helpers else cut_documents
    bounds = np.ascontiguousarray(docs[documents.start : documents.stop + 1], dtype=np.int64)
    lens = np.ascontiguousarray(lens, dtype=np.int32)
    threshold = min(int(short_seq_prob * 2.0**64), 2**64 - 1)
    epochs, rows, epoch = [], 0, 0
    while rows < num_samples:
        found = cut(bounds, lens, target_length, threshold, mix_all(seed, epoch, 1), min_sentences)
        if not len(found):
            raise InputError(
                f"documents {documents.start}..{documents.stop} hold no sentence; use a larger corpus"
            )
        order = np.argsort(mix_range(mix_all(seed, epoch, 2), len(found)), kind="stable")
        epochs.append(found[order][: num_samples - rows])
        rows, epoch = rows + len(epochs[-1]), epoch + 1
    return np.concatenate(epochs) if epochs else np.empty((0, 3), np.int64)


def rows_fit(rows: np.ndarray, *, num_rows: int, sentences: range, target_length: int) -> bool:
    """Return whether ``rows``, integers [.., 3], are ``num_rows`` that `build_sample_map` could have made."""
    least = (sentences.start, sentences.start, SHORTEST)
    most = (sentences.stop, sentences.stop, target_length)
    parts = map(np.asarray, chunks(rows))
    return len(rows) == num_rows and all(
        (part >= least).all() and (part <= most).all() and (part[:, 0] < part[:, 1]).all() for part in parts
    )


def cut_documents(
    bounds: np.ndarray, lens: np.ndarray, target_length: int, threshold: int, stream: int, min_sentences: int
) -> np.ndarray:
    """Cut documents into the rows of one epoch in corpus order; the specification of the C++ twin.

    ``bounds`` int64 [D + 1]: the sentence each document starts at; ``lens`` int32 [N]: tokens of each
    sentence. ``threshold``: a target is short when a 64-bit draw is below it. The draws of row r come from
    (stream, r) only. Returns int64 [rows, 3].
    """
    rows = []
    target = _target_of(0, target_length, threshold, stream)
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist()):
        first, tokens = start, 0
        for sentence in range(start, end):
            tokens += int(lens[sentence])
            rest = end - sentence - 1
            full = tokens >= target and sentence + 1 - first >= min_sentences and rest != 1
            if full or rest == 0:
                rows.append((first, sentence + 1, target))
                first, tokens = sentence + 1, 0
                target = _target_of(len(rows), target_length, threshold, stream)
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _target_of(row: int, target_length: int, threshold: int, stream: int) -> int:
    draw = mix((stream + row) & 0xFFFFFFFFFFFFFFFF)
    if draw >= threshold:
        return target_length
    return SHORTEST + mix(draw) % (target_length - SHORTEST + 1)


LOCK_SECONDS = 1800


def cached_sample_map(
    cache_dir: Path,
    key: Dict[str, object],
    build: Callable[[], np.ndarray],
    fits: Callable[[np.ndarray], bool],
) -> np.ndarray:
    """Return ``build()``, or what was built for an equal ``key`` before; memory mapped, read-only.

    ``key`` is everything the rows depend on, as JSON; rows of which ``fits`` is false are not used.
    Any number of processes may call it at once: one builds while it holds a lock, the others wait, and
    if it dies the next one builds. Raises MachineError if the lock is held for half an hour, or if the
    rows cannot be read back.
    """
    keyed = {**key, "version": VERSION}

    def narrow() -> np.ndarray:
        rows = build()
        return rows.astype(np.uint32) if rows.size == 0 or rows.max() < 2**32 else rows

    def are_rows(rows: np.ndarray) -> bool:
        return rows.ndim == 2 and rows.shape[1] == 3 and rows.dtype.kind in "iu" and fits(rows)

    return array_cache(cache_dir, keyed, fits=are_rows).get(narrow, LOCK_SECONDS)
