"""Arrays on disk that are written piece by piece: a growing .npy, members of an .npz."""

import hashlib
import zipfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Callable, Iterable, Iterator, Optional

import numpy as np

from ernie_pair.core.errors import CheckpointError, MachineError

HEADER_BYTES = 128
_CHUNK = 1 << 20


class ArrayFile(AbstractContextManager):
    """A 1-D .npy that grows: the header is written when the length is known."""

    def __init__(self, path: Path, dtype: np.dtype):
        self.path, self.dtype, self.count = path, dtype, 0
        self._file = open(path, "wb")  # noqa: SIM115 - closed by __exit__
        self._file.write(bytes(HEADER_BYTES))
        self._hash = hashlib.sha256()

    def __exit__(self, *exception) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self.count

    def append(self, values: np.ndarray) -> None:
        """Write more values [n], cast to the type of the file."""
        content = np.ascontiguousarray(values, dtype=self.dtype).data.cast("B") if len(values) else b""
        self._file.write(content)
        self._hash.update(content)
        self.count += len(values)

    def finish(self) -> None:
        """Write the header, and check that what was appended can be read back."""
        self._file.seek(0)
        self._file.write(npy_header(self.dtype, self.count))
        self._file.close()
        if sha256_of_file(self.path, skip=HEADER_BYTES) != self._hash.hexdigest():
            raise MachineError(f"{self.path}: cannot be read back as written; check the disk, run again")


def npy_header(dtype: np.dtype, *shape: int) -> bytes:
    """Return the header of a version 1.0 .npy of that shape, always HEADER_BYTES long."""
    words = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    length = HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + words.encode().ljust(length - 1) + b"\n"


def mapped_array(path: Path, hint: str) -> np.ndarray:
    """Return the array in an .npy, memory-mapped, or read if it is empty. Raises CheckpointError."""
    try:
        with open(path, "rb") as file:
            head = file.read(len(np.lib.format.MAGIC_PREFIX))
        if head != np.lib.format.MAGIC_PREFIX:
            raise ValueError("no .npy")
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:  # an empty one cannot be mapped
            found = np.load(path, allow_pickle=False) if path.stat().st_size <= HEADER_BYTES else None
            if found is None or found.size:
                raise
            return found
    except Exception as error:  # whatever numpy makes of a header that somebody made up
        raise CheckpointError(f"{path} cannot be read ({str(error)[:100]}); {hint}") from None


def write_member(archive, name: str, dtype: np.dtype, count: int, parts: Iterable[np.ndarray]) -> None:
    """Write ``name``.npy into a zip archive, from parts of ``count`` numbers in all."""
    # A ZipInfo of our own carries the date 1980-01-01, so equal corpora are equal files.
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        member.write(npy_header(dtype, count))
        for part in parts:
            member.write(np.ascontiguousarray(part, dtype=dtype).data)


def chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield slices of ``array``, small enough to keep several in memory."""
    return (array[begin : begin + _CHUNK] for begin in range(0, len(array), _CHUNK))


def sha256_of_file(path: Path, skip: int = 0, on_read: Optional[Callable[[int], None]] = None) -> str:
    """Return the SHA-256 of a file's bytes without the first ``skip``; ``on_read(n)`` for n read."""
    digest = hashlib.sha256()
    with open(path, "rb") as content:
        content.seek(skip)
        for block in iter(lambda: content.read(_CHUNK), b""):
            digest.update(block)
            if on_read is not None:
                on_read(len(block))
    return digest.hexdigest()
