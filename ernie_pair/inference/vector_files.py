"""Vectors on disk: written by `ernie-pair embed`, memory-mapped by searches.

vectors.npy   float16 or int8 [N, D], row i for text i; each of length 1 before rounding, unless
              vectors.json says "unit": false
scales.npy    float32 [N], for int8 only: row i is vectors[i] * scales[i]
vectors.json  {"format": 1, "fingerprint": "9c1e...", "count": N, "dim": D, "dtype": "float16",
               "files": {"vectors.npy": SHA-256}, ...}

Two vectors, [0.6, 0.8] and [1, 0], are in int8 [[95, 127], [127, 0]] with the scales [0.8 / 127, 1 / 127].
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Dict, NamedTuple, Optional, Union

import numpy as np

from data_tools.files.arrays import sha256_of_file
from data_tools.files.errors import CheckpointError, InputError, NumbersError
from data_tools.files.json_file import is_texts, is_whole_number, read_json_object

VECTORS_FILE, SCALES_FILE, VECTORS_JSON, VECTORS_FORMAT = "vectors.npy", "scales.npy", "vectors.json", 1
DTYPES = {"float16": np.dtype("<f2"), "int8": np.dtype("|i1")}
WRITTEN = {VECTORS_FILE, SCALES_FILE}
SCALE_DTYPE = np.dtype("<f4")
LARGEST_INT8, LARGEST_FLOAT16 = 127, 65504
CURE = "make them again with ernie-pair embed"


class Packed(NamedTuple):
    """Vectors as they are stored: ``rows`` [N, D], and for int8 their ``scales`` float32 [N]."""

    rows: np.ndarray
    scales: Optional[np.ndarray]


def pack_vectors(vectors: np.ndarray, dtype: str) -> Packed:
    """Return float32 [N, D] as stored in ``dtype``: float16, or int8 with the largest number of a row at 127.

    The error of a number is then less than 1/254 of the largest one of its row. Raises NumbersError for a
    number beyond the range of float16.
    """
    if dtype == "float16":
        if np.abs(vectors).max(initial=0) > LARGEST_FLOAT16:
            raise NumbersError("a vector holds numbers above 65504, which float16 cannot; pass --dtype int8")
        return Packed(vectors.astype(DTYPES[dtype]), None)
    scales = np.abs(vectors).max(axis=1, initial=0) / np.float32(LARGEST_INT8)
    divisors = np.where(scales > 0, scales, np.float32(1))
    return Packed(np.rint(vectors / divisors[:, None]).astype(DTYPES[dtype]), divisors.astype(SCALE_DTYPE))


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
                raise CheckpointError(f"{path} is not the file that was written; {CURE}")

    def refuse_other_model(self, fingerprint: str, where: str) -> None:
        """Raise InputError if the model ``where``, of ``fingerprint``, is not the one that made them."""
        if fingerprint != self.fingerprint:
            raise InputError(
                f"{self.folder}: its vectors are of another model ({self.fingerprint[:12]}) than {where} "
                f"({fingerprint[:12]}); {CURE}, or use the model that made them"
            )

    def _mapped(self, name: str, dtype: np.dtype, shape: tuple) -> np.ndarray:
        path = self.folder / name
        try:
            found = np.load(path, mmap_mode="r", allow_pickle=False) if self.count else np.load(path)
        except (OSError, ValueError, EOFError) as error:
            raise CheckpointError(f"{path} cannot be read ({str(error)[:100]}); {CURE}") from None
        if found.shape != shape or found.dtype != dtype:
            raise CheckpointError(
                f"{path} holds {found.dtype} {list(found.shape)}, {VECTORS_JSON} says {self.dtype} "
                f"{list(shape)}; {CURE}"
            )
        return found


def open_vectors(folder: Union[str, Path]) -> VectorFile:
    """Open the vectors in ``folder``. Raises InputError if there are none or vectors.json is damaged."""
    path = Path(folder) / VECTORS_JSON
    if not path.is_file():
        raise InputError(f"{folder} holds no {VECTORS_JSON}; make vectors with ernie-pair embed")
    found = read_json_object(path, CURE)
    files = found.get("files")
    is_sound = {
        "format": found.get("format") == VECTORS_FORMAT,
        "fingerprint": isinstance(found.get("fingerprint"), str),
        "count": is_whole_number(found.get("count"), 0),
        "dim": is_whole_number(found.get("dim"), 1),
        "dtype": found.get("dtype") in tuple(DTYPES),
        "files": isinstance(files, dict) and set(files) <= WRITTEN and is_texts(list(files.values())),
    }
    for key, sound in is_sound.items():
        if not sound:
            raise InputError(f"{path}: wrong or missing: {key}; {CURE}")
    named = {key: found[key] for key in VectorFile.__dataclass_fields__ if key != "folder"}
    return VectorFile(Path(folder), **named)
