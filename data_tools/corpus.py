"""The corpus on disk: written by create_pretraining_data, read by the datasets.

PREFIX_ids.npy        the token ids of every sentence, end to end: 1-D, uint16 or int32
PREFIX_idx.npz        lens: tokens in each sentence; docs: the sentence each document starts at;
                      sents: the token each sentence starts at (optional when reading)
PREFIX.manifest.json  sizes, hashes and counts of the two, written last (optional when reading)

Two documents, [[7 8] [9]] and [[5 6 7]], are stored as

    ids = [7 8 9 5 6 7]    lens = [2 1 3]    docs = [0 2 3]    sents = [0 2 3 6]

It is the format of PaddleNLP's tools, so their corpora load as they are.
"""

import hashlib
import json
import zipfile
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Union

import numpy as np

from data_tools.array_file import HEADER_BYTES, ArrayFile, chunks, sha256_of_file, write_member
from data_tools.errors import InputError, MachineError
from data_tools.publish import published, scratch

FORMAT = "ernie-pair corpus 1"


class CorpusPaths(NamedTuple):
    ids: Path
    index: Path
    manifest: Path


def corpus_paths(prefix: Union[str, Path]) -> CorpusPaths:
    return CorpusPaths(*(Path(f"{prefix}{end}") for end in ("_ids.npy", "_idx.npz", ".manifest.json")))


def id_dtype(vocab_size: int) -> np.dtype:
    """uint16 or int32, by PaddleNLP's rule."""
    return np.dtype("<u2" if vocab_size < 2**16 - 1 else "<i4")


class CorpusWriter:
    """Streams documents to disk and publishes the three files together when it is left cleanly.

    with CorpusWriter("data/baike", vocab_size=17964) as writer:
        writer.add([[7, 8], [9]])           # one document, its sentences
        writer.about["inputs"] = [...]      # whatever else the manifest shall say

    ``also`` are further files of the same run, published with the three: fill ``writer.also_drafts``.
    Memory does not grow with the corpus. Left by an exception, nothing of it remains.
    """

    def __init__(
        self,
        prefix: Union[str, Path],
        *,
        vocab_size: int,
        about: Optional[Dict[str, Any]] = None,
        also: Sequence[Path] = (),
    ):
        self.paths = corpus_paths(prefix)
        self._also = list(also)
        self.vocab_size = vocab_size
        self.about = dict(about or {})
        self.max_id = -1

    def __enter__(self) -> "CorpusWriter":
        with ExitStack() as stack:
            drafts = stack.enter_context(published(*self._also, *self.paths))
            self.also_drafts = drafts[: len(self._also)]
            self._drafts = CorpusPaths(*drafts[len(self._also) :])
            names = [Path(f"{self._drafts.index}.{name}") for name in ("lens", "docs")]
            spools = stack.enter_context(scratch(*names))
            self._ids = stack.enter_context(ArrayFile(self._drafts.ids, id_dtype(self.vocab_size)))
            self._lens = stack.enter_context(ArrayFile(spools[0], np.dtype("<i4")))
            self._docs = stack.enter_context(ArrayFile(spools[1], np.dtype("<i8")))
            self._docs.append(np.zeros(1))
            self._stack = stack.pop_all()
        return self

    def add(self, sentences: Sequence[Sequence[int]]) -> None:
        """One document: the ids of each of its sentences, none empty."""
        lens = [len(sentence) for sentence in sentences]
        ids = np.concatenate([np.asarray(sentence, dtype=np.int64) for sentence in sentences])
        self.extend(ids, np.array(lens), np.array([len(lens)]))

    def extend(self, ids: np.ndarray, lens: np.ndarray, sentences_per_document: np.ndarray) -> None:
        """Several documents at once: ids [tokens], lens [sentences], their numbers [documents].

        Raises InputError when an id is not of the vocabulary: it would wrap in the file's dtype.
        """
        assert lens.sum() == len(ids) and sentences_per_document.sum() == len(lens)
        assert lens.min(initial=1) > 0 and sentences_per_document.min(initial=1) > 0
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            bad = ids[(ids < 0) | (ids >= self.vocab_size)][0]
            raise InputError(
                f"{self.paths.ids}: id {bad} after {len(self._docs) - 1} documents; the vocabulary has "
                f"{self.vocab_size} ids: use the one that the ids were made with"
            )
        self.max_id = max(self.max_id, int(ids.max(initial=-1)))
        before = len(self._lens)
        self._ids.append(ids)
        self._lens.append(lens)
        self._docs.append(before + np.cumsum(sentences_per_document, dtype=np.int64))

    def __exit__(self, kind, error, trace) -> None:
        if kind is None:
            try:
                self._finish()
            except BaseException as failure:
                self._stack.__exit__(type(failure), failure, failure.__traceback__)
                raise
        self._stack.__exit__(kind, error, trace)

    def _finish(self) -> None:
        if not len(self._ids):
            raise InputError(f"{self.paths.ids}: no tokens to write; give an input that holds text")
        for spool in (self._ids, self._lens, self._docs):
            spool.finish()
        _write_index(self._drafts.index, self._lens.path, self._docs.path)
        self._drafts.manifest.write_text(
            json.dumps(self._manifest(), ensure_ascii=False, indent=1) + "\n",
            encoding="utf-8",
            errors="backslashreplace",  # a name that is not UTF-8: \udcff is the JSON for it
        )

    def _manifest(self) -> Dict[str, Any]:
        drafts = {"ids": self._drafts.ids, "index": self._drafts.index}
        hashes = {name: sha256_of_file(path) for name, path in drafts.items()}
        return {
            "format": FORMAT,
            "pair_id": _pair_id(hashes["ids"], hashes["index"]),
            "sha256": hashes,
            "bytes": {name: path.stat().st_size for name, path in drafts.items()},
            "tokens": len(self._ids),
            "sentences": len(self._lens),
            "documents": len(self._docs) - 1,
            "max_id": self.max_id,
            "dtype": id_dtype(self.vocab_size).name,
            "vocab_size": self.vocab_size,
            **self.about,
        }


