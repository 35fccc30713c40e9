"""The vectors of an index that is being built: those of `ernie-pair embed`, or those that its model made."""

from pathlib import Path
from typing import Any, Dict, Iterator

import numpy as np

from data_tools.files.arrays import sha256_of_file
from data_tools.files.errors import InputError, NumbersError
from data_tools.files.json_file import is_whole_number, read_json_object, shown
from ernie_pair.inference.embedder import unit_rows
from ernie_pair.inference.vector_files import CURE, VECTORS_JSON, VectorFile, open_vectors
from ernie_pair.models.embedding_json import SEARCHED, SIMILARITIES

CHUNK = 8192  # texts
LONGEST_ERROR = 1e-3  # difference from length 1 of a vector


class StoredVectors:
    """The vectors of a file. ``about``: fingerprint, max_seq_len, similarity and prompt of their model.

    ``is_rounded``: they are checked and, if they were of length 1, normalized again whenever they are read.
    """

    def __init__(self, file: VectorFile, about: Dict[str, Any], is_unit: bool, is_rounded: bool):
        self.dim, self.about = file.dim, about
        self._file, self._is_unit, self._is_rounded = file, is_unit, is_rounded

    def __call__(self) -> Iterator[np.ndarray]:
        """Yield the vectors in order, float32 [n, D]. Raises NumbersError for a rounded one, not finite."""
        where = str(self._file.folder)
        for first in range(0, self._file.count, CHUNK):
            rows = self._file.rows(first, min(first + CHUNK, self._file.count))
            if self._is_rounded and self._is_unit:
                rows = unit_rows(rows, where)
            elif self._is_rounded:
                refuse_bad_vectors(rows, where, first, is_unit=False)
            yield rows


def open_stored(folder: Path, texts_file: Path, count: int) -> StoredVectors:
    """Open the vectors in a folder of `ernie-pair embed`, of the ``count`` texts in ``texts_file``.

    Raises InputError if they are of another file, CheckpointError for a damaged folder.
    """
    file = open_vectors(folder)
    file.verify()
    about = read_json_object(folder / VECTORS_JSON, CURE)
    made_of = about.get("texts")
    made_of = made_of.get("sha256") if isinstance(made_of, dict) else None
    if made_of not in (None, sha256_of_file(texts_file)) or file.count != count:
        raise InputError(
            f"--vectors {folder} holds {file.count} vectors of another file than {texts_file}, "
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
    of_model = {"fingerprint": file.fingerprint, "max_seq_len": length, "similarity": similarity}
    # Those of a model that compares vectors by their products are not normalized.
    is_unit = about.get("unit", True) is not False or similarity == SIMILARITIES[0]
    return StoredVectors(file, {**of_model, "prompt": prompt}, is_unit, is_rounded=True)


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
