"""The corpus on disk: written by `writer`, read by the datasets.

PREFIX_ids.npy        the token ids of every sentence, end to end: 1-D, uint16 or int32
PREFIX_idx.npz        lens: tokens in each sentence; docs: the sentence each document starts at;
                      sents: the token each sentence starts at (optional when reading)
PREFIX_marks.npy      only of a corpus made with a user's lexicon: uint8, a mark for each token; 0 outside of
                      the lexicon's words, k for the k-th entry of the manifest's lexicon_marks
PREFIX.manifest.json  sizes, hashes and counts of the others, written last (optional without marks)

Two documents, [[7 8] [9]] and [[5 6 7]], are stored as

    ids = [7 8 9 5 6 7]    lens = [2 1 3]    docs = [0 2 3]    sents = [0 2 3 6]

The first two are the format of PaddleNLP's tools, so their corpora load as they are. Its later tools write
Megatron's layout, which is read too:

PREFIX.bin            the token ids of every sentence, end to end
PREFIX.idx            'MMIDIDX\\0\\0', u64 version 1, u8 data type, u64 sentences, u64 entries of docs, then
                      int32 tokens of each sentence, int64 the byte each begins at, int64 docs: the sentence
                      each document starts at, and the number of sentences last; all little-endian
"""

import hashlib
import json
import logging
import mmap
import socket
import struct
import zipfile
from functools import cached_property
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

import numpy as np

from data_tools.dataset_utils import LEVELS, MAX_MARKS
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.arrays import HEADER_BYTES, chunks, sha256_of_file
from ernie_pair.core.files.atomic_files import keeps, published
from ernie_pair.core.files.json_file import is_number, is_whole_number, read_json_object, read_note
from ernie_pair.core.files.keyed_cache import build_once

CORPUS_FORMAT = "ernie-pair corpus 1"
MAX_ID = 2**31 - 1
_MEMBERS = {"lens.npy", "docs.npy", "sents.npy"}


class CorpusPaths(NamedTuple):
    """The three files of a corpus; see the docstring of this module."""

    ids: Path
    idx: Path  # not `index`, a method of every tuple
    manifest: Path


def corpus_paths(prefix: Union[str, Path]) -> CorpusPaths:
    """Return the files of the corpus with that PREFIX."""
    return CorpusPaths(*(Path(f"{prefix}{end}") for end in ("_ids.npy", "_idx.npz", ".manifest.json")))


def marks_path(prefix: Union[str, Path]) -> Path:
    """Return the path of the marks of the corpus with that PREFIX, if it has any."""
    return Path(f"{prefix}_marks.npy")


def id_dtype(vocab_size: int) -> np.dtype:
    """Return the dtype of the ids of a vocabulary, uint16 or int32, by PaddleNLP's rule."""
    return np.dtype("<u2" if vocab_size < 2**16 - 1 else "<i4")


