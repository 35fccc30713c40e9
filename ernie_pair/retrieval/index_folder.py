"""The folder of an index: written by `ernie-pair index`, read by all searches.

index.faiss                       the vectors, see `VectorIndex`
texts.utf8, texts.offsets.npy     the texts, see `TextTable`; row i is vector i
ids.utf8, ids.offsets.npy         their ids
payload.utf8, payload.offsets.npy what rides along with each, as JSON {column: text}; only with "payload"
windows.npy                       see `WindowTable`; only with "windows"
measured.json                     {"verdict": what the search is worth, "thresholds": [...]}, see `Answering`
index.json                        what they were made with, and the hash of each file:

    {"format": 2, "kind": "flat", "precision": "fp32", "texts": 100000, "dim": 312, "fingerprint": ...,
     "max_seq_len": 64, "retrieval": "vectors", "recall_at_10": 1.0,
     "files": {"index.faiss": SHA-256, ...}, ...}

Of a model that has them also "similarity": "dot" and "prompt": "passage: ", put before each text. "retrieval"
is both with the files of `word_index` too, or bm25 with these instead of vectors. "answer" is the column of
"payload" that answers: of texts with the same answer a search finds the best alone. With "window_overlap" the
rows of vectors and BM25 are "windows" of the texts, which windows.npy names; otherwise they are the texts.
"""

import json
import logging
import math
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.arrays import mapped_array, sha256_of_file
from ernie_pair.core.files.atomic_files import published
from ernie_pair.core.files.json_file import (
    is_number,
    is_texts,
    is_utf8,
    is_whole_number,
    read_json_object,
    shown,
    write_json,
)
from ernie_pair.inference.embedder import TextEmbedder
from ernie_pair.inference.scores import Window
from ernie_pair.inference.word_index import BM25_FILES, CURE
from ernie_pair.models.embedding_json import MAX_DIM, MAX_TEXT_LENGTH, MAX_TEXTS, SEARCHED, SIMILARITIES
from ernie_pair.retrieval.index import KINDS, PRECISIONS, Expected

TEXT_ENDING, OFFSETS_ENDING = ".utf8", ".offsets.npy"
BLOCK = 4096  # offsets kept in memory before they are written
State = Optional[Tuple[int, ...]]


def table_files(name: str) -> Tuple[str, str]:
    """Return the names of the two files of a table."""
    return f"{name}{TEXT_ENDING}", f"{name}{OFFSETS_ENDING}"


class TextTableWriter:
    """Writes a table of texts, used with ``with``; it is complete once the context ends without an error."""

    def __init__(self, folder: Path, name: str):
        texts, self._offsets = (folder / file for file in table_files(name))
        self._texts = open(texts, "wb")  # noqa: SIM115 - closed by __exit__
        self._ends = array("q", [0])

    def __enter__(self) -> "TextTableWriter":
        return self

    def append(self, text: str) -> None:
        """Write a text."""
        self._ends.append(self._ends[-1] + self._texts.write(text.encode("utf-8")))

    def __exit__(self, kind, *exception) -> None:
        with self._texts:
            if kind is None:
                np.save(self._offsets, np.array(self._ends, dtype=np.int64))


