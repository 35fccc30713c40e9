"""Sentences -> rows (first sentence, end sentence, target length): which text makes which sample.

Three documents of 2, 1 and 3 sentences with 4 tokens each, target length 8:

    docs = [0 2 3 6]    lens = [4 4 4 4 4 4]    rows = [0 2 8] [2 3 8] [3 6 8]

The last document keeps its third sentence with the first two: a rest of one sentence would make a
sample that cannot be split into two segments. Every document gives at least one row; the rows of an
epoch are in random order, epoch after epoch, and a longer map begins with the shorter one.
"""

import hashlib
import json
import logging
from pathlib import Path
from typing import Callable, Dict, Optional

import numpy as np
from filelock import FileLock, Timeout

from data_tools.errors import InputError, MachineError
from data_tools.hashing import mix, mix_all, mix_range
from data_tools.publish import published

try:
    from data_tools import _helpers  # compiled from helpers.cpp by setup.py
except ImportError:
    _helpers = None

VERSION = 1  # of the rows that the same input gives; part of the cache key
SHORTEST = 2
LOCK_SECONDS = 1800

logger = logging.getLogger(__name__)


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
    """Exactly ``num_samples`` rows (first sentence, end sentence, target length) over ``documents``.

    ``docs`` int64 [D + 1]: the sentence each document starts at; ``lens`` int32 [N]: tokens of each
    sentence. A row of fewer than ``min_sentences`` sentences stands only where a document has no
    more. With probability ``short_seq_prob`` a target is uniform in 2..target_length. Returns int64
    [num_samples, 3], a pure function of the arguments. Raises InputError when there is no sentence.
    """
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


def cut_documents(
    bounds: np.ndarray, lens: np.ndarray, target_length: int, threshold: int, stream: int, min_sentences: int
) -> np.ndarray:
    """The rows of one epoch in corpus order, int64 [rows, 3]; the specification of the C++ twin.

    ``threshold``: a target is short when a 64-bit draw is below it. The draws of row r come from
    (stream, r) only.
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


def cached_sample_map(cache_dir: Path, key: Dict[str, object], build: Callable[[], np.ndarray]) -> np.ndarray:
    """``build()``, or what an equal ``key`` built before; memory mapped, read-only.

    ``key`` is everything the rows depend on, as JSON. Any number of processes may ask at once: one
    builds under a lock that the kernel frees when its owner dies, and a file is visible only when
    it is whole. Raises MachineError when another process holds the lock for half an hour.
    """
    name = hashlib.sha256(json.dumps({**key, "version": VERSION}, sort_keys=True).encode()).hexdigest()[:32]
    path = cache_dir / f"{name}.npy"
    cache_dir.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(cache_dir / f"{name}.lock", timeout=LOCK_SECONDS):
            if _read(path) is None:
                _publish(path, build())
    except Timeout:
        raise MachineError(f"{path} is still being built by another process; look whether it hangs") from None
    return _read(path)


def _publish(path: Path, rows: np.ndarray) -> None:
    narrow = rows.astype(np.uint32) if rows.size == 0 or rows.max() < 2**32 else rows
    with published(path) as (draft,), open(draft, "wb") as file:
        np.save(file, narrow, allow_pickle=False)


def _read(path: Path) -> Optional[np.ndarray]:
    """The rows of a finished file; None when there is none, or it is damaged: a cache is disposable."""
    if not path.exists():
        return None
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
        sound = rows.ndim == 2 and rows.shape[1] == 3
    except (ValueError, EOFError, OSError):
        sound = False
    if not sound:
        logger.warning("%s is damaged and is built again", path)
        return None
    return rows
