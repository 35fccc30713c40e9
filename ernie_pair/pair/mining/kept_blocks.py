"""Arrays of a long run, computed block by block and kept next to its output until it is finished.

OUTPUT.work/block-NAME.npy, .json    a block; NAME is a hash of all that it depends on

A run that is killed finds them when it is started again and computes the rest; see `array_cache`.
"""

import contextlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Callable, Dict, Optional

import numpy as np

from data_tools.files.array_cache import array_cache, remove_arrays
from data_tools.files.keyed_cache import KeyedCache
from data_tools.files.results import followed, is_stream

ENDING, KIND = ".work", "block-"
LOCK_SECONDS = 24 * 3600.0


class KeptBlocks:
    """The blocks of the run that writes ``output``; ``key``: all that its arrays depend on, as JSON.

    What another key has left is not found, and removed with the rest at the end. A stream has no place next
    to it: its blocks are in a folder for temporary files, for this run alone.
    """

    def __init__(self, output: Path, key: Dict[str, object]):
        self.folder, self._key = output.with_name(output.name + ENDING), key
        self._temporary: Optional[TemporaryDirectory] = None
        if is_stream(followed(output)):
            self._temporary = TemporaryDirectory(prefix="ernie-pair-")  # deletes itself at the latest at exit
            self.folder = Path(self._temporary.name)

    def get(self, name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the block ``name``, mapped into memory; ``compute`` makes it where it is not there."""
        return self._cache(name).get(compute, LOCK_SECONDS)

    def read(self, name: str) -> Optional[np.ndarray]:
        """Return the block ``name``, None where it is not there."""
        return self._cache(name).read()

    def remove(self) -> None:
        """Delete the blocks, those of other flags too, and their folder where nothing else is in it."""
        remove_arrays(self.folder, KIND)
        with contextlib.suppress(OSError):  # it is not there, or a person keeps something in it
            self.folder.rmdir()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _cache(self, name: str) -> "KeyedCache[np.ndarray]":
        return array_cache(self.folder, {**self._key, "block": name}, KIND)