class Corpus:
    """A corpus, memory mapped and checked.

    ids     uint16 or int32 [tokens], mapped read-only
    lens    int32 [sentences]; starts int64 [sentences + 1], the first token of each
    docs    int64 [documents + 1], the first sentence of each document
    len(corpus) is the number of sentences, corpus[i] the ids of sentence i.

    verify is "quick" (structure, sizes and the hash of the index) or "full" (also the hash of the ids).
    Raises InputError that names the file: missing, cut short, of another run, inconsistent.
    """

    def __init__(self, prefix: Union[str, Path], verify: str = "quick"):
        self.prefix = str(prefix)
        self.paths = corpus_paths(prefix)
        self.manifest = _read_manifest(self.paths)
        if self.manifest:
            _check_hashes(self.paths, self.manifest, ["index"] if verify == "quick" else ["index", "ids"])
        self.ids = _map_ids(self.paths.ids)
        members = _read_index(self.paths.index, cap=24 * (len(self.ids) + 1) + 8 * HEADER_BYTES)
        self.lens, self.docs = members["lens"].astype(np.int32), members["docs"].astype(np.int64)
        self.starts = np.concatenate([[0], np.cumsum(members["lens"], dtype=np.int64)])
        check_structure(self.paths, self.ids, self.starts, self.lens, self.docs, members.get("sents"))
        self._fingerprint = self.manifest.get("pair_id")
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
        return len(self.docs) - 1

    @property
    def has_manifest(self) -> bool:
        return bool(self.manifest)

    @property
    def fingerprint(self) -> str:
        """The content of both files as one sha256; computed once when there is no manifest."""
        if self._fingerprint is None:
            self._fingerprint = _pair_id(*map(sha256_of_file, self.paths[:2]))
        return self._fingerprint

    @property
    def vocab_sha256(self) -> str:
        """Of the vocabulary the ids were made with (WordPiece.sha256); '' when nothing says so."""
        return self.manifest.get("vocab_sha256", "")

    @property
    def max_id(self) -> int:
        """The largest id; found by reading them all when there is no manifest."""
        if self._max_id is None:
            self.check_ids(1 << 31)
            self._max_id = max(int(chunk.max()) for chunk in chunks(self.ids))
        return self._max_id

    def check_ids(self, vocab_size: int) -> None:
        """Raises InputError when an id is not in 0..vocab_size-1; reads the ids without a manifest."""
        if self.manifest and self.max_id < vocab_size:
            return
        begin = 0
        for chunk in chunks(self.ids):
            bad = np.flatnonzero((chunk < 0) | (chunk >= vocab_size))
            if len(bad):
                self._refuse_id(begin + int(bad[0]), vocab_size)
            begin += len(chunk)

    def _refuse_id(self, token: int, vocab_size: int) -> None:
        sentence = int(np.searchsorted(self.starts, token, side="right")) - 1
        document = int(np.searchsorted(self.docs, sentence, side="right")) - 1
        raise InputError(
            f"{self.paths.ids}: id {self.ids[token]} at token {token} (document {document}, sentence "
            f"{sentence}) is not below the vocabulary's {vocab_size}; use the vocabulary of this corpus"
        )