class TextTable:
    """The texts of a table, memory-mapped. Raises CheckpointError when its two files do not match."""

    def __init__(self, folder: Path, name: str):
        texts, offsets = (folder / file for file in table_files(name))
        self._offsets = mapped_array(offsets, CURE)
        if not texts.is_file():
            raise CheckpointError(f"{texts} is not there; {CURE}")
        size = texts.stat().st_size
        self._texts = np.memmap(texts, dtype=np.uint8, mode="r") if size else np.zeros(0, np.uint8)
        is_table = self._offsets.ndim == 1 and self._offsets.dtype == np.int64 and len(self._offsets)
        if not is_table or self._offsets[0] != 0 or self._offsets[-1] != size:
            raise CheckpointError(f"{offsets} does not fit {texts.name}; {CURE}")
        for first in range(0, len(self), BLOCK):
            fault = self._fault_of(self._offsets[first : first + BLOCK + 1])
            if fault:
                raise CheckpointError(f"{texts}: {fault} in rows {first} to {first + BLOCK}; {CURE}")

    def _fault_of(self, ends: np.ndarray) -> str:
        """Return what is wrong with the texts between ``ends`` int64 [n + 1], or ''."""
        lengths = np.diff(ends)
        if ends[0] < 0 or ends[-1] > len(self._texts) or (lengths < 0).any():
            return "offsets that do not rise"
        content = self._texts[ends[0] : ends[-1]]
        try:
            content.tobytes().decode("utf-8")
        except UnicodeDecodeError:
            return "bytes that are not UTF-8"
        first_bytes = content[(ends[:-1] - ends[0])[lengths > 0]]
        return "an offset inside of a character" if ((first_bytes & 0xC0) == 0x80).any() else ""

    def repeated(self) -> Optional[str]:
        """Return a text that is there twice, or None."""
        hashes = np.fromiter((hash(text) for chunk in self.chunks(BLOCK) for text in chunk), np.int64)
        order = np.argsort(hashes, kind="stable")
        for place in np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]]):
            first, second = (self[int(order[place + step])] for step in (0, 1))
            if first == second:
                return first
        return None

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def owners(self) -> np.ndarray:
        """Return the text that each row of an index is of, int64 [R], rising: the row; see `WindowTable`."""
        return np.arange(len(self))

    def __getitem__(self, place: int) -> str:
        begin, end = self._offsets[place : place + 2].tolist()
        return self._texts[begin:end].tobytes().decode("utf-8")

    def chunks(self, size: int, begin: int = 0) -> Iterator[List[str]]:
        """Yield the texts from position ``begin`` on in order, ``size`` at a time."""
        for first in range(begin, len(self), size):
            ends = self._offsets[first : first + size + 1]
            content = self._texts[ends[0] : ends[-1]].tobytes()
            places = (ends - ends[0]).tolist()
            yield [content[begin:end].decode("utf-8") for begin, end in zip(places, places[1:])]


logger = logging.getLogger(__name__)


class Answering(NamedTuple):
    """From which score on the best text is an answer, by one way of searching, and how that was measured.

    ``reranker``: the hash of the classifier, '' without one; ``fingerprint``: of the embedding model.
    ``precision``: the share of right answers among those given, with its ``interval``; ``coverage``: the
    share of all ``questions`` that are answered; ``index_sha256``: of the manifest of the index then;
    ``recall_k``: texts that were found for a question, on which a fused rank depends. The probability that a
    text answers is 1 / (1 + exp(-slope * score - intercept)); 0 and 0: it was not fitted.
    """

    retrieval: str
    reranker: str
    fingerprint: str
    threshold: float
    asked: float
    precision: float
    interval: Tuple[float, float]
    coverage: float
    questions: int
    index_sha256: str
    recall_k: int
    slope: float = 0.0
    intercept: float = 0.0

    @property
    def key(self) -> Tuple[str, str]:
        """Return the way of searching that it belongs to."""
        return self.retrieval, self.reranker

    def probability(self, score: float) -> Optional[float]:
        """Return the probability that a text of this score answers; None: it was not fitted."""
        if not self.slope:
            return None
        return 1 / (1 + math.exp(min(-self.slope * score - self.intercept, 700)))


def _parsed_answering(found: Any) -> Answering:
    """Return the content of a threshold. Raises ValueError for anything else."""
    if not isinstance(found, dict) or {*found} != {*Answering._fields}:
        raise ValueError
    made = Answering(**{**found, "interval": tuple(found["interval"])})
    low, high = made.interval
    shares = (made.asked, made.precision, made.coverage, low, high)
    numbers = (made.threshold, made.recall_k, made.slope, made.intercept)
    are_numbers = all(map(is_number, numbers)) and all(is_number(share, 0, 1) for share in shares)
    if not (are_numbers and is_whole_number(made.questions, 1) and is_texts([*made[:3], made.index_sha256])):
        raise ValueError
    return made


class WindowTable:
    """The windows of ``texts``, one after another: ``spans`` int64 [R, 3], each a text, begin and end."""

    def __init__(self, texts: TextTable, spans: np.ndarray):
        self._texts, self._spans, self.owners = texts, spans, spans[:, 0]

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, place: int) -> str:
        text, begin, end = self._spans[place].tolist()
        return self._texts[text][begin:end]

    def chunks(self, size: int, begin: int = 0) -> Iterator[List[str]]:
        """Yield the windows from position ``begin`` on in order, ``size`` at a time."""
        for first in range(begin, len(self), size):
            yield [self[place] for place in range(first, min(first + size, len(self)))]


