"""How far a tool is: a bar with the time left on a terminal, lines when asked for, else silence."""

import sys
from pathlib import Path
from typing import Sequence

from tqdm import tqdm


class Progress:
    """Measured in bytes of the inputs; ``log_interval`` documents lie between two lines, 0 means no lines."""

    def __init__(self, inputs: Sequence[Path], log_interval: int):
        self._size = sum(path.stat().st_size for path in inputs)
        self._log_interval = log_interval
        self._made = self._told = 0

    def __enter__(self) -> "Progress":
        self._bar = tqdm(total=self._size, unit="B", unit_scale=True, disable=None)
        return self

    def __exit__(self, *exception) -> None:
        self._bar.close()

    def read(self, num_bytes: int) -> None:
        """Move the bar on by the bytes that were read."""
        self._bar.update(num_bytes)

    def made(self, num_documents: int) -> None:
        """Count documents, and print the count every ``log_interval`` of them."""
        self._made += num_documents
        if self._log_interval and self._made - self._told >= self._log_interval:
            tqdm.write(f"{self._made} documents", file=sys.stderr)
            self._told = self._made