class Corpus:
    """A corpus, memory mapped and checked.

    ids     uint16 or int32 [tokens], mapped read-only
    lens    int32 [sentences]; starts int64 [sentences + 1], the first token of each
    docs    int64 [documents + 1], the first sentence of each document
    marks   uint8 [tokens], mapped read-only, None without a lexicon; lexicon_marks: what they mean, mark 1
            first, as {"kind": one of LEVELS, "weight": 0 or more}
    len(corpus) is the number of sentences, corpus[i] the ids of sentence i.

    verify is "quick" (structure, sizes and the hash of the index) or "full" (also those of ids and marks).
    Raises InputError for a file that is missing, truncated, of another run or inconsistent.
    """

    def __init__(self, prefix: Union[str, Path], verify: str = "quick"):
        self.prefix = str(prefix)
        self.paths = corpus_paths(prefix)
        self.manifest = _read_manifest(self.paths)
        if self.manifest:
            hashed = ["index"] if verify == "quick" else list(self.manifest["sha256"])
            _check_hashes(self.paths, marks_path(prefix), self.manifest, hashed)
        self.ids = _map(self.paths.ids, ("<u2", "<i4"), "1-D uint16 or int32 ids")
        members = _read_index(self.paths.idx, cap=24 * (len(self.ids) + 1) + 8 * HEADER_BYTES)
        self.lens, self.docs = members["lens"].astype(np.int32), members["docs"].astype(np.int64)
        self.starts = np.concatenate([[0], np.cumsum(members["lens"], dtype=np.int64)])
        check_structure(self.paths, self.ids, self.starts, self.lens, self.docs, members.get("sents"))
        self.lexicon_marks = self.manifest.get("lexicon_marks", [])
        self.marks: Optional[np.ndarray] = None
        path = marks_path(prefix)
        if not self.manifest and path.exists():
            raise InputError(
                f"{path} has no manifest beside it, which says what the marks mean; copy that too, or move "
                "the marks away"
            )
        if self.lexicon_marks:
            self.marks = _map(path, ("|u1",), "1-D uint8 marks")
            if len(self.marks) != len(self.ids):
                raise InputError(
                    f"{path}: {len(self.marks)} marks for {len(self.ids)} tokens; of different runs, make "
                    "the corpus again"
                )

    def __len__(self) -> int:
        return len(self.lens)

    def __getitem__(self, sentence: int) -> np.ndarray:
        if sentence < 0:
            sentence += len(self)
        return self.ids[self.starts[sentence] : self.starts[sentence + 1]]

    def __reduce__(self):
        return type(self), (self.prefix,)  # a worker maps the files again instead of copying the ids

    @property
    def num_documents(self) -> int:
        """Return the number of documents."""
        return len(self.docs) - 1

    @cached_property
    def fingerprint(self) -> str:
        """Return one SHA-256 of the content of the files; computed once when there is no manifest."""
        if not self.lexicon_marks:
            return self.manifest.get("pair_id") or pair_id(*map(sha256_of_file, self.paths[:2]))
        parts = [self.manifest["pair_id"], self.manifest["sha256"]["marks"], self.lexicon_marks]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def vocab_sha256(self) -> str:
        """Return the hash of the vocabulary of the ids (`WordPiece.sha256`), '' if it is not recorded."""
        return self.manifest.get("vocab_sha256", "")

    @cached_property
    def max_id(self) -> int:
        """Return the largest id; found by reading them all when there is no manifest."""
        if self.manifest:
            return self.manifest["max_id"]
        self.check_ids(1 << 31)
        return max(int(chunk.max()) for chunk in chunks(self.ids))

    def check_ids(self, vocab_size: int) -> None:
        """Refuse ids that are not in 0..vocab_size-1; reads them all when there is no manifest.

        Raises InputError naming the first such id, its document and its sentence.
        """
        if self.manifest and self.max_id < vocab_size:
            return
        begin = 0
        for chunk in chunks(self.ids):
            bad = np.flatnonzero((chunk < 0) | (chunk >= vocab_size))
            if len(bad):
                token = begin + int(bad[0])
                sentence = int(np.searchsorted(self.starts, token, side="right")) - 1
                document = int(np.searchsorted(self.docs, sentence, side="right")) - 1
                raise InputError(
                    f"{self.paths.ids}: id {self.ids[token]} at token {token} (document {document}, sentence "
                    f"{sentence}) is not below the vocabulary size {vocab_size}; use the vocabulary of this "
                    "corpus"
                )
            begin += len(chunk)


def pair_id(ids_sha256: str, index_sha256: str) -> str:
    """Return the hash that identifies the ids and the index of one corpus together."""
    return hashlib.sha256(f"{ids_sha256}{index_sha256}".encode()).hexdigest()


def _read_manifest(paths: CorpusPaths) -> Dict[str, Any]:
    """Read the fields of `CorpusWriter` that are needed; {} without a manifest."""
    if not paths.manifest.exists():
        return {}
    cure = f"not a manifest of '{CORPUS_FORMAT}'; make the corpus again"
    manifest = read_json_object(paths.manifest, cure)
    marks, hashes, sizes = manifest.get("lexicon_marks", []), manifest.get("sha256"), manifest.get("bytes")
    is_sound = (
        isinstance(marks, list)
        and len(marks) <= MAX_MARKS
        and all(
            isinstance(mark, dict) and mark.get("kind") in LEVELS and is_number(mark.get("weight"), 0)
            for mark in marks
        )
        and manifest.get("format") == CORPUS_FORMAT
        and isinstance(hashes, dict)
        and isinstance(sizes, dict)
        and {"ids", "index", *(["marks"] if marks else [])} == set(hashes) == set(sizes)
        and isinstance(manifest.get("pair_id"), str)
        and isinstance(manifest.get("vocab_sha256", ""), str)
        and is_whole_number(manifest.get("max_id"), -1, MAX_ID)
    )
    if not is_sound:
        raise InputError(f"{paths.manifest}: {cure}")
    return manifest