Rows = Union[TextTable, WindowTable]
INDEX_MANIFEST, INDEX_FORMAT = "index.json", 2
INDEX_FILE, TEXTS, IDS, PAYLOAD = "index.faiss", "texts", "ids", "payload"
VECTORS, BM25, BOTH = RETRIEVALS = ("vectors", "bm25", "both")
MEASURED = "measured.json"
WINDOWS_FILE = "windows.npy"
OF_BM25 = ("texts", "retrieval", "lines_left_out", "payload", "answer")  # of index.json without vectors
_TABLES = (*table_files(TEXTS), *table_files(IDS))
FILES = (INDEX_FILE, *_TABLES)
FILES_OF = {VECTORS: FILES, BM25: (*BM25_FILES, *_TABLES), BOTH: (*FILES, *BM25_FILES)}
WRITTEN = (*FILES_OF[BOTH], *table_files(PAYLOAD), WINDOWS_FILE, INDEX_MANIFEST)


@dataclass(frozen=True)
class IndexManifest:
    """The content of index.json; without vectors all but ``texts`` and ``retrieval`` is empty."""

    kind: str = ""
    precision: str = ""
    texts: int = 0
    dim: int = 0
    fingerprint: str = ""  # of the embedding model
    max_seq_len: int = 0  # tokens of a text that it read
    recall_at_10: float = 0  # share of the ten nearest that the index finds
    similarity: str = SIMILARITIES[0]  # of its vectors: their cosine, or the product of what they are
    prompt: str = ""  # that the texts were read with
    retrieval: str = VECTORS  # one of RETRIEVALS: by which a text can be found
    lines_left_out: int = 0  # of the files of texts
    payload: Tuple[str, ...] = ()  # the columns that ride along with the texts
    answer: str = ""  # the one of these that answers
    window_overlap: int = 0  # tokens that windows share; 0: each text has a vector
    windows: int = 0  # how many there are

    @property
    def rows(self) -> int:
        """Return how many vectors there are, or texts of BM25."""
        return self.windows or self.texts

    @property
    def files(self) -> Tuple[str, ...]:
        """Return the names of its files beside index.json."""
        more = (*(table_files(PAYLOAD) if self.payload else ()), *([WINDOWS_FILE] if self.windows else ()))
        return (*FILES_OF[self.retrieval], *more)

    @property
    def expected(self) -> Expected:
        """Return what its vectors must be."""
        is_unit = self.similarity == SIMILARITIES[0]
        return Expected(self.kind, self.precision, self.rows, self.dim, is_unit)

    def write(self, folder: Path) -> None:
        """Write index.json beside the other files."""
        files = {name: sha256_of_file(folder / name) for name in self.files}
        said = {name: value for name, value in vars(self).items() if value not in (SIMILARITIES[0], "", ())}
        said = {name: value for name, value in said.items() if value or not name.startswith("window")}
        if self.retrieval == BM25:
            said = {name: said[name] for name in OF_BM25 if name in said}
        content = {"format": INDEX_FORMAT, **said, "files": files}
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (folder / INDEX_MANIFEST).write_text(text, encoding="utf-8")


def state_of(folder: Path) -> State:
    """Return what tells a state of an index from the one that takes its place; None: it is not there.

    What is measured of its search is a part of it.
    """
    found = []
    for name in (INDEX_MANIFEST, MEASURED):
        try:
            about = (folder / name).stat()
        except OSError:
            if name == INDEX_MANIFEST:
                return None
        else:
            found += [about.st_ino, about.st_mtime_ns, about.st_size]
    return tuple(found)


