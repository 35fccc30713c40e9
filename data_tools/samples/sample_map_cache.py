"""Sample maps on disk: built once, checked whenever they are read, built again when anything is wrong.

CACHE/NAME.npy    the rows: uint32 where they fit, otherwise int64 [rows, 3]
CACHE/NAME.json   their sha256 and the key they were built for; written last, to mark both complete
CACHE/NAME.lock   held by the process that builds them

NAME is a hash of all that the rows depend on, so another corpus, split or seed has other files.
"""

import hashlib
from functools import partial
from pathlib import Path
from typing import BinaryIO, Callable, Dict, Optional

import numpy as np

from data_tools.files.keyed_cache import KeyedCache
from data_tools.samples.sample_map import VERSION

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
    key = {**key, "version": VERSION}
    return KeyedCache(cache_dir, key, _write, partial(_load, fits), ending=".npy").get(build, LOCK_SECONDS)


def _write(rows: np.ndarray, draft: Path) -> Dict[str, object]:
    narrow = rows.astype(np.uint32) if rows.size == 0 or rows.max() < 2**32 else rows
    with open(draft, "wb") as file:
        hashed = _Hashed(file)
        np.save(hashed, narrow, allow_pickle=False)
    return {"sha256": hashed.digest.hexdigest()}


class _Hashed:
    """A file that hashes what it is given, not what the disk makes of it."""

    def __init__(self, file: BinaryIO):
        self.file, self.digest = file, hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        return self.file.write(content)


def _load(fits: Callable[[np.ndarray], bool], note: Dict, path: Path) -> Optional[np.ndarray]:
    rows = np.load(path, mmap_mode="r", allow_pickle=False)
    sound = rows.ndim == 2 and rows.shape[1] == 3 and rows.dtype.kind in "iu" and fits(rows)
    return rows if sound else None
