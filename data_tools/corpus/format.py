"""The corpus on disk: written by `writer`, read by the datasets.

PREFIX_ids.npy        the token ids of every sentence, end to end: 1-D, uint16 or int32
PREFIX_idx.npz        lens: tokens in each sentence; docs: the sentence each document starts at;
                      sents: the token each sentence starts at (optional when reading)
PREFIX_marks.npy      only of a corpus made with a user's lexicon: uint8, a mark for each token; 0 outside of
                      the lexicon's words, k for the k-th entry of the manifest's lexicon_marks
PREFIX.manifest.json  sizes, hashes and counts of the others, written last (optional without marks)

Two documents, [[7 8] [9]] and [[5 6 7]], are stored as

    ids = [7 8 9 5 6 7]    lens = [2 1 3]    docs = [0 2 3]    sents = [0 2 3 6]

The first two are the format of PaddleNLP's tools, so their corpora load as they are.
"""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

import numpy as np

from data_tools.dataset_utils import LEVELS, MOST_MARKS
from data_tools.files.arrays import HEADER_BYTES, chunks, sha256_of_file
from data_tools.files.errors import InputError
from data_tools.files.json_file import is_number, is_whole_number, read_json_object

CORPUS_FORMAT = "ernie-pair corpus 1"
LARGEST_ID = 2**31 - 1
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
        self.marks = _map_marks(marks_path(prefix), self.manifest, len(self.ids))
        self._fingerprint = self.manifest.get("pair_id")
        if self.lexicon_marks:
            parts = [self._fingerprint, self.manifest["sha256"]["marks"], self.lexicon_marks]
            self._fingerprint = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        self._max_id = self.manifest.get("max_id")

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

    @property
    def has_manifest(self) -> bool:
        """Return whether there is a manifest beside the ids."""
        return bool(self.manifest)

    @property
    def fingerprint(self) -> str:
        """Return one SHA-256 of the content of the files; computed once when there is no manifest."""
        if self._fingerprint is None:
            self._fingerprint = pair_id(*map(sha256_of_file, self.paths[:2]))
        return self._fingerprint

    @property
    def vocab_sha256(self) -> str:
        """Return the hash of the vocabulary of the ids (`WordPiece.sha256`), '' if it is not recorded."""
        return self.manifest.get("vocab_sha256", "")

    @property
    def max_id(self) -> int:
        """Return the largest id; found by reading them all when there is no manifest."""
        if self._max_id is None:
            self.check_ids(1 << 31)
            self._max_id = max(int(chunk.max()) for chunk in chunks(self.ids))
        return self._max_id

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
    if not paths.manifest.exists():
        return {}
    cure = f"not a manifest of '{CORPUS_FORMAT}'; make the corpus again"
    manifest = read_json_object(paths.manifest, cure)
    if not _is_manifest(manifest):
        raise InputError(f"{paths.manifest}: {cure}")
    return manifest


def _is_manifest(manifest: Dict[str, Any]) -> bool:
    """Return whether ``manifest`` has the fields of `CorpusWriter` that are read."""
    marks = manifest.get("lexicon_marks", [])
    if not (isinstance(marks, list) and len(marks) <= MOST_MARKS):
        return False
    for mark in marks:
        is_known = isinstance(mark, dict) and mark.get("kind") in LEVELS
        if not (is_known and is_number(mark.get("weight"), 0)):
            return False
    files = {"ids", "index", "marks"} if marks else {"ids", "index"}
    hashes, sizes = manifest.get("sha256"), manifest.get("bytes")
    return (
        manifest.get("format") == CORPUS_FORMAT
        and isinstance(hashes, dict)
        and isinstance(sizes, dict)
        and files == set(hashes) == set(sizes)
        and isinstance(manifest.get("pair_id"), str)
        and isinstance(manifest.get("vocab_sha256", ""), str)
        and is_whole_number(manifest.get("max_id"), -1, LARGEST_ID)
    )


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


def _map_marks(path: Path, manifest: Dict[str, Any], num_tokens: int) -> Optional[np.ndarray]:
    """Map the marks of a corpus, None for one that was made without a lexicon."""
    if not manifest and path.exists():
        raise InputError(
            f"{path} has no manifest beside it, which says what the marks mean; copy that too, or move the "
            "marks away"
        )
    if not manifest.get("lexicon_marks"):
        return None
    marks = _map(path, ("|u1",), "1-D uint8 marks")
    if len(marks) != num_tokens:
        raise InputError(
            f"{path}: {len(marks)} marks for {num_tokens} tokens; of different runs, make the corpus again"
        )
    return marks


def _read_index(path: Path, cap: int) -> Dict[str, np.ndarray]:
    _require_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = [(item.filename, item.file_size) for item in archive.infolist()]
        # Checked by the directory of the archive: zipfile unpacks no more of a member than it states.
        if sum(size for _, size in sizes) > cap or not {name for name, _ in sizes} <= _MEMBERS:
            raise InputError(
                f"{path}: contains something other than lens, docs, sents of these ids; make it again"
            )
        with np.load(path, allow_pickle=False) as index:
            members = {name: index[name] for name in index.files}
    except InputError:
        raise
    except Exception as error:  # of many types: zipfile, its decompressors, numpy's parser
        raise InputError(f"{path}: not a readable .npz ({_brief(error)}); make the corpus again") from None
    for name in ("lens", "docs"):
        if name not in members:
            raise InputError(f"{path}: has no '{name}'; make the corpus again")
    for name, array in members.items():
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(f"{path}: '{name}' is not a 1-D array of whole numbers; make the corpus again")
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

    Returns {name of NAMES: its documents}. Raises InputError when ``split`` is not three weights, or when a
    part with a weight above zero gets no document; a weight of 0 gives an empty range.
    """
    weights = _weights_of(split)
    ends = np.rint(np.cumsum(weights) / sum(weights) * num_documents).astype(int)
    starts = np.concatenate([[0], ends[:-1]])
    ranges = {name: range(start, end) for name, start, end in zip(NAMES, starts.tolist(), ends.tolist())}
    for name, weight in zip(NAMES, weights):
        if weight > 0 and not ranges[name]:
            share = -(-num_documents // 20)
            example = f"{num_documents - 2 * share},{share},{share}" if num_documents > 2 else "1,0,0"
            raise InputError(
                f"--split {split} leaves no document for {name} out of {num_documents}; give it more, "
                f"for example --split {example}"
            )
    return ranges


def _weights_of(split: str) -> list:
    try:
        weights = [float(part) for part in split.split(",")]
    except ValueError:
        weights = []
    sound = len(weights) == 3 and np.isfinite(sum(weights)) and min(weights) >= 0 and weights[0] > 0
    if not sound:
        raise InputError(
            f"--split {split} is not three weights for train,valid,test; write for example 949,50,1"
        )
    return weights