@dataclass(frozen=True)
class IndexFolder:
    """An index on disk, its files as written."""

    folder: Path
    manifest: IndexManifest
    texts: TextTable
    ids: TextTable
    payload: Optional[TextTable] = None
    verdict: str = ""  # what the search is worth, in a sentence
    answering: Tuple[Answering, ...] = ()
    state: State = None  # which was opened, see `state_of`
    spans: Optional[np.ndarray] = field(default=None, compare=False)  # see `WindowTable`; None: whole texts
    _read: Dict[str, Tuple[Dict[str, int], np.ndarray]] = field(default_factory=dict, compare=False)

    def answer_of(self, place: int) -> Union[str, int]:
        """Return the answer that rides along with a text, or ``place`` where there is none."""
        answer = self.manifest.answer
        return self.payload_of(place).get(answer, place) if answer else place

    def payload_of(self, place: int) -> Dict[str, str]:
        """Return what rides along with a text. Raises CheckpointError for what is not {column: text}."""
        return {} if self.payload is None else self._parsed(self.payload[place], place)

    def _parsed(self, payload: str, place: int) -> Dict[str, str]:
        try:
            found = json.loads(payload)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not {*found} <= {*self.manifest.payload}:
            raise CheckpointError(f"{self.folder}: the payload of text {place} is damaged; {CURE}")
        if not is_texts(list(found.values())):
            raise CheckpointError(f"{self.folder}: the payload of text {place} is no text; {CURE}")
        return found

    @property
    def rows(self) -> "Rows":
        """Return what the vectors, and BM25, are of."""
        return self.texts if self.spans is None else WindowTable(self.texts, self.spans)

    def by_texts(self, found: Mapping[int, float], rows: Dict[int, int]) -> Dict[int, float]:
        """Return {text: score} of {row: score}, the best first; ``rows`` gets {text: its first row found}."""
        best: Dict[int, float] = {}
        for row, score in found.items():
            text = row if self.spans is None else int(self.spans[row, 0])
            best.setdefault(text, score)
            rows.setdefault(text, row)
        return best

    def window_of(self, row: int) -> Optional[Window]:
        """Return which part of its text a row is; None: all of it."""
        if self.spans is None:
            return None
        text, begin, end = self.spans[row].tolist()
        return None if end - begin == len(self.texts[text]) else Window(begin, end, self.rows[row])

    def check_current(self) -> None:
        """Raise CheckpointError if another state has taken the place of this one: its files are not these."""
        if state_of(self.folder) != self.state:
            raise CheckpointError(f"{self.folder} was changed while it was opened; run it again")

    def check_columns(self, where: Mapping[str, str]) -> None:
        """Raise InputError for a column of ``where`` that does not ride along with the texts."""
        for column, value in where.items():
            if column not in self.manifest.payload:
                there = ", ".join(self.manifest.payload) or "none"
                raise InputError(
                    f"--where {column}={value}: {self.folder} has no such column beside its texts (there: "
                    f"{there}); --payload_columns keeps it when the index is made"
                )

    def rows_where(self, where: Mapping[str, str]) -> np.ndarray:
        """Return which rows are of texts with all these {column: value}: bool [R]; '' is what is empty.

        The first time that a column is named it is read whole. Raises InputError for one that is not there.
        """
        self.check_columns(where)
        fits = np.ones(self.manifest.texts, dtype=bool)
        for column, value in where.items():
            if column not in self._read:
                self._read[column] = self._numbered(column)
            known, numbers = self._read[column]
            fits &= numbers == known.get(value, -1)
        return fits if self.spans is None else fits[self.spans[:, 0]]

    def _numbered(self, column: str) -> Tuple[Dict[str, int], np.ndarray]:
        """Return {value: its number} of a column, and the number of each text, int32 [N]."""
        known: Dict[str, int] = {}
        rows = chain.from_iterable(self.payload.chunks(BLOCK)) if self.payload is not None else ()
        values = (self._parsed(row, place).get(column, "") for place, row in enumerate(rows))
        return known, np.fromiter((known.setdefault(one, len(known)) for one in values), np.int32)

    def answering_by(self, retrieval: str, reranker: str) -> Optional[Answering]:
        """Return from which score on a text is an answer, by this way of searching; None: it is not saved."""
        return next((one for one in self.answering if one.key == (retrieval, reranker)), None)

    def check_breadth(self, breadth: int) -> None:
        """Raise InputError if ``breadth`` would have no effect; 0 leaves it to the index."""
        if breadth and self.manifest.kind in ("flat", ""):
            kind = "flat index, which compares all vectors" if self.manifest.kind else "BM25 index"
            raise InputError(f"--breadth {breadth}: {self.folder} is a {kind}; leave the flag out")

    def fit_embedder(self, embedder: TextEmbedder) -> TextEmbedder:
        """Return ``embedder`` at this index's length of vectors. Raises InputError if it is another model."""
        manifest = self.manifest
        if manifest.dim != embedder.dim and manifest.dim in embedder.settings.dims:
            embedder = TextEmbedder(embedder.model, manifest.dim, embedder.batch_size)
        if embedder.fingerprint != manifest.fingerprint:
            raise InputError(
                f"{self.folder}: its vectors are of another model ({manifest.fingerprint[:12]}) than "
                f"{embedder.model.name} ({embedder.fingerprint[:12]}); give the model that the index was "
                "made with, or make it again"
            )
        return embedder

    def check_same_vectors(self, about: Dict[str, Any], where: str) -> None:
        """Raise InputError unless the vectors ``where``, of ``about`` (see `StoredVectors`), are as these."""
        for name in ("fingerprint", "similarity", "prompt"):
            if about[name] != getattr(self.manifest, name):
                before, now = shown(getattr(self.manifest, name)), shown(about[name])
                raise InputError(
                    f"{self.folder}: its vectors are of another {name} ({before}) than those of {where} "
                    f"({now}); make them as for the index, or make it again"
                )

    def choose_retrieval(self, retrieval: str) -> str:
        """Return ``retrieval``, for auto all that the index was made for. Raises InputError for another."""
        made = self.manifest.retrieval
        if retrieval not in ("auto", made) and made != BOTH:
            raise InputError(
                f"--retrieval {retrieval}: {self.folder} was made with --retrieval {made}; leave the flag "
                f"out, or make the index with --retrieval {BOTH}"
            )
        return made if retrieval == "auto" else retrieval


