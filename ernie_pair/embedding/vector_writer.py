"""Write vectors piece by piece, so that a killed run continues where it stopped, with the same bytes.

OUT.part/lock          held by the process that writes
OUT.part/vectors.npy   the header, and the rows of the pieces that are done; scales.npy beside it, of int8
OUT.part/pieces.txt    what the vectors are made of, a hash; then the SHA-256 of each piece that is done

A piece counts once its line is there, and its bytes still have that hash: what a killed run or a failing
machine left behind it is written again.
"""

import contextlib
import hashlib
import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

import numpy as np

from data_tools.base.errors import MachineError
from data_tools.files.atomic_files import make_folder
from data_tools.files.file_lock import locked
from data_tools.files.npy_stream import HEADER_BYTES, npy_header
from ernie_pair.checkpoint.manifest import sha256_of
from ernie_pair.inference.vector_files import DTYPES, SCALE_DTYPE, SCALES_FILE, VECTORS_FILE, Packed

LOCK, PIECES, ENDING = "lock", "pieces.txt", ".part"
OURS = {LOCK, PIECES, VECTORS_FILE, SCALES_FILE}


@dataclass(frozen=True)
class VectorShape:
    """What is to be written: ``count`` vectors of ``dim`` numbers, in pieces of ``piece`` rows."""

    count: int
    dim: int
    dtype: str
    piece: int

    @property
    def arrays(self) -> Dict[str, Tuple[np.dtype, Tuple[int, ...]]]:
        """Return {file: (type, shape)}."""
        found: Dict[str, Tuple[np.dtype, Tuple[int, ...]]] = {
            VECTORS_FILE: (DTYPES[self.dtype], (self.count, self.dim))
        }
        return {**found, SCALES_FILE: (SCALE_DTYPE, (self.count,))} if self.dtype == "int8" else found

    @property
    def num_pieces(self) -> int:
        """Return how many pieces there are, the last of which may be shorter."""
        return -(-self.count // self.piece)

    def rows_of(self, number: int) -> int:
        """Return how many rows piece ``number`` has."""
        return min(self.piece, self.count - number * self.piece)

    def row_bytes(self, name: str) -> int:
        """Return the bytes of a row of the file ``name``."""
        dtype, shape = self.arrays[name]
        return dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))


class VectorWriter:
    """Writes what ``shape`` says into ``folder``; ``done`` pieces are there already, of the same ``key``."""

    def __init__(self, folder: Path, shape: VectorShape, key: Dict[str, object]):
        self.folder, self.shape = folder, shape
        self._key = hashlib.sha256(json.dumps([key, asdict(shape)], sort_keys=True).encode()).hexdigest()
        self.done = self._find_done()
        self._cut()

    def append(self, packed: Packed) -> None:
        """Write the next piece, and then the line by which it counts. Raises OSError."""
        assert len(packed.rows) == self.shape.rows_of(self.done)
        content = self._content_of(packed)
        for name, data in content.items():
            self._write(name, data)
        self._write(PIECES, f"{sha256_of(*content.values())}\n".encode())
        self.done += 1

    def _content_of(self, packed: Packed) -> Dict[str, bytes]:
        arrays = {VECTORS_FILE: packed.rows, SCALES_FILE: packed.scales}
        return {
            name: np.ascontiguousarray(arrays[name], dtype=dtype).tobytes()
            for name, (dtype, _) in self.shape.arrays.items()
        }

    def _write(self, name: str, data: bytes) -> None:
        with open(self.folder / name, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _find_done(self) -> int:
        """Return how many pieces of the same key are whole on the disk."""
        path = self.folder / PIECES
        if not path.is_file():
            return 0
        key, *hashes = path.read_bytes().decode("ascii", "replace").split("\n")
        if key != self._key:
            return 0
        done = 0
        for wanted in hashes[: self.shape.num_pieces]:
            content = self._read(done)
            if content is None or sha256_of(*content) != wanted:
                break
            done += 1
        return done

    def _read(self, number: int) -> Optional[List[bytes]]:
        found = []
        for name in self.shape.arrays:
            size = self.shape.row_bytes(name)
            with contextlib.suppress(FileNotFoundError), open(self.folder / name, "rb") as file:
                file.seek(HEADER_BYTES + number * self.shape.piece * size)
                found.append(file.read(self.shape.rows_of(number) * size))
        return found if len(found) == len(self.shape.arrays) else None

    def _cut(self) -> None:
        """Leave the headers and what is done; begin the files that are not there."""
        kept = self.done * self.shape.piece
        lines = [self._key]
        if self.done:
            lines = (self.folder / PIECES).read_text(encoding="ascii").split("\n")[: self.done + 1]
        for name, (dtype, shape) in self.shape.arrays.items():
            with open(self.folder / name, "r+b" if self.done else "wb") as file:
                file.write(npy_header(dtype, *shape))
                file.truncate(HEADER_BYTES + min(kept, self.shape.count) * self.shape.row_bytes(name))
        (self.folder / PIECES).write_text("".join(f"{line}\n" for line in lines), encoding="ascii")

    def publish_into(self, draft: Path) -> None:
        """Put the finished files into ``draft``, and leave them here too, until the folder is removed."""
        assert self.done == self.shape.num_pieces
        for name in self.shape.arrays:
            try:
                os.link(self.folder / name, draft / name)
            except OSError:  # a file system without them
                shutil.copyfile(self.folder / name, draft / name)


@contextmanager
def part_folder(output_dir: Path) -> Iterator[Path]:
    """Hold the folder in which the vectors of ``output_dir`` come to be; it is gone after a clean end.

    Raises MachineError when another process holds it, or when it holds what no run put there.
    """
    folder = output_dir.with_name(output_dir.name + ENDING)
    make_folder(folder)
    strange = sorted(path.name for path in folder.iterdir() if path.name not in OURS or path.is_symlink())
    if strange:
        raise MachineError(
            f"{folder} holds {strange[0]}, which no run made there; rename the folder, or choose another "
            "--output_dir"
        )
    busy = f"{folder}: another run is writing these vectors; let it end, then run again"
    with locked(folder / LOCK, seconds=0, refusal=busy):
        yield folder
        for name in OURS:
            (folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
