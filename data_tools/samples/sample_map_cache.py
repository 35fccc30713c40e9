"""Sample maps on disk: built once, checked whenever they are read, built again when anything is wrong.

CACHE/NAME.npy    the rows: uint32 where they fit, otherwise int64 [rows, 3]
CACHE/NAME.json   their sha256 and the key they were built for; written last, so the two are whole
CACHE/NAME.lock   held by the process that builds them

NAME is a hash of all that the rows depend on, so another corpus, split or seed has other files.
"""

import hashlib
import json
import logging
from pathlib import Path
from typing import BinaryIO, Callable, Dict, NamedTuple, Optional

import numpy as np

from data_tools.base.errors import MachineError
from data_tools.files.atomic_files import make_folder, published
from data_tools.files.file_lock import locked
from data_tools.files.json_file import as_read, read_note
from data_tools.files.npy_stream import sha256_of_file
from data_tools.samples.sample_map import VERSION

LOCK_SECONDS = 1800

logger = logging.getLogger(__name__)


class _Files(NamedTuple):
    rows: Path
    note: Path


def cached_sample_map(
    cache_dir: Path,
    key: Dict[str, object],
    build: Callable[[], np.ndarray],
    fits: Callable[[np.ndarray], bool],
) -> np.ndarray:
    """``build()``, or what an equal ``key`` built before; memory mapped, read-only.

    ``key`` is everything the rows depend on, as JSON; rows of which ``fits`` is false are not used.
    Any number of processes may ask at once: one builds while it holds a lock, the others wait, and
    the next one builds when it dies. Raises MachineError: the lock is held for half an hour, or the
    disk does not keep what is written.
    """
    key = {**key, "version": VERSION}
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    files = _Files(cache_dir / f"{name}.npy", cache_dir / f"{name}.json")
    rows = _read(files, key, fits)
    if rows is not None:
        return rows
    make_folder(cache_dir)
    with locked(cache_dir / f"{name}.lock", LOCK_SECONDS):
        rows = _read(files, key, fits)
        if rows is not None:
            return rows
        if files.rows.exists():
            logger.warning("%s is damaged or unfinished and is built again", files.rows)
        _publish(files, key, build())
    rows = _read(files, key, fits)
    if rows is None:
        raise MachineError(f"{files.rows}: the disk did not keep what was written; check it, run again")
    return rows


def _publish(files: _Files, key: Dict[str, object], rows: np.ndarray) -> None:
    narrow = rows.astype(np.uint32) if rows.size == 0 or rows.max() < 2**32 else rows
    with published(*files) as (rows_draft, note_draft):
        with open(rows_draft, "wb") as file:
            hashed = _Hashed(file)
            np.save(hashed, narrow, allow_pickle=False)
        note_draft.write_text(json.dumps({"sha256": hashed.digest.hexdigest(), "key": key}))


class _Hashed:
    """A file that knows the hash of what it was given, whatever the disk makes of it."""

    def __init__(self, file: BinaryIO):
        self.file, self.digest = file, hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        return self.file.write(content)


def _read(files: _Files, key: Dict[str, object], fits: Callable[[np.ndarray], bool]) -> Optional[np.ndarray]:
    """None when the rows are not there, not those of ``key``, or not as they were written."""
    note = read_note(files.note)
    if note is None or note.get("key") != as_read(key):
        return None
    try:
        if note.get("sha256") != sha256_of_file(files.rows):
            return None
        rows = np.load(files.rows, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    sound = rows.ndim == 2 and rows.shape[1] == 3 and rows.dtype.kind in "iu" and fits(rows)
    return rows if sound else None