def open_index_folder(folder: Path) -> IndexFolder:
    """Open an index, all files checked: their hashes, and of the tables every number.

    A file may be a link, as in the cache of a hub, for its hash says what it holds. Where another state takes
    its place meanwhile, that one is opened. Raises InputError if it is no index, CheckpointError if it is
    damaged.
    """
    while True:
        state = state_of(folder)
        try:
            found = replace(_open_state(folder), state=state)
            found.check_current()
            return found
        except CheckpointError:
            if state_of(folder) == state:
                raise


def _open_state(folder: Path) -> IndexFolder:
    if not folder.is_dir():
        raise InputError(f"--index {folder} is not a folder; give the --output_dir of ernie-pair index")
    path = folder / INDEX_MANIFEST
    if not path.is_file():
        raise InputError(f"--index {folder} holds no {INDEX_MANIFEST}; make an index with ernie-pair index")
    found = read_json_object(path, CURE, CheckpointError)
    if found.get("format") != INDEX_FORMAT:
        raise CheckpointError(f"{path}: format {found.get('format')!r}, not {INDEX_FORMAT}; {CURE}")
    files, retrieval, payload = found.get("files"), found.get("retrieval"), found.get("payload", [])
    is_sound = {
        "payload": isinstance(payload, list) and is_texts(payload),
        "answer": "answer" not in found or isinstance(payload, list) and found["answer"] in payload,
        "texts": is_whole_number(found.get("texts"), 1, MAX_TEXTS),
        "lines_left_out": is_whole_number(found.get("lines_left_out", 0), 0, MAX_TEXTS),
        "retrieval": retrieval in RETRIEVALS,
        "files": isinstance(files, dict) and is_texts(list(files.values())),
    }
    if retrieval != BM25:
        is_sound.update({
            "kind": found.get("kind") in KINDS,
            "precision": found.get("precision") in PRECISIONS,
            "dim": is_whole_number(found.get("dim"), 1, MAX_DIM),
            "fingerprint": isinstance(found.get("fingerprint"), str) and found["fingerprint"].isprintable(),
            "max_seq_len": is_whole_number(found.get("max_seq_len"), 0, MAX_TEXT_LENGTH),
            "recall_at_10": is_number(found.get("recall_at_10"), 0, 1),
            "similarity": found.get("similarity", SIMILARITIES[0]) in SEARCHED,
            "prompt": isinstance(found.get("prompt", ""), str) and is_utf8(found.get("prompt", "")),
            "window_overlap": is_whole_number(found.get("window_overlap", 0), 0, MAX_TEXT_LENGTH),
            "windows": is_whole_number(found.get("windows", 0), 0, MAX_TEXTS)
            and ("windows" in found) == ("window_overlap" in found),
        })  # fmt: skip
    _check_sound(path, is_sound)
    checked = OF_BM25 if retrieval == BM25 else IndexManifest.__dataclass_fields__
    said = {name: found[name] for name in checked if name in found}
    manifest = IndexManifest(**{**said, "payload": tuple(payload)})
    _check_sound(path, {"files": {*found["files"]} == {*manifest.files}})
    for name in manifest.files:
        file = folder / name
        if not file.is_file() or sha256_of_file(file) != found["files"].get(name):
            raise CheckpointError(f"{file} is not the file that was written; {CURE}")
    texts, ids = TextTable(folder, TEXTS), TextTable(folder, IDS)
    more = TextTable(folder, PAYLOAD) if manifest.payload else None
    if not len(texts) == len(ids) == manifest.texts == (manifest.texts if more is None else len(more)):
        there = f"{len(texts)} texts and {len(ids)} ids are there"
        raise CheckpointError(f"{path}: {manifest.texts} texts, and {there}; {CURE}")
    twice = ids.repeated()
    if twice is not None:
        raise CheckpointError(f"{folder}: the id {shown(twice)} is there twice; {CURE}")
    spans = _read_spans(folder, manifest) if manifest.windows else None
    return IndexFolder(folder, manifest, texts, ids, more, *_read_measured(folder, manifest), spans=spans)


