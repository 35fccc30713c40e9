"""Vectors on disk: written piece by piece by `ernie-pair embed` and `index`, memory-mapped by searches.

vectors.npy   float16 or int8 [N, D], row i for text i; each of length 1 before rounding, unless
              vectors.json says "unit": false
scales.npy    float32 [N], for int8 only: row i is vectors[i] * scales[i]
vectors.json  {"format": 1, "fingerprint": "9c1e...", "count": N, "dim": D, "dtype": "float16",
               "files": {"vectors.npy": SHA-256}, ...}

While they are written, vectors.npy and scales.npy grow beside the folder, and pieces.txt has a line for what
they are of, and the SHA-256 of each finished piece: a run after a killed one goes on behind these. An index
writes vectors of float32 like that, and keeps none.

Two vectors, [0.6, 0.8] and [1, 0], are in int8 [[95, 127], [127, 0]] with the scales [0.8 / 127, 1 / 127].
"""

import hashlib
import json
import os
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple, Union

import numpy as np

from ernie_pair.core.errors import CheckpointError, InputError, NumbersError
from ernie_pair.core.files.arrays import HEADER_BYTES, mapped_array, npy_header, sha256_of_file
from ernie_pair.core.files.atomic_files import WORK_LOCK, naming, working_folder
from ernie_pair.core.files.json_file import is_texts, is_whole_number, read_json_object
from ernie_pair.models.embedding_json import MAX_DIM, MAX_TEXTS

VECTORS_FILE, SCALES_FILE, VECTORS_JSON, VECTORS_FORMAT = "vectors.npy", "scales.npy", "vectors.json", 1
DTYPES: Dict[str, np.dtype] = {
    "float16": np.dtype("<f2"),
    "int8": np.dtype("|i1"),
    "float32": np.dtype("<f4"),
}
WRITTEN = {VECTORS_FILE, SCALES_FILE}
PIECES = "pieces.txt"
OURS = {WORK_LOCK, PIECES, *WRITTEN}  # in the folder where vectors come to be
SCALE_DTYPE = np.dtype("<f4")
MAX_INT8, MAX_FLOAT16 = 127, 65504
HINT = "make them again with ernie-pair embed"


def pack_vectors(vectors: np.ndarray, dtype: str) -> Dict[str, np.ndarray]:
    """Return float32 [N, D] as the files store them in ``dtype``, {VECTORS_FILE: [N, D], SCALES_FILE: [N]}.

    In int8, which alone has scales, the largest number of a row is at 127: the error of a number is then less
    than 1/254 of it. Raises NumbersError for a number beyond the range of float16.
    """
    if dtype == "float32":
        return {VECTORS_FILE: vectors}
    if dtype == "float16":
        if np.abs(vectors).max(initial=0) > MAX_FLOAT16:
            raise NumbersError("a vector holds numbers above 65504, which float16 cannot; pass --dtype int8")
        return {VECTORS_FILE: vectors.astype(DTYPES[dtype])}
    scales = np.abs(vectors).max(axis=1, initial=0) / np.float32(MAX_INT8)
    divisors = np.where(scales > 0, scales, np.float32(1))
    rows = np.rint(vectors / divisors[:, None]).astype(DTYPES[dtype])
    return {VECTORS_FILE: rows, SCALES_FILE: divisors.astype(SCALE_DTYPE)}


@dataclass(frozen=True)
class VectorFile:
    """The vectors of a folder, memory-mapped. ``fingerprint`` is that of the model that made them."""

    folder: Path
    fingerprint: str
    count: int
    dim: int
    dtype: str
    files: Dict[str, str]  # name: SHA-256

    @cached_property
    def array(self) -> np.ndarray:
        """Return the content of vectors.npy, [N, D] in ``dtype``, memory-mapped. Raises CheckpointError."""
        return self._mapped(VECTORS_FILE, DTYPES[self.dtype], (self.count, self.dim))

    @cached_property
    def scales(self) -> Optional[np.ndarray]:
        """Return float32 [N], by which the rows of int8 are multiplied; None for float16."""
        return self._mapped(SCALES_FILE, SCALE_DTYPE, (self.count,)) if self.dtype == "int8" else None

    def rows(self, begin: int, end: int) -> np.ndarray:
        """Return the vectors of texts ``begin`` to ``end``, float32 [rows, D]."""
        found = self.array[begin:end].astype(np.float32)
        return found if self.scales is None else found * self.scales[begin:end, None]

    def verify(self) -> None:
        """Read all files. Raises CheckpointError for one that is not as written."""
        for name, sha256 in self.files.items():
            path = self.folder / name
            if not path.is_file() or sha256_of_file(path) != sha256:
                raise CheckpointError(f"{path} is not the file that was written; {HINT}")

    def _mapped(self, name: str, dtype: np.dtype, shape: tuple) -> np.ndarray:
        path = self.folder / name
        found = mapped_array(path, HINT)
        if found.shape != shape or found.dtype != dtype:
            raise CheckpointError(
                f"{path} holds {found.dtype} {list(found.shape)}, {VECTORS_JSON} says {self.dtype} "
                f"{list(shape)}; {HINT}"
            )
        return found


