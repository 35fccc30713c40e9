"""Arrays of a long run, computed block by block and kept beside its output until it is done.

OUTPUT.work/block-NAME.npy, .json    a block; NAME is a hash of all that it depends on

A run that is killed finds them when it is started again and computes the rest; see `keyed_cache`.
"""

import contextlib
import re
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import numpy as np

from data_tools.files.keyed_cache import KeyedCache
from data_tools.files.npy_stream import sha256_of_file

ENDING, KIND = ".work", "block-"
LOCK_SECONDS = 24 * 3600.0
_OWN = re.compile(rf"\.?{KIND}[0-9a-f]{{32}}(?:\.\w+)?\.(?:npy|json|lock)")


class KeptBlocks:
    """The blocks of the run that writes ``output``; ``key``: all that its arrays depend on, as JSON.

    What another key has left is not found, and removed with the rest at the end.
    """

    def __init__(self, output: Path, key: Dict[str, object]):
        self.folder, self._key = output.with_name(output.name + ENDING), key

    def get(self, name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the block ``name``, mapped into memory; ``compute`` makes it where it is not there."""
        return self._cache(name).get(compute, LOCK_SECONDS)

    def read(self, name: str) -> Optional[np.ndarray]:
        """Return the block ``name``, None where it is not there."""
        return self._cache(name).read()

    def remove(self) -> None:
        """Delete the blocks, those of other flags too, and their folder where nothing else is in it."""
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if _OWN.fullmatch(path.name):
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it is not there, or a person keeps something in it
            self.folder.rmdir()

    def _cache(self, name: str) -> "KeyedCache[np.ndarray]":
        key = {**self._key, "block": name}
        return KeyedCache(self.folder, key, _write, _load, kind=KIND, ending=".npy")


def _write(block: np.ndarray, draft: Path) -> Dict[str, object]:
    with open(draft, "wb") as file:
        np.save(file, block, allow_pickle=False)
    return {"sha256": sha256_of_file(draft)}


def _load(note: Dict[str, Any], path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r", allow_pickle=False)