def _check_sound(path: Path, is_sound: Mapping[str, bool]) -> None:
    for key, sound in is_sound.items():
        if not sound:
            raise CheckpointError(f"{path}: wrong or missing: {key}; {CURE}")


def _read_spans(folder: Path, manifest: IndexManifest) -> np.ndarray:
    """Return the windows of an index, see `WindowTable`. Raises CheckpointError for what are none."""
    spans = mapped_array(folder / WINDOWS_FILE, CURE)
    if spans.dtype == np.int64 and spans.shape == (manifest.windows, 3):
        texts, begins, ends = spans.T
        has_ends = texts[0] == 0 and texts[-1] == manifest.texts - 1
        if (
            has_ends
            and np.isin(np.diff(texts), (0, 1)).all()
            and (begins >= 0).all()
            and (ends > begins).all()
        ):
            return spans
    raise CheckpointError(f"{folder / WINDOWS_FILE} are not the windows of {manifest.texts} texts; {CURE}")


def _read_measured(folder: Path, manifest: IndexManifest) -> Tuple[str, Tuple[Answering, ...]]:
    path = folder / MEASURED
    said = read_json_object(path, f"remove it, or {CURE}", CheckpointError) if path.exists() else {}
    try:
        thresholds = tuple(map(_parsed_answering, said.get("thresholds", [])))
    except (TypeError, ValueError):
        thresholds = None
    if not is_texts([verdict := said.get("verdict", "")]) or thresholds is None:
        raise CheckpointError(f"{path} is damaged; remove it, or {CURE}")
    if any(one.fingerprint not in ("", manifest.fingerprint) for one in thresholds):
        raise CheckpointError(f"{path} has thresholds of another index; remove it, and measure again")
    return verdict, thresholds


def keep_measured(
    folder: Path,
    verdict: str = "",
    answering: Sequence[Answering] = (),
    measured: Collection[Tuple[str, str]] = (),
) -> None:
    """Keep beside an index what was measured of its search; what is not given stays as it is there.

    ``measured``: the ways of searching, see `Answering.key`, whose thresholds are now those in ``answering``.
    """
    path = folder / MEASURED
    said = read_json_object(path, f"remove it, or {CURE}", CheckpointError) if path.exists() else {}
    if verdict:
        said["verdict"] = verdict
    if measured:
        others = [
            one for one in said.get("thresholds", []) if (one["retrieval"], one["reranker"]) not in measured
        ]
        said["thresholds"] = [*others, *(one._asdict() for one in answering)]
    with published(path) as (draft,):
        write_json(draft, said)


def carry_measured(old: Path, new: Path, is_same_model: bool) -> None:
    """Copy what was measured of the search of the index ``old``, as it is there now, to ``new``.

    Where that is not of the same model, the thresholds of BM25 alone hold on; which do not is logged.
    """
    path = old / MEASURED
    if not path.is_file():
        return
    said = read_json_object(path, f"remove it, or {CURE}", CheckpointError)
    if not is_same_model:
        thresholds = said.pop("thresholds", [])
        kept = [one for one in thresholds if not one["fingerprint"]]
        if len(kept) < len(thresholds):
            lost = " and ".join(one["retrieval"] for one in thresholds if one not in kept)
            logger.warning("%s: the thresholds of %s are not taken over; measure them again", old, lost)
        said = {"thresholds": kept} if kept else {}
    if said:
        write_json(new / MEASURED, said)