def open_vectors(folder: Union[str, Path]) -> VectorFile:
    """Open the vectors in ``folder``. Raises InputError if there are none or vectors.json is damaged."""
    path = Path(folder) / VECTORS_JSON
    if not path.is_file():
        raise InputError(f"{folder} holds no {VECTORS_JSON}; make vectors with ernie-pair embed")
    found = read_json_object(path, HINT)
    files = found.get("files")
    is_sound = {
        "format": is_whole_number(found.get("format"), VECTORS_FORMAT, VECTORS_FORMAT),
        "fingerprint": isinstance(found.get("fingerprint"), str) and found["fingerprint"].isprintable(),
        "count": is_whole_number(found.get("count"), 0, MAX_TEXTS),
        "dim": is_whole_number(found.get("dim"), 1, MAX_DIM),
        "dtype": found.get("dtype") in tuple(DTYPES),
        "files": isinstance(files, dict) and set(files) <= WRITTEN and is_texts(list(files.values())),
    }
    for key, sound in is_sound.items():
        if not sound:
            raise InputError(f"{path}: wrong or missing: {key}; {HINT}")
    named = {key: found[key] for key in VectorFile.__dataclass_fields__ if key != "folder"}
    return VectorFile(Path(folder), **named)


class VectorWriter:
    """Writes ``count`` vectors of ``dim`` numbers into ``folder``, in pieces of ``piece`` rows.

    ``done`` pieces are there already, of the same ``key``. ``arrays``: {file: (type, shape)}.
    """

    def __init__(self, folder: Path, count: int, dim: int, dtype: str, piece: int, key: Dict[str, object]):
        self.folder, self.count, self.dim, self.dtype, self.piece = folder, count, dim, dtype, piece
        written = [key, {"count": count, "dim": dim, "dtype": dtype, "piece": piece}]
        self._key = hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()
        self.arrays: Dict[str, Tuple[np.dtype, Tuple[int, ...]]] = {
            VECTORS_FILE: (DTYPES[dtype], (count, dim))
        }
        if dtype == "int8":
            self.arrays[SCALES_FILE] = (SCALE_DTYPE, (count,))
        self._num_pieces = -(-count // piece)  # the last may be shorter
        self.done = self._find_done()
        self._cut()

    def _rows_of(self, number: int) -> int:
        return min(self.piece, self.count - number * self.piece)

    def _row_bytes(self, name: str) -> int:
        dtype, shape = self.arrays[name]
        return dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))

    def append(self, packed: Dict[str, np.ndarray]) -> None:
        """Write the next piece, see `pack_vectors`, and then the line by which it counts. Raises OSError."""
        assert len(packed[VECTORS_FILE]) == self._rows_of(self.done)
        content = {
            name: np.ascontiguousarray(packed[name], dtype=dtype).tobytes()
            for name, (dtype, _) in self.arrays.items()
        }
        content[PIECES] = f"{_sha256_of(*content.values())}\n".encode()
        for name, data in content.items():
            self._write(name, data)
        self.done += 1

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
        for wanted in hashes[: self._num_pieces]:
            content = self._read(done)
            if content is None or _sha256_of(*content) != wanted:
                break
            done += 1
        return done

    def _read(self, number: int) -> Optional[List[bytes]]:
        found = []
        for name in self.arrays:
            size = self._row_bytes(name)
            with suppress(FileNotFoundError), open(self.folder / name, "rb") as file:
                file.seek(HEADER_BYTES + number * self.piece * size)
                found.append(file.read(self._rows_of(number) * size))
        return found if len(found) == len(self.arrays) else None

    def _cut(self) -> None:
        """Leave the headers and what is done; begin the files that are not there."""
        kept = self.done * self.piece
        lines = [self._key]
        if self.done:
            lines = (self.folder / PIECES).read_text(encoding="ascii").split("\n")[: self.done + 1]
        for name, (dtype, shape) in self.arrays.items():
            with open(self.folder / name, "r+b" if self.done else "wb") as file:
                file.write(npy_header(dtype, *shape))
                file.truncate(HEADER_BYTES + min(kept, self.count) * self._row_bytes(name))
        (self.folder / PIECES).write_text("".join(f"{line}\n" for line in lines), encoding="ascii")

    def publish_into(self, draft: Path) -> None:
        """Put the finished files into ``draft``, and leave them here too, until the folder is removed."""
        assert self.done == self._num_pieces
        for name in self.arrays:
            try:
                os.link(self.folder / name, draft / name)
            except OSError:  # a file system without them
                shutil.copyfile(self.folder / name, draft / name)


def _sha256_of(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


@contextmanager
def part_folder(folder: Path, busy: str) -> Iterator[Path]:
    """Hold the folder in which vectors come to be; it stays after an error alone, with finished pieces.

    Raises MachineError, with the message ``busy``, if another process holds it, or it holds what no run made.
    """
    with working_folder(folder, OURS.__contains__, busy) as remove:
        is_done = False
        try:
            with naming(folder):
                yield folder
            is_done = True
        finally:
            pieces = folder / PIECES
            if is_done or not pieces.is_file() or pieces.read_bytes().count(b"\n") < 2:
                remove()