def _check_hashes(paths: CorpusPaths, marks: Path, manifest: Dict[str, Any], hashed: List[str]) -> None:
    files = {"ids": paths.ids, "index": paths.idx, "marks": marks}
    for name in manifest["bytes"]:
        path = files[name]
        _require_file(path)
        same = path.stat().st_size == manifest["bytes"][name]
        if same and name in hashed:
            same = sha256_of_file(path) == manifest["sha256"][name]
        if not same:
            raise InputError(
                f"{path} is not the file that {paths.manifest} describes: damaged, or from another run; "
                "make the corpus again"
            )


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"{path}: no such file; make the corpus with create_pretraining_data")


def _map(path: Path, dtypes: Sequence[str], what: str) -> np.ndarray:
    _require_file(path)
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # of many types: a damaged header is parsed as Python
        raise InputError(f"{path}: not a readable .npy ({_brief(error)}); make the corpus again") from None
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.str not in dtypes:
        raise InputError(f"{path}: holds no {what}; make the corpus again")
    return values


def _read_index(path: Path, cap: int) -> Dict[str, np.ndarray]:
    _require_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = [(item.filename, item.file_size) for item in archive.infolist()]
        # Checked by the directory of the archive: zipfile unpacks no more of a member than it states.
        members = {}
        if sum(size for _, size in sizes) <= cap and {name for name, _ in sizes} <= _MEMBERS:
            with np.load(path, allow_pickle=False) as index:
                members = {name: index[name] for name in index.files}
    except Exception as error:  # of many types: zipfile, its decompressors, numpy's parser
        raise InputError(f"{path}: not a readable .npz ({_brief(error)}); make the corpus again") from None
    are_whole = all(array.ndim == 1 and array.dtype.kind in "iu" for array in members.values())
    if not are_whole or not members.keys() >= {"lens", "docs"}:
        raise InputError(
            f"{path}: it does not hold lens and docs, and sents at most, of these ids, each of whole numbers "
            "in one dimension; make the corpus again"
        )
    return members


def check_structure(paths: CorpusPaths, ids, starts, lens, docs, sents) -> None:
    """Raise InputError, naming ``paths.idx``, if the arrays do not describe the ids."""
    broken = {
        "a sentence without tokens": (starts[1:] <= starts[:-1]).any(),  # or so long that the sum wraps
        f"{starts[-1]} tokens according to 'lens', {len(ids)} in {paths.ids.name}": starts[-1] != len(ids),
        "'docs' does not begin with 0": not len(docs) or docs[0] != 0,
        "'docs' decreases": (docs[1:] < docs[:-1]).any(),
        f"'docs' does not end at sentence {len(lens)}": not len(docs) or docs[-1] != len(lens),
        "'sents' disagrees with 'lens'": sents is not None and not np.array_equal(sents, starts),
    }
    for what, is_broken in broken.items():
        if is_broken:
            raise InputError(f"{paths.idx}: {what}; the two files are of different runs, make them again")


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:80]


NAMES = ("train", "valid", "test")


def document_ranges(split: str, num_documents: int) -> Dict[str, range]:
    """Cut ``num_documents`` documents in the order of the corpus by the three weights of ``split``.

    Returns {name of NAMES: its documents}. A weight of 0 gives an empty range; any other one at least one
    document, from the largest part. Raises InputError when ``split`` is not three weights, or when there are
    fewer documents than parts.
    """
    try:
        weights = [float(part) for part in split.split(",")]
    except ValueError:
        weights = []
    if len(weights) != 3 or not np.isfinite(sum(weights)) or min(weights) < 0 or not weights[0]:
        raise InputError(
            f"--split {split} is not three weights for train,valid,test; write for example 949,50,1"
        )
    asked = [weight > 0 for weight in weights]
    if num_documents < sum(asked):
        raise InputError(
            f"--split {split} asks for {sum(asked)} parts of {counted(num_documents, 'document')}; give more "
            "documents, or --split 1,0,0"
        )
    ends = np.rint(np.cumsum(weights) / sum(weights) * num_documents).astype(int)
    sizes = np.diff(ends, prepend=0)
    for place in np.flatnonzero(asked & (sizes == 0)):
        sizes[place] += 1
        sizes[sizes.argmax()] -= 1
    ends = np.cumsum(sizes)
    return {name: range(end - size, end) for name, size, end in zip(NAMES, sizes.tolist(), ends.tolist())}


# Of the two layouts of PaddleNLP's tools: the one that this package writes, and the later one.
INDEX_ENDS = ("_idx.npz", ".idx")
MAGIC = b"MMIDIDX\x00\x00"
KINDS = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # 6 and 7 are not integers
_HEADER = struct.Struct("<9sQBQQ")