def _write_index(path: Path, lens_path: Path, docs_path: Path) -> None:
    lens, docs = (np.load(spool, mmap_mode="r", allow_pickle=False) for spool in (lens_path, docs_path))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        write_member(archive, "lens", lens.dtype, len(lens), chunks(lens))
        write_member(archive, "sents", np.dtype("<i8"), len(lens) + 1, _running_sums(lens))
        write_member(archive, "docs", docs.dtype, len(docs), chunks(docs))
    with zipfile.ZipFile(path) as archive:
        if archive.testzip():
            raise MachineError(f"{path}: the disk did not keep what was written; check it, run again")


def _running_sums(lens: np.ndarray) -> Iterator[np.ndarray]:
    total = np.zeros(1, dtype=np.int64)
    yield total
    for chunk in chunks(lens):
        total = total[-1] + np.cumsum(chunk, dtype=np.int64)
        yield total


def _pair_id(ids_sha256: str, index_sha256: str) -> str:
    return hashlib.sha256(f"{ids_sha256}{index_sha256}".encode()).hexdigest()


def _read_manifest(paths: CorpusPaths) -> Dict[str, Any]:
    """{} when there is none."""
    if not paths.manifest.exists():
        return {}
    try:
        manifest = json.loads(paths.manifest.read_bytes())
        wanted = [manifest["format"] == FORMAT, manifest["pair_id"], manifest["max_id"] + 0]
        known = wanted[0] and {"ids", "index"} == set(manifest["sha256"]) == set(manifest["bytes"])
    except (ValueError, KeyError, TypeError, RecursionError):
        known = False
    if not known:
        raise InputError(f"{paths.manifest}: not a manifest of '{FORMAT}'; make the corpus again")
    return manifest


def _check_hashes(paths: CorpusPaths, manifest: Dict[str, Any], hashed: List[str]) -> None:
    for name, path in (("ids", paths.ids), ("index", paths.index)):
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


def _map_ids(path: Path) -> np.ndarray:
    _require_file(path)
    try:
        ids = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{path}: not a readable .npy ({_brief(error)}); make the corpus again") from None
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype.str not in ("<u2", "<i4"):
        raise InputError(f"{path}: holds no 1-D uint16 or int32 ids; make the corpus again")
    return ids


def _read_index(path: Path, cap: int) -> Dict[str, np.ndarray]:
    _require_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {item.filename: item.file_size for item in archive.infolist()}
        if sum(sizes.values()) > cap or not set(sizes) <= {"lens.npy", "docs.npy", "sents.npy"}:
            raise InputError(
                f"{path}: holds something else than lens, docs, sents of these ids; make it again"
            )
        with np.load(path, allow_pickle=False) as index:
            members = {name: index[name] for name in index.files}
    except InputError:
        raise
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise InputError(f"{path}: not a readable .npz ({_brief(error)}); make the corpus again") from None
    for name in ("lens", "docs"):
        if name not in members:
            raise InputError(f"{path}: has no '{name}'; make the corpus again")
    for name, array in members.items():
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(f"{path}: '{name}' is not a 1-D array of whole numbers; make the corpus again")
    return members


def check_structure(paths: CorpusPaths, ids, starts, lens, docs, sents) -> None:
    """Raises InputError that names ``paths.index`` when the arrays do not describe the ids."""
    broken = {
        "a sentence without tokens": lens.min(initial=1) <= 0,
        f"{starts[-1]} tokens by 'lens', {len(ids)} in {paths.ids.name}": starts[-1] != len(ids),
        "'docs' does not begin with 0": not len(docs) or docs[0] != 0,
        "'docs' goes down": (docs[1:] < docs[:-1]).any(),
        f"'docs' does not end with the {len(lens)} sentences": not len(docs) or docs[-1] != len(lens),
        "'sents' disagrees with 'lens'": sents is not None and not np.array_equal(sents, starts),
    }
    for what, is_broken in broken.items():
        if is_broken:
            raise InputError(f"{paths.index}: {what}; the two files are not of one run, make them again")


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:80]
