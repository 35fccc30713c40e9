"""Read corpora in Megatron's layout, which PaddleNLP's later tools write: PREFIX.bin and PREFIX.idx.

PREFIX.bin   the token ids of every sentence, end to end
PREFIX.idx   'MMIDIDX\\0\\0', u64 version 1, u8 data type, u64 sentences, u64 entries of docs, then
             int32 tokens of each sentence, int64 the byte each begins at, int64 docs: the sentence each
             document starts at, and the number of sentences last; all little-endian
"""

import mmap
import struct
from pathlib import Path
from typing import Optional, Tuple, Union

import numpy as np

from data_tools.corpus.format import Corpus, CorpusPaths, check_structure, corpus_paths, marks_path
from data_tools.files.errors import InputError

# Of the two layouts of PaddleNLP's tools: the one that this package writes, and the later one.
INDEX_ENDS = ("_idx.npz", ".idx")
MAGIC = b"MMIDIDX\x00\x00"
KINDS = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # 6 and 7 are not integers
_HEADER = struct.Struct("<9sQBQQ")


def megatron_paths(prefix: Union[str, Path]) -> CorpusPaths:
    """Return the files of a corpus of Megatron's layout.

    There is no manifest in this layout; the path of one is given for messages.
    """
    return CorpusPaths(*(Path(f"{prefix}{end}") for end in (".bin", ".idx", ".bin.manifest.json")))


def find_corpus(given: Union[str, Path], flag: str) -> Path:
    """Return the PREFIX of the corpus that is given by its folder, a file of it, or PREFIX itself.

    ``flag``: that of ``given``. Raises InputError if it names no corpus, or more than one.
    """
    given = Path(given)
    in_folder = [path for end in INDEX_ENDS for path in sorted(given.glob(f"*{end}")) if given.is_dir()]
    # The possible files of a corpus in either layout; a manifest alone is not a corpus.
    files = [*corpus_paths(given)[:2], marks_path(given), *megatron_paths(given)[:2]]
    beside = [path for path in files if path.exists()]
    if len(in_folder + beside[:1]) > 1 or (given.is_dir() and not in_folder + beside):
        found = ", ".join(path.name for path in in_folder + beside) or "none"
        raise InputError(
            f"{flag} {given} must hold one corpus PREFIX{INDEX_ENDS[0]}, found {found}; give the PREFIX of "
            "one of them, or make it with ernie-pair prepare --output_prefix"
        )
    prefix = given if beside else _prefix_of(in_folder[0] if in_folder else given)
    if prefix is None or not (beside or in_folder or given.is_file()):
        raise InputError(
            f"{flag} {given} is not a folder with a corpus, nor a file or the PREFIX of one; give the folder "
            f"that holds PREFIX{INDEX_ENDS[0]}, or make it with ernie-pair prepare --output_prefix"
        )
    return prefix


def _prefix_of(path: Path) -> Optional[Path]:
    for end in (*INDEX_ENDS, "_ids.npy", "_marks.npy", ".manifest.json", ".bin"):
        if path.name.endswith(end) and path.name != end:
            return path.with_name(path.name[: -len(end)])
    return None


def open_corpus(prefix: Union[str, Path], verify: str = "quick") -> Corpus:
    """Open the corpus of that prefix, in whichever of the two layouts it is.

    Raises InputError when there is none, or both, or when it is damaged.
    """
    ours, theirs = (any(path.exists() for path in p(prefix)[:2]) for p in (corpus_paths, megatron_paths))
    if ours and theirs:
        raise InputError(
            f"{prefix}_ids.npy and {prefix}.bin may be different corpora; move the unwanted one away"
        )
    return MegatronCorpus(prefix) if theirs else Corpus(prefix, verify)


class MegatronCorpus(Corpus):
    """A corpus of Megatron's layout, with the attributes of `Corpus`; ``ids`` have the dtype of the file.

    Raises InputError for a file that is missing, truncated, inconsistent, or not of integers.
    """

    def __init__(self, prefix: Union[str, Path]):
        self.prefix = str(prefix)
        self.paths = megatron_paths(prefix)
        self.manifest = {}
        self.marks, self.lexicon_marks = None, []
        dtype, self.lens, pointers, self.docs = _read_index(self.paths.idx)
        content = _mapped(self.paths.ids)
        if len(content) % dtype.itemsize:
            raise InputError(
                f"{self.paths.ids}: {len(content)} bytes do not divide into {dtype.name} ids; copy it again"
            )
        self.ids = np.frombuffer(content, dtype) if len(content) else np.zeros(0, dtype)
        self.starts = np.concatenate([[0], np.cumsum(self.lens, dtype=np.int64)])
        check_structure(self.paths, self.ids, self.starts, self.lens, self.docs, None)
        if not np.array_equal(pointers, self.starts[:-1] * dtype.itemsize):
            raise InputError(
                f"{self.paths.idx}: a sentence does not begin where the one before it ends; "
                "make the corpus again"
            )
        self._fingerprint = self._max_id = None


def _read_index(path: Path) -> Tuple[np.dtype, np.ndarray, np.ndarray, np.ndarray]:
    """Return (type of the ids, lens, pointers, docs) of an index.

    Its size must be exactly that of its header, so that no count can lead outside it.
    """
    content = _mapped(path)
    header = content[: _HEADER.size]
    if len(header) < _HEADER.size or not header.startswith(MAGIC):
        raise InputError(f"{path}: not an index of Megatron's layout (MMIDIDX); make the corpus again")
    _, version, kind, num_sentences, num_bounds = _HEADER.unpack(header)
    if version != 1 or kind not in KINDS:
        raise InputError(f"{path}: version {version} with data type {kind} cannot be read; write it again")
    size = _HEADER.size + 12 * num_sentences + 8 * num_bounds
    if len(content) != size:
        raise InputError(
            f"{path}: {len(content)} bytes, where {num_sentences} sentences and {num_bounds} entries of docs "
            f"take {size}; damaged or cut short, copy it again"
        )
    place, arrays = _HEADER.size, []
    for dtype, count in (("<i4", num_sentences), ("<i8", num_sentences), ("<i8", num_bounds)):
        raw = np.frombuffer(content, dtype, count, place) if count else np.zeros(0, dtype)
        arrays.append(np.array(raw))  # a copy, because the header leaves them unaligned
        place += raw.nbytes
    lens, pointers, docs = arrays
    return np.dtype(KINDS[kind]), lens, pointers, docs


def _mapped(path: Path):
    """Map the bytes of a file read-only; the mapping stays valid when the file is replaced."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; a corpus of Megatron's layout is a .bin and an .idx")
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
