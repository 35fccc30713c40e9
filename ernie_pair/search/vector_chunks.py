"""The vectors of many texts, chunk by chunk on disk, so that finished ones survive a killed run.

.NAME.vectors/vectors-HASH.npy    float32 [n, D]; HASH is of the embedding model and the texts of the chunk
.NAME.vectors/vectors-HASH.json   the file's hash, see `array_cache`
.NAME.vectors/run.lock            held by the run that works there

They are beside the folder NAME that is being made, and removed once it exists.
"""

import hashlib
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence

import numpy as np

from data_tools.files.arrays import sha256_of_file
from data_tools.files.atomic_files import make_folder
from data_tools.files.errors import InputError, NumbersError
from data_tools.files.file_lock import locked
from data_tools.files.json_file import is_whole_number, read_json_object, shown
from data_tools.files.keyed_cache import ENDING, ArrayKind, KeyedCache, array_cache, remove_arrays
from ernie_pair.inference.embedder import unit_rows
from ernie_pair.inference.vector_files import CURE, VECTORS_JSON, open_vectors
from ernie_pair.models.embedding_json import SEARCHED, SIMILARITIES

CHUNK = 8192  # texts
KIND, LOCK = "vectors-", "run.lock"
LOCK_SECONDS = 3600.0
LONGEST_ERROR = 1e-3  # difference from length 1 of a vector

Embed = Callable[[Sequence[str]], np.ndarray]


def work_folder_of(folder: Path) -> Path:
    """Return where the vectors of the index ``folder`` are kept while it is made."""
    return folder.with_name(f".{folder.name}.vectors")


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Lock ``folder`` for this run; it is kept if vectors are left in it.

    Raises MachineError if another run holds the lock.
    """
    make_folder(folder)
    busy = f"{folder}: another run makes this index; let it end, or stop it, then run again"
    with locked(folder / LOCK, 0, busy):
        try:
            yield
        finally:
            if not any(folder.glob(f"{KIND}*{ENDING}")):
                remove_chunks(folder)


def remove_chunks(folder: Path) -> None:
    """Remove what `VectorChunks` wrote to ``folder``, and the folder if nothing else is in it."""
    if not folder.is_dir():
        return
    remove_arrays(folder, KIND)
    (folder / LOCK).unlink(missing_ok=True)
    with suppress(OSError):  # something else is in it, and the index may be published already
        folder.rmdir()


class VectorChunks:
    """The vectors of ``texts``, which yields them CHUNK at a time, computed by ``embed``.

    ``about``: fingerprint, max_seq_len, similarity and prompt of the model; ``is_unit``: whether they are of
    length 1. Raises NumbersError, when they are computed, for vectors that are not finite or not of that
    length.
    """

    def __init__(
        self,
        folder: Path,
        texts: Callable[[], Iterator[List[str]]],
        embed: Embed,
        dim: int,
        about: Dict[str, Any],
        is_unit: bool = True,
    ):
        self._is_unit = is_unit
        self._folder, self._texts, self._embed = folder, texts, embed
        self.dim, self.about = dim, about
        self._known: List[KeyedCache] = []
        self.taken_up = 0  # texts whose vectors an earlier run computed

    def make(self, advance: Callable[[int], None]) -> None:
        """Compute the missing vectors; ``advance`` is called with the number of texts of every chunk."""
        self._known, self.taken_up = [], 0
        for texts in self._texts():
            key: Dict[str, object] = {
                "format": 1,
                "model": self.about["fingerprint"],
                "texts": _hash_of(texts),
            }
            shape = ArrayKind(np.dtype(np.float32), (len(texts), self.dim))
            cache = array_cache(self._folder, key, KIND, shape.fits)
            if cache.read() is None:
                cache.get(partial(self._vectors, texts), LOCK_SECONDS)
            else:
                self.taken_up += len(texts)
            self._known.append(cache)
            advance(len(texts))

    def __call__(self) -> Iterator[np.ndarray]:
        """Yield the vectors in the order of the texts, float32 [n, D], memory-mapped."""
        for cache in self._known:
            found = cache.read()
            yield found if found is not None else cache.get(self._gone, LOCK_SECONDS)

    def _gone(self) -> np.ndarray:
        raise FileNotFoundError(2, "vectors that were just made are gone", str(self._folder))

    def _vectors(self, texts: Sequence[str]) -> np.ndarray:
        vectors = self._embed(texts)
        refuse_bad_vectors(vectors, "the embedding model", is_unit=self._is_unit)
        return vectors


class StoredVectors:
    """The vectors of a folder of `ernie-pair embed`, normalized again, because they were rounded.

    Those of a model that compares vectors by their products are not. ``prompt``: that the texts were read
    with.

    ``texts_file``: the texts of the vectors, ``count`` of them. Raises InputError if they are of another
    file, CheckpointError for a damaged folder, and NumbersError, when they are read, for a vector that
    is not finite.
    """

    def __init__(self, folder: Path, texts_file: Path, count: int):
        self._file = open_vectors(folder)
        self._file.verify()
        about = read_json_object(folder / VECTORS_JSON, CURE)
        made_of = about.get("texts")
        made_of = made_of.get("sha256") if isinstance(made_of, dict) else None
        if made_of not in (None, sha256_of_file(texts_file)) or self._file.count != count:
            raise InputError(
                f"--vectors {folder} holds {self._file.count} vectors of another file than {texts_file}, "
                f"with {count} texts; {CURE}"
            )
        length = about.get("max_seq_len", 0)
        length = length if is_whole_number(length, 0) else 0  # 0 if unknown
        prompt, similarity = about.get("prompt", ""), about.get("similarity", SIMILARITIES[0])
        if not isinstance(prompt, str) or similarity not in SEARCHED:
            raise InputError(
                f"{folder / VECTORS_JSON}: its model compares vectors by {shown(similarity)}, and only "
                f"{' and '.join(SEARCHED)} are computed here; take another model"
            )
        self.dim, made_by = self._file.dim, self._file.fingerprint
        self.about: Dict[str, Any] = {"fingerprint": made_by, "max_seq_len": length}
        self.about.update(similarity=similarity, prompt=prompt)
        self._is_unit = about.get("unit", True) is not False or similarity == SIMILARITIES[0]

    def __call__(self) -> Iterator[np.ndarray]:
        """Yield the vectors in the order of the texts, float32 [n, D]."""
        for first in range(0, self._file.count, CHUNK):
            rows = self._file.rows(first, min(first + CHUNK, self._file.count))
            if self._is_unit:
                rows = unit_rows(rows, str(self._file.folder))
            else:
                refuse_bad_vectors(rows, str(self._file.folder), first, is_unit=False)
            yield rows


def refuse_bad_vectors(vectors: np.ndarray, where: str, first: int = 0, is_unit: bool = True) -> None:
    """Raise NumbersError for vectors [N, D] that are not finite or, with ``is_unit``, not of length 1.

    ``first``: the index of the first of them.
    """
    lengths = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1))
    good = np.abs(lengths - 1) < LONGEST_ERROR if is_unit else np.isfinite(lengths)
    bad = np.flatnonzero(~good)  # NaN fails every comparison
    if len(bad):
        raise NumbersError(
            f"{where}: vector {first + bad[0]} is NaN, infinite or of length {lengths[bad[0]]:.4g} instead "
            "of 1; embed the texts again with a sound model"
        )


def _hash_of(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8")
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()
