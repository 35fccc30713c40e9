"""Arrays that a long run computes piece by piece, so that a killed run keeps those that are finished.

FOLDER/KINDNAME.npy    an array; NAME is a hash of all that it depends on
FOLDER/KINDNAME.json   its key and its hash, see `keyed_cache`
FOLDER/KINDNAME.lock   held by the process that computes it
"""

import re
from functools import partial
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy as np

from data_tools.files.keyed_cache import KeyedCache
from data_tools.files.npy_stream import sha256_of_file

ENDING = ".npy"


class ArrayKind(NamedTuple):
    """What an array that was read must be to be used."""

    dtype: np.dtype
    shape: Tuple[int, ...]


def array_cache(
    folder: Path, key: Dict[str, object], kind: str, wanted: Optional[ArrayKind] = None
) -> "KeyedCache[np.ndarray]":
    """Return the cache in ``folder`` of the array for ``key``, which is read memory mapped.

    ``kind``: prefix of the file names. An array that does not match ``wanted`` is computed again.
    """
    return KeyedCache(folder, key, _write, partial(_load, wanted), kind=kind, ending=ENDING)


def remove_arrays(folder: Path, kind: str) -> None:
    """Remove the arrays of a kind, for any key, and what killed runs have left of them."""
    own = re.compile(rf"\.?{re.escape(kind)}[0-9a-f]{{32}}(?:\.\w+)?\.(?:npy|json|lock)")
    for path in folder.iterdir() if folder.is_dir() else ():
        if own.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _write(array: np.ndarray, draft: Path) -> Dict[str, object]:
    with open(draft, "wb") as file:
        np.save(file, array, allow_pickle=False)
    return {"sha256": sha256_of_file(draft)}


def _load(wanted: Optional[ArrayKind], note: Dict[str, Any], path: Path) -> Optional[np.ndarray]:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array if wanted is None or wanted == (array.dtype, array.shape) else None
