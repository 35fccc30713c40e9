"""Texts on disk, read one by one, so that millions of them need no memory.

NAME.utf8          the texts, end to end
NAME.offsets.npy   int64 [texts + 1]: text i is bytes offsets[i] to offsets[i + 1]
"""

from pathlib import Path
from typing import Iterator, List, Tuple

import numpy as np

from data_tools.base.errors import CheckpointError
from data_tools.files.npy_stream import ArrayFile

TEXT_ENDING, OFFSETS_ENDING = ".utf8", ".offsets.npy"
BLOCK = 4096  # offsets kept in memory before they are written
CURE = "make the index again"


def table_files(name: str) -> Tuple[str, str]:
    """Return the names of the two files of a table."""
    return f"{name}{TEXT_ENDING}", f"{name}{OFFSETS_ENDING}"


class TextTableWriter:
    """Writes a table of texts, used with ``with``; it is complete once the context ends without an error."""

    def __init__(self, folder: Path, name: str):
        texts, offsets = table_files(name)
        self._texts = open(folder / texts, "wb")  # noqa: SIM115 - closed by __exit__
        self._offsets = ArrayFile(folder / offsets, np.dtype(np.int64))
        self._held: List[int] = [0]
        self._end = 0

    def __enter__(self) -> "TextTableWriter":
        return self

    def append(self, text: str) -> None:
        """Write a text."""
        content = text.encode("utf-8")
        self._texts.write(content)
        self._end += len(content)
        self._held.append(self._end)
        if len(self._held) >= BLOCK:
            self._write_offsets()

    def __exit__(self, kind, *exception) -> None:
        with self._texts, self._offsets:
            if kind is None:
                self._write_offsets()
                self._offsets.finish()

    def _write_offsets(self) -> None:
        self._offsets.append(np.array(self._held, dtype=np.int64))
        self._held = []


class TextTable:
    """The texts of a table, memory-mapped. Raises CheckpointError when its two files do not match."""

    def __init__(self, folder: Path, name: str):
        texts, offsets = (folder / file for file in table_files(name))
        try:
            self._offsets = np.load(offsets, mmap_mode="r", allow_pickle=False)
            size = texts.stat().st_size
            self._texts = np.memmap(texts, dtype=np.uint8, mode="r") if size else np.zeros(0, np.uint8)
        except (OSError, ValueError, EOFError) as error:
            raise CheckpointError(
                f"{offsets.parent}: the table of {name} is damaged ({error}); {CURE}"
            ) from None
        is_table = self._offsets.ndim == 1 and self._offsets.dtype == np.int64 and len(self._offsets)
        if not is_table or self._offsets[0] != 0 or self._offsets[-1] != size:
            raise CheckpointError(f"{offsets} does not fit {texts.name}; {CURE}")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, place: int) -> str:
        begin, end = self._offsets[place : place + 2].tolist()
        return self._texts[begin:end].tobytes().decode("utf-8")

    def chunks(self, size: int) -> Iterator[List[str]]:
        """Yield the texts in order, ``size`` at a time."""
        for first in range(0, len(self), size):
            ends = self._offsets[first : first + size + 1]
            content = self._texts[ends[0] : ends[-1]].tobytes()
            places = (ends - ends[0]).tolist()
            yield [content[begin:end].decode("utf-8") for begin, end in zip(places, places[1:])]