def megatron_paths(prefix: Union[str, Path]) -> CorpusPaths:
    """Return the files of a corpus of Megatron's layout; it has no manifest, whose path is for messages."""
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
    name = (in_folder[0] if in_folder else given).name
    ends = (*INDEX_ENDS, "_ids.npy", "_marks.npy", ".manifest.json", ".bin")
    end = next((end for end in ends if name.endswith(end) and name != end), "")
    prefix = given if beside else (in_folder or [given])[0].with_name(name[: -len(end)]) if end else None
    if prefix is None or not (beside or in_folder or given.is_file()):
        raise InputError(
            f"{flag} {given} is not a folder with a corpus, nor a file or the PREFIX of one; give the folder "
            f"that holds PREFIX{INDEX_ENDS[0]}, or make it with ernie-pair prepare --output_prefix"
        )
    return prefix


def open_corpus(prefix: Union[str, Path], verify: str = "quick") -> Corpus:
    """Open the corpus of a prefix in either layout. Raises InputError for none, both, or a damaged one."""
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
        path, content = self.paths.idx, _mapped(self.paths.idx)
        header = content[: _HEADER.size]
        magic, version, kind, num_sentences, num_bounds = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
        if (magic, version) != (MAGIC, 1) or kind not in KINDS:
            raise InputError(
                f"{path}: not an index of Megatron's layout (MMIDIDX) of version 1 and whole numbers; make "
                "the corpus again"
            )
        size = _HEADER.size + 12 * num_sentences + 8 * num_bounds
        if len(content) != size:  # exactly that of the header, so that no count can lead outside it
            raise InputError(
                f"{path}: {len(content)} bytes, where {num_sentences} sentences and {num_bounds} entries of "
                f"docs take {size}; damaged or cut short, copy it again"
            )
        place, arrays = _HEADER.size, []
        for kind_of_array, count in (("<i4", num_sentences), ("<i8", num_sentences), ("<i8", num_bounds)):
            raw = np.frombuffer(content, kind_of_array, count, place) if count else np.zeros(0, kind_of_array)
            arrays.append(np.array(raw))  # a copy, because the header leaves them unaligned
            place += raw.nbytes
        self.lens, pointers, self.docs = arrays
        dtype, content = np.dtype(KINDS[kind]), _mapped(self.paths.ids)
        count = len(content) // dtype.itemsize
        self.ids = np.frombuffer(content, dtype, count) if count else np.zeros(0, dtype)
        self.starts = np.concatenate([[0], np.cumsum(self.lens, dtype=np.int64)])
        check_structure(self.paths, self.ids, self.starts, self.lens, self.docs, None)
        if not np.array_equal(pointers, self.starts[:-1] * dtype.itemsize):
            raise InputError(
                f"{self.paths.idx}: a sentence does not begin where the one before it ends; "
                "make the corpus again"
            )


def _mapped(path: Path):
    """Map the bytes of a file read-only; the mapping stays valid when the file is replaced."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; a corpus of Megatron's layout is a .bin and an .idx")
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


LOCK_SECONDS = 3600

logger = logging.getLogger(__name__)


def open_verified(prefix: Union[str, Path], memory: Path) -> Corpus:
    """Open the corpus of ``prefix``, hashing its files unless this machine has verified them before.

    The folder ``memory`` records that: a file is unchanged as long as its inode, size and times are. One
    process hashes, others wait for it. Without a manifest there is nothing to compare with. Raises
    InputError as `Corpus` does, MachineError if another process hashes for an hour.
    """
    corpus = open_corpus(prefix)
    if not corpus.manifest:
        return corpus
    name = json.dumps([socket.gethostname(), str(Path(prefix).resolve())])
    note = memory / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.verified.json"

    def find() -> Optional[Corpus]:
        return corpus if read_note(note) == _stamps(corpus) else None

    def compare() -> Corpus:
        stamps = _stamps(corpus)
        gigabytes = sum(size for _, _, size, *_ in stamps.values()) / 1e9
        logger.info("comparing %s with its manifest, %.1f GB, once", prefix, gigabytes)
        compared = open_corpus(prefix, verify="full")
        if keeps():
            with published(note) as (draft,):
                draft.write_text(json.dumps(stamps))
        return compared

    return build_once(note.with_suffix(".lock"), LOCK_SECONDS, find, compare)


def _stamps(corpus: Corpus) -> Dict[str, List[int]]:
    """Return what distinguishes a file from one that replaces it: device, inode, size, times."""
    stamps = {}
    for path in (*corpus.paths, marks_path(corpus.prefix)):
        if path.exists():
            status = path.stat()
            inode, times = [status.st_dev, status.st_ino], [status.st_mtime_ns, status.st_ctime_ns]
            stamps[path.name] = [*inode, status.st_size, *times]
    return stamps
