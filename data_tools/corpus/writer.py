"""Write a corpus document by document in bounded memory, in the format of `format`."""

import json
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Literal, Optional, Sequence, Union

import numpy as np

from data_tools.corpus.format import CORPUS_FORMAT, CorpusPaths, corpus_paths, id_dtype, marks_path, pair_id
from ernie_pair.core.errors import InputError, MachineError
from ernie_pair.core.files.arrays import ArrayFile, chunks, sha256_of_file, write_member
from ernie_pair.core.files.atomic_files import published, scratch


class CorpusWriter:
    """Writes a corpus: streams documents to disk, and publishes the files together on success.

    with CorpusWriter("data/baike", vocab_size=17964) as writer:
        writer.add([[7, 8], [9]])           # one document, its sentences
        writer.about["inputs"] = [...]      # whatever else the manifest is to record

    ``also``: further files of the same run, published with the three: fill ``writer.also_drafts``. With
    ``lexicon_marks``, the meanings of the marks 1, 2, ..., each token has a mark and there is a fourth file.
    Memory does not grow with the corpus. After an exception nothing remains. ``publish``: like `published`.
    """

    def __init__(
        self,
        prefix: Union[str, Path],
        *,
        vocab_size: int,
        about: Optional[Dict[str, Any]] = None,
        also: Sequence[Path] = (),
        lexicon_marks: Optional[List[Dict[str, Any]]] = None,
        publish: Callable[..., ContextManager[List[Path]]] = published,
    ):
        self.paths, self._marks_path = corpus_paths(prefix), marks_path(prefix)
        self._also, self._publish = list(also), publish
        self.vocab_size = vocab_size
        self.about = dict(about or {})
        self.lexicon_marks = lexicon_marks
        self.max_id = -1
        self._marks: Optional[ArrayFile] = None

    def __enter__(self) -> "CorpusWriter":
        with ExitStack() as stack:
            marks = [] if self.lexicon_marks is None else [self._marks_path]
            drafts = stack.enter_context(self._publish(*self._also, *marks, *self.paths))
            self.also_drafts = drafts[: len(self._also)]
            self._drafts = CorpusPaths(*drafts[-3:])
            names = [Path(f"{self._drafts.idx}.{name}") for name in ("lens", "docs")]
            spools = stack.enter_context(scratch(*names))
            self._ids = stack.enter_context(ArrayFile(self._drafts.ids, id_dtype(self.vocab_size)))
            self._lens = stack.enter_context(ArrayFile(spools[0], np.dtype("<i4")))
            self._docs = stack.enter_context(ArrayFile(spools[1], np.dtype("<i8")))
            self._docs.append(np.zeros(1))
            self._marks = None
            if marks:
                self._marks = stack.enter_context(ArrayFile(drafts[-4], np.dtype("u1")))
            self._stack = stack.pop_all()
        return self

    def add(self, sentences: Sequence[Sequence[int]]) -> None:
        """Append one document: the ids of its sentences, none empty. Raises InputError for an unknown id."""
        lens = [len(sentence) for sentence in sentences]
        ids = np.concatenate([np.asarray(sentence, dtype=np.int64) for sentence in sentences])
        self.extend(ids, np.array(lens), np.array([len(lens)]))

    def extend(
        self,
        ids: np.ndarray,
        lens: np.ndarray,
        sentences_per_document: np.ndarray,
        marks: Optional[np.ndarray] = None,
    ) -> None:
        """Append several documents at once.

        ``ids``: integers [tokens]; ``lens``: integers [sentences], the tokens of each;
        ``sentences_per_document``: integers [documents]; ``marks``: uint8 [tokens], or None without a
        lexicon. Raises InputError if an id is not in the vocabulary: it would wrap in the file's dtype.
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
        assert (marks is None) == (self._marks is None)
        if self._marks is not None and marks is not None and self.lexicon_marks is not None:
            assert len(marks) == len(ids) and marks.max(initial=0) <= len(self.lexicon_marks)
            self._marks.append(marks)
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
            raise InputError(f"{self.paths.ids}: no tokens to write; give an input that contains text")
        for spool in (self._ids, self._lens, self._docs, self._marks):
            if spool is not None:
                spool.finish()
        path = self._drafts.idx
        lens, docs = (
            np.load(spool.path, mmap_mode="r", allow_pickle=False) for spool in (self._lens, self._docs)
        )
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            write_member(archive, "lens", lens.dtype, len(lens), chunks(lens))
            write_member(archive, "sents", np.dtype("<i8"), len(lens) + 1, _running_sums(lens))
            write_member(archive, "docs", docs.dtype, len(docs), chunks(docs))
        with zipfile.ZipFile(path) as archive:
            if archive.testzip():
                raise MachineError(f"{path}: cannot be read back as written; check the disk, run again")
        drafts, marks = {"ids": self._drafts.ids, "index": self._drafts.idx}, {}
        if self._marks is not None:
            drafts["marks"], marks = self._marks.path, {"lexicon_marks": self.lexicon_marks}
        hashes = {name: sha256_of_file(path) for name, path in drafts.items()}
        manifest = {
            "format": CORPUS_FORMAT,
            "pair_id": pair_id(hashes["ids"], hashes["index"]),
            "sha256": hashes,
            "bytes": {name: path.stat().st_size for name, path in drafts.items()},
            "tokens": len(self._ids),
            "sentences": len(self._lens),
            "documents": len(self._docs) - 1,
            "max_id": self.max_id,
            "dtype": id_dtype(self.vocab_size).name,
            "vocab_size": self.vocab_size,
            **marks,
            **self.about,
        }
        content = json.dumps(manifest, ensure_ascii=False, indent=1) + "\n"
        # A name that is not UTF-8: \udcff is its JSON.
        self._drafts.manifest.write_text(content, encoding="utf-8", errors="backslashreplace")


def _running_sums(lens: np.ndarray) -> Iterator[np.ndarray]:
    total = np.zeros(1, dtype=np.int64)
    yield total
    for chunk in chunks(lens):
        total = total[-1] + np.cumsum(chunk, dtype=np.int64)
        yield total


@dataclass(frozen=True)
class Joining:
    """Which documents are joined, and the maximum number of tokens of a joined one.

    none          none of them
    one_sentence  consecutive ones of one sentence
    short         any that fit
    """

    which: Literal["none", "one_sentence", "short"] = "none"
    max_tokens: int = 509


def join_documents(sizes: np.ndarray, lens: np.ndarray, joining: Joining) -> np.ndarray:
    """Join documents; return the number of sentences of each, int64 [documents after joining].

    ``sizes`` int64 [documents]: the sentences of each; ``lens`` int32 [sentences]: the tokens of each.
    """
    if joining.which == "none":
        return sizes
    tokens = np.diff(np.append(0, np.cumsum(lens, dtype=np.int64))[np.append(0, np.cumsum(sizes))])
    joined: List[int] = []
    room = 0
    for size, count in zip(sizes.tolist(), tokens.tolist()):
        may_join = joining.which == "short" or size == 1
        if may_join and count <= room:
            joined[-1] += size
            room -= count
        else:
            joined.append(size)
            room = joining.max_tokens - count if may_join else 0
    return np.array(joined, dtype=np.int64)
