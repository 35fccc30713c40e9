"""ernie-pair index: build an index of the texts of a file, for search by meaning.

All lines are checked before the model runs. Vectors are kept chunk by chunk beside the folder, so that a run
after a killed one reuses them; the folder appears when it is complete.
"""

import hashlib
import json
import logging
import os
from array import array
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, compress, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Dict, Iterator, List, Literal, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from data_tools.text.text_files import LineRules
from data_tools.text.texts import (
    INPUT_HELP,
    READ_AS,
    LeftOut,
    TextColumns,
    TextFlags,
    check_unique_ids,
    columns_in,
    has_ids,
    read_texts,
)
from ernie_pair.checkpoint.run_config import CONFIG_YAML, publish_results
from ernie_pair.core.cli.options import (
    OverwriteFlag,
    check_unset,
    data_option,
    defaults_of,
    devices_option,
    file_option,
    model_folder_option,
    model_option,
    path_option,
    precision_option,
    speed_option,
)
from ernie_pair.core.cli.standard_streams import with_standard_streams
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.atomic_folder import MADE, check_replaceable, list_content
from ernie_pair.core.files.json_file import is_whole_number, read_json_object, shown
from ernie_pair.core.files.results import Results, files_of, settings_of
from ernie_pair.core.progress import CountProgress, Progress
from ernie_pair.embeddings.open_embedder import log_drift, open_embedder
from ernie_pair.inference.embedder import (
    EmbedderOptions,
    TextEmbedder,
    check_vectors,
    describe_cut,
    unit_rows,
)
from ernie_pair.inference.token_rows import OVERLAP_HELP, BatchTokensFlag
from ernie_pair.inference.vector_files import (
    HINT,
    VECTORS_JSON,
    VectorFile,
    VectorWriter,
    open_vectors,
    pack_vectors,
    part_folder,
)
from ernie_pair.inference.word_index import write_bm25
from ernie_pair.kernels.choice import EMBEDDING_HELP, KernelFlags
from ernie_pair.models.embedding_json import SEARCHED, SIMILARITIES
from ernie_pair.models.model_folder import list_model_files
from ernie_pair.pairs.data.pair_source import check_unchanged, file_stamp
from ernie_pair.retrieval.index import (
    SEARCH_LIBRARIES,
    Chunks,
    IndexShape,
    VectorIndex,
    check_memory,
    keep_rows,
    read_index,
    require_faiss,
    stored_vectors,
    train_index,
    write_index,
)
from ernie_pair.retrieval.index_folder import (
    BM25,
    BOTH,
    IDS,
    INDEX_FILE,
    INDEX_MANIFEST,
    MEASURED,
    PAYLOAD,
    TEXTS,
    VECTORS,
    WINDOWS_FILE,
    WRITTEN,
    IndexFolder,
    IndexManifest,
    Rows,
    TextTable,
    TextTableWriter,
    WindowTable,
    carry_measured,
    open_index_folder,
)
from ernie_pair.runtime.cpu import cpu_threads
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World

CHUNK = 8192  # texts
PROBED, NEAREST = 100, 10  # vectors searched for when the index is built, and how many neighbours of each
BAD_LINE_CURE = "fix the line, or pass --on_bad_row skip"
OF_A_MODEL = ("fingerprint", "max_seq_len", "similarity", "prompt")  # what index.json says of it
ANSWERS, DECLARED = ("answer", "答案"), "answer="  # columns that answer, and what stands before another
THREADS_HELP = "threads of one forward pass and of faiss; 0: the number of cores of this process"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexConfig(OverwriteFlag, BatchTokensFlag, TextFlags):
    """Build an index in which `ernie-pair search` finds the texts that match a query, or change its texts."""

    EXAMPLE = "--input_file faq.tsv --embedding_model embedder --output_dir faq.index"
    NEEDS = SEARCH_LIBRARIES

    input_file: str = file_option("", help=INPUT_HELP, stdin=(".txt", ".jsonl"))
    output_dir: str = data_option(help="folder to create", writes="FOLDER")
    embedding_model: str = model_folder_option("", help="an embedding model, trained or exported: its folder")
    vectors: str = path_option(
        "", help="instead of a model: the vectors that ernie-pair embed wrote for these texts"
    )
    kind: Literal["flat", "ivf", "hnsw"] = model_option(
        "flat", help="flat: exact; ivf: lists of near vectors; hnsw: a graph of near vectors", affects="index"
    )
    dtype: Literal["fp32", "fp16", "int8"] = precision_option(
        "fp32",
        help="type of the numbers in the index; fp16 takes half the memory, int8 a quarter",
        affects="index",
    )
    dim: int = model_option(
        0,
        help="length of the vectors, one of the model's lengths; 0: full length",
        at_least=0,
        only_with="embedding_model",
        affects="index",
    )
    lists: int = model_option(
        0,
        help="number of lists of ivf; 0: 4 x the square root of the number of texts",
        unit="lists",
        at_least=0,
        only_with="kind=ivf",
        affects="index",
    )
    batch_size: int = devices_option(64, help="texts in one forward pass", unit="texts", at_least=1)
    device: Literal["cpu", "gpu", "gpu:N"] = speed_option("cpu", help="where the embedding model runs")
    threads: int = speed_option(0, help=THREADS_HELP, unit="threads", at_least=0)
    on_bad_row: Literal["stop", "skip"] = data_option(
        "stop", help="a line without text: stop and name the line, or skip it"
    )
    retrieval: Literal["vectors", "bm25", "both"] = model_option(
        VECTORS,
        help="by what texts are found: vectors of a model; bm25: words of jieba, without a model; both: one "
        "ranking of the two",
        affects="index",
    )
    window_overlap: int = model_option(
        0, help=OVERLAP_HELP, unit="tokens", at_least=0, only_with="embedding_model", affects="index"
    )
    add: bool = data_option(
        False, help="add the texts to the index in --output_dir, which is kept as it was built"
    )
    update: bool = data_option(
        False, help="like --add, but texts with an id that the index has replace those of this id"
    )
    delete: str = file_option(
        "",
        help="instead of --input_file: ids, one per line (.txt) or in a table, whose texts are removed from "
        "the index in --output_dir",
        stdin=(".txt", ".jsonl"),
    )
    upgrade_from: str = data_option(
        "",
        help="instead of --input_file: an index, of whose texts, ids and payload one like it is made, by "
        "another embedding model",
        reads="FOLDER",
    )
    embedding_precision: Literal["fp32", "bf16", "fp16"] = precision_option(
        "fp32", help=EMBEDDING_HELP, only_with="embedding_model"
    )
    payload_columns: str = model_option(
        "",
        help="columns that ride along and are returned with each text, separated by commas; of texts with "
        "the same answer, a column answer or 答案 or the one in answer=COLUMN, the best is found",
        affects="index",
    )

    def __post_init__(self):
        super().__post_init__()
        self._check_source()
        if self.retrieval == BM25 and (self.embedding_model or self.vectors):
            raise InputError(
                f"--retrieval {BM25} takes no model and no vectors; leave them out, or use --retrieval {BOTH}"
            )
        has_source = self.retrieval == BM25 or self.embedding_model or self.vectors or self.change
        if self.embedding_model and self.vectors or not has_source:
            raise InputError(
                "give either --embedding_model or --vectors: a model that makes the vectors, or their folder"
            )
        if self.payload_columns.count(DECLARED) > 1:
            raise InputError(f"--payload_columns {self.payload_columns} has several {DECLARED}; leave one")
        if self.changes_texts and self.overwrite:
            raise InputError(
                f"--{self.change} keeps the texts that --overwrite would replace; give one of them"
            )
        if self.change:
            kept = f": --{self.change} keeps that of the index; leave it out"
            check_unset(self, defaults_of(self, "index"), kept)

    def _check_source(self) -> None:
        """Raise InputError unless what makes the texts and their vectors is named, and nothing more."""
        given = [name for name in ("add", "update", "delete", "upgrade_from") if getattr(self, name)]
        if len(given) > 1:
            raise InputError(f"--{given[0]} and --{given[1]} exclude each other; give one of them")
        if not (self.input_file or self.delete or self.upgrade_from):
            raise InputError("--input_file is missing; give a file of texts")
        if self.input_file and (self.delete or self.upgrade_from):
            raise InputError(f"--{self.change} takes the place of --input_file; give one of them")
        if self.delete and (self.embedding_model or self.vectors):
            raise InputError("--delete makes no vectors; leave --embedding_model and --vectors out")
        if self.upgrade_from and not self.embedding_model:
            raise InputError("--upgrade_from needs the model to upgrade to; name it with --embedding_model")

    @property
    def change(self) -> str:
        """Return the flag that says what is made of an index that is there, or ''."""
        return "upgrade_from" if self.upgrade_from else self.changes_texts

    @property
    def changes_texts(self) -> str:
        """Return the flag by which the index in ``output_dir`` is changed, or ''."""
        return "add" if self.add else "update" if self.update else "delete" if self.delete else ""

    @property
    def shape(self) -> IndexShape:
        """Return the settings that the index is built with."""
        return IndexShape(self.kind, self.dtype, self.lists)

    @property
    def payload(self) -> Tuple[Tuple[str, ...], str]:
        """Return the columns that ride along, and the one of them that answers, or ''."""
        named = columns_in(self.payload_columns)
        names = [each.removeprefix(DECLARED).strip() for each in named]
        answers = [name for name, each in zip(names, named) if name != each]
        answers += [name for name in names if name in ANSWERS]
        return tuple(dict.fromkeys(names)), next(iter(answers), "")


@with_standard_streams
def make_index(config: IndexConfig) -> Path:
    """Build a search index of texts, and return its folder, for `search` and `PairSearcher`.

    It is written entirely or not at all. Raises an ErniePairError.
    """
    start_console(World())
    output_dir = Path(os.path.realpath(config.output_dir))
    is_index = (output_dir / INDEX_MANIFEST).is_file()
    if config.changes_texts and not is_index:
        flag, name = config.changes_texts, config.output_dir
        raise InputError(f"--{flag}: {name} is no index yet; make it without that flag first")
    if config.embedding_model or config.vectors:
        require_faiss()
    check_replaceable(output_dir, (*WRITTEN, MEASURED, CONFIG_YAML) if is_index else ())
    inputs: Dict[str, Sequence[Path]] = {
        "input_file": files_of(config.input_file),
        "delete": files_of(config.delete),
        "upgrade_from": [Path(config.upgrade_from, INDEX_MANIFEST)] if config.upgrade_from else [],
        "embedding_model": list_model_files(config.embedding_model),
        "vectors": list_content(config.vectors),
    }
    outputs = [output_dir / name for name in WRITTEN]
    settings = settings_of(config, *inputs, "output_dir", "batch_size")
    may_change, record = config.overwrite or bool(config.changes_texts), output_dir / MADE
    results = Results("index", outputs, inputs, settings, may_change, record=record)
    given = config.input_file or config.delete or config.upgrade_from
    if config.changes_texts and results.were_made():
        logger.info("%s was changed by %s already: nothing to do", config.output_dir, given)
        return Path(config.output_dir)
    if results.are_done():
        return Path(config.output_dir)
    said: List[str] = []
    work = output_dir.with_name(f".{output_dir.name}.vectors")
    busy = f"{work}: another run makes this index; let it end, or stop it, then run again"
    with part_folder(work, busy):
        fill = partial(_fill, config=config, work=work, said=said)
        publish_results(output_dir, fill, "index", config, results)
    if not (config.update or config.delete):
        said.append(f"the index of {given} is in {config.output_dir}")
    logger.info("%s", "; ".join(said))
    return Path(config.output_dir)


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
                check_vectors(rows, where, first, is_unit=False)
            yield rows


def open_stored(
    folder: Path, texts_file: Path, count: int, read_as: Mapping[str, object] = MappingProxyType({})
) -> StoredVectors:
    """Open the vectors in a folder of `ernie-pair embed`, of ``count`` texts of ``texts_file``.

    ``read_as``: with which flags these were read. Raises InputError if they are of another file,
    CheckpointError for a damaged folder.
    """
    file = open_vectors(folder)
    file.verify()
    about = read_json_object(folder / VECTORS_JSON, HINT)
    made_of = about.get("texts")
    made_of = made_of if isinstance(made_of, dict) else {}
    for name in READ_AS:
        before, now = (one.get(name, "what is found") for one in (made_of, read_as))
        if before != now:
            raise InputError(f"--vectors {folder}: {name} {before}, and here {now}; {HINT}")
    made_of = made_of.get("sha256")
    if made_of not in (None, sha256_of_file(texts_file)) or file.count != count:
        raise InputError(
            f"--vectors {folder} holds {file.count} vectors of another file than {texts_file}, "
            f"with {count} texts; {HINT}"
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


class Kept(NamedTuple):
    """What stays of an index that is changed: the texts that ``texts``, bool [N], names."""

    old: IndexFolder
    texts: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """Return which vectors stay, bool [R]."""
        return self.texts[self.old.rows.owners]


def _fill(draft: Path, config: IndexConfig, work: Path, said: List[str]) -> None:
    old = _open_old(config) if config.change else None
    retrieval = config.retrieval if old is None else old.manifest.retrieval
    payload, answer = config.payload if old is None else (old.manifest.payload, old.manifest.answer)
    stamps = {path: file_stamp(path) for path in files_of(config.input_file)}
    kept = None if old is None else Kept(old, _choose_kept(config, old, said))
    left_out = LeftOut()
    _write_texts(config, draft, left_out, kept, payload, stamps)
    table = TextTable(draft, TEXTS)
    if config.lists > len(table):  # faiss cannot find centres for them
        raise InputError(
            f"--lists {config.lists} is above the {len(table)} texts of {config.input_file}; use "
            f"{replace(config.shape, lists=0).lists_for(len(table))}, or leave it out"
        )
    _say_left_out(left_out)
    rows: Rows = table
    manifest = IndexManifest(retrieval=retrieval)
    if retrieval != BM25:
        manifest, rows = _write_vectors(draft, config, table, kept, work, said)
    if retrieval != VECTORS:
        logger.info("BM25 of %d texts, by words of jieba and characters", len(rows))
        write_bm25(draft, (text for chunk in rows.chunks(CHUNK) for text in chunk))
    lines_left_out = left_out.count + (0 if old is None else old.manifest.lines_left_out)
    manifest = replace(manifest, texts=len(table), retrieval=retrieval, lines_left_out=lines_left_out)
    replace(manifest, payload=payload, answer=answer).write(draft)
    if old is not None:
        carry_measured(old.folder, draft, old.manifest.fingerprint == manifest.fingerprint)
    elif (Path(config.output_dir) / MEASURED).is_file():
        logger.warning("%s: what was measured of its search is not taken over; measure it", config.output_dir)


def _open_old(config: IndexConfig) -> IndexFolder:
    """Return the index that is changed or upgraded. Raises InputError if the flags do not fit it."""
    folder = Path(os.path.realpath(config.upgrade_from or config.output_dir))
    flag = f"--upgrade_from {config.upgrade_from}"
    if not (folder / INDEX_MANIFEST).is_file():
        raise InputError(f"{flag} is no index; give the --output_dir of ernie-pair index")
    old = open_index_folder(folder)
    by_words = old.manifest.retrieval == BM25
    if by_words and config.upgrade_from:
        raise InputError(f"{flag} was made with --retrieval {BM25}, by no model; give an index of vectors")
    if not config.delete and by_words == bool(config.embedding_model or config.vectors):
        cure = "take no model" if by_words else "give --embedding_model, or their --vectors"
        made = f"{config.output_dir} was made with --retrieval {old.manifest.retrieval}"
        raise InputError(f"{made}: to {config.change} texts, {cure}")
    if config.vectors and old.manifest.windows:
        made = f"{config.output_dir} was made with --window_overlap {old.manifest.window_overlap}"
        raise InputError(f"{made}, and --vectors are of whole texts; give --embedding_model")
    return old


def _choose_kept(config: IndexConfig, old: IndexFolder, said: List[str]) -> np.ndarray:
    """Return which texts of ``old`` stay, bool [N]: those whose ids are not replaced or deleted.

    ``said`` gets the counts. Raises InputError for ids of which the index has none, or if no text would stay.
    """
    kept, path = np.ones(old.manifest.texts, dtype=bool), Path(config.delete or config.input_file)
    if not (config.update or config.delete):
        return kept
    named = _lines_of_ids(config, path, old.manifest.payload if config.update else ())
    total = len(named)
    for place, name in enumerate(chain.from_iterable(old.ids.chunks(CHUNK))):
        kept[place] = named.pop(name, None) is None
    found, left = total - len(named), int(kept.sum())
    if config.update:
        said.append(f"{found} replaced, {len(named)} added in {config.output_dir}")
        return kept
    if not total:
        raise InputError(f"{path} holds no id; give one on every line")
    name, line = next(iter(named.items()), ("", 0))
    more = f", nor are {len(named) - 1} more" if len(named) > 1 else ""
    absent = f"{path}:{line}: {shown(name)} is the id of no text in {config.output_dir}{more}"
    if not found:
        raise InputError(f"{absent}: nothing is deleted; name ids of the index")
    if not left:
        raise InputError(f"{path} names all {found} texts, and an index needs one; delete the folder itself")
    if named:
        logger.warning("%s", absent)
    said.append(f"{found} deleted, {left} left in {config.output_dir}")
    return kept


def _lines_of_ids(config: IndexConfig, path: Path, payload: Tuple[str, ...]) -> Dict[str, int]:
    """Return {id: its line} of a file; where it names no ids, texts to delete are named by its texts.

    Raises InputError for a bad line that is not left out, and for an id that occurs twice.
    """
    rules, columns = LineRules(place=config.place), config.text_columns._replace(payload=payload)
    columns = columns._replace(only_ids=bool(config.delete))
    named: Dict[str, int] = {}
    is_named = _has_ids(config, path, columns)
    if config.update and not is_named and path.is_file():
        raise InputError(f"{path} has no ids, by which --update replaces texts; give each text its id")
    left_out = LeftOut()
    skipped = left_out if config.on_bad_row == "skip" else None
    for row in read_texts(path, skipped, cure=BAD_LINE_CURE, rules=rules, columns=columns):
        name = row.id if is_named else row.text
        if name in named:
            raise InputError(f"{path}:{row.line}: repeats the id of line {named[name]}; give it once")
        named[name] = row.line
    if config.delete:  # those of an update are said when its texts are written
        _say_left_out(left_out)
    return named


def _say_left_out(left_out: LeftOut) -> None:
    if left_out.count:
        logger.warning("left out: %s, the first: %s", counted(left_out.count, "line"), left_out.first)


def _has_ids(config: IndexConfig, path: Path, columns: TextColumns) -> bool:
    """Return whether a file names its texts. Raises InputError, as for a column that the index keeps."""
    try:
        return path.is_file() and has_ids(path, LineRules(place=config.place), columns)
    except InputError as error:
        if not config.change or "--payload_columns" not in error.message:
            raise
        cure = f"{config.output_dir} keeps it with each text, so give it too"
        raise InputError(error.message.replace("fix --payload_columns", cure)) from None


def _write_vectors(
    draft: Path, config: IndexConfig, table: TextTable, kept: Optional[Kept], work: Path, said: List[str]
) -> Tuple[IndexManifest, Rows]:
    """Write faiss's index of the texts in ``table``, those ``kept`` first; return what it is, and of what."""
    old = None if kept is None else kept.old
    base, begin = (None, 0) if kept is None or config.upgrade_from else (kept, int(kept.rows.sum()))
    overlap = config.window_overlap if old is None else old.manifest.window_overlap
    vectors, rows = _open_vectors(config, draft, overlap, base, work)
    count, dim, threads = len(rows), vectors.dim, config.threads or cpu_threads()
    shape = config.shape if old is None else IndexShape(old.manifest.kind, old.manifest.precision)
    if config.upgrade_from and old is not None and shape.kind == "ivf":
        faiss_file, how = old.folder / INDEX_FILE, require_faiss().IO_FLAG_MMAP
        shape = replace(shape, lists=read_index(faiss_file, old.manifest.expected, how).nlist)
    check_memory(shape, count, dim)
    require_faiss().omp_set_num_threads(threads)
    if few := config.shape.few_for_lists(count):
        logger.warning("%s", few)
    chunks: Chunks = vectors
    with CountProgress(count - begin, "vector") as progress:
        if base is None:
            logger.info("building %s of %d vectors of %d", shape.words(count), count, dim)
            index = train_index(shape, count, dim, vectors)
        else:
            logger.info("%d vectors of %d stay, %d are added", begin, dim, count - begin)
            index = read_index(base.old.folder / INDEX_FILE, base.old.manifest.expected)
            keep_rows(index, base.rows)
            chunks = partial(_chunks_of, index, begin, vectors)
        for chunk in vectors():
            index.add(np.ascontiguousarray(chunk))
            progress.advance(len(chunk))
    write_index(index, draft / INDEX_FILE)
    del index
    manifest = IndexManifest(shape.kind, shape.precision, len(table), dim, **vectors.about)
    manifest = replace(manifest, window_overlap=overlap, windows=count if overlap else 0)
    made = VectorIndex(draft / INDEX_FILE, manifest.expected, threads)
    recall = measure_recall(made, chunks, count)
    checked, nearest = counted(min(PROBED, count), "text"), min(NEAREST, count)
    logger.info(
        "checked with %s: %.1f %% of the nearest %d of each are found", checked, 100 * recall, nearest
    )
    if config.upgrade_from and old is not None:
        said.append(_compare(old, made, rows, threads))
    return replace(manifest, recall_at_10=recall), rows


def _open_rows(draft: Path, kept: Optional[Kept], overlap: int, embedder: Optional[TextEmbedder]) -> Rows:
    """Return what has vectors: texts, or if ``overlap`` is not 0 their windows, which are written.

    Those ``kept`` come first; ``embedder`` None: no others are windows. Raises as `TextEmbedder.windows_of`.
    """
    table = TextTable(draft, TEXTS)
    if not overlap:
        return table
    parts, first = [np.zeros((0, 3), dtype=np.int64)], 0
    if kept is not None and kept.old.spans is not None:
        parts, first = [kept.old.spans[kept.rows]], int(kept.texts.sum())
        parts[0][:, 0] = (np.cumsum(kept.texts) - 1)[parts[0][:, 0]]
    for number, text in enumerate(chain.from_iterable(table.chunks(CHUNK, first)), start=first):
        assert embedder is not None
        parts.append(np.array([(number, *span) for span in embedder.windows_of(text, overlap)]))
    spans = np.concatenate(parts)
    np.save(draft / WINDOWS_FILE, spans)
    logger.info("%d windows of %d texts, which share %d tokens", len(spans), len(table), overlap)
    return WindowTable(table, spans)


def _compare(old: IndexFolder, made: VectorIndex, rows: Rows, threads: int) -> str:
    """Return in words how many of the NEAREST texts of PROBED ones are the same by both models."""
    count, before = old.manifest.texts, VectorIndex(old.folder / INDEX_FILE, old.manifest.expected, threads)
    old.check_current()
    picked, most = np.linspace(0, count - 1, min(PROBED, count)).astype(np.int64), min(NEAREST, count - 1)
    found = []
    for index, owners in ((before, old.rows.owners), (made, rows.owners)):
        near = index.neighbours(np.searchsorted(owners, picked), most)  # to the first window of each
        found.append(owners[near].tolist())
    same = np.mean([len({*a} & {*b}) / max(len({*a}), 1) for a, b in zip(*found)])
    return f"of the {most} nearest to each of {len(picked)} texts {100 * same:.1f} % are as in {old.folder}"


def _chunks_of(index: Any, begin: int, added: StoredVectors) -> Iterator[np.ndarray]:
    yield from stored_vectors(index, begin, CHUNK)
    yield from added()


def _open_vectors(
    config: IndexConfig, draft: Path, overlap: int, kept: Optional[Kept], work: Path
) -> Tuple[StoredVectors, Rows]:
    """Return the vectors of the rows that are not ``kept``, and all rows, see `_open_rows`.

    They are existing ones, or those that the model computes now, in ``work``. Raises NumbersError for vectors
    that are not finite or not of length 1, where those of the model are, InputError if ``kept`` is of
    another model.
    """
    old, begin = (None, 0) if kept is None else (kept.old, int(kept.rows.sum()))
    open_rows = partial(_open_rows, draft, kept, overlap)
    if config.delete and old is not None:  # none is added
        of_old = {name: getattr(old.manifest, name) for name in OF_A_MODEL}
        none = VectorFile(work, old.manifest.fingerprint, 0, old.manifest.dim, "float32", {})
        return StoredVectors(none, of_old, is_unit=True, is_rounded=False), open_rows(None)
    if config.vectors:
        stored = open_stored(
            Path(config.vectors), Path(config.input_file), len(open_rows(None)) - begin, config.read_as
        )
        if old is not None:
            old.check_same_vectors(stored.about, config.vectors)
        return stored, open_rows(None)
    threads = config.threads or cpu_threads()
    same = {name: getattr(config, name) for name in ("dim", "batch_size", "batch_tokens")}
    options = EmbedderOptions(threads=threads, **same)
    kernels = KernelFlags(precision=config.embedding_precision)
    opened_by = (config.embedding_model, config.device, options, kernels)
    embedder = open_embedder(*opened_by)
    if old is not None:
        embedder = old.fit_embedder(embedder)
    rows = open_rows(embedder)
    log_drift(embedder, next(rows.chunks(CHUNK, begin), []), *opened_by)
    settings, prompt = embedder.settings, embedder.settings.prompt_of("passage")
    settings.check_search(config.embedding_model)
    count, dim = len(rows) - begin, embedder.dim
    check_memory(config.shape, count, dim)
    if prompt:
        logger.info("before each text: %s", shown(prompt))
    of_model = (embedder.fingerprint, embedder.max_seq_len, settings.similarity, prompt)
    about: Dict[str, Any] = dict(zip(OF_A_MODEL, of_model))
    if old is not None:
        old.check_same_vectors(about, config.embedding_model)
    of_texts = hashlib.sha256()  # of them and not of their file, which can be read in several ways
    for chunk in rows.chunks(CHUNK, begin):
        of_texts.update(json.dumps(chunk).encode())
    key = {**about, "texts": of_texts.hexdigest(), "embedding_precision": config.embedding_precision}
    writer = VectorWriter(work, count, dim, "float32", CHUNK, key)
    _embed_rest(embedder, rows.chunks(CHUNK, begin), writer)
    made = VectorFile(work, embedder.fingerprint, count, dim, writer.dtype, {})
    return StoredVectors(made, about, settings.has_unit_products, is_rounded=False), rows


def _embed_rest(embedder: TextEmbedder, chunks: Iterator[List[str]], writer: VectorWriter) -> None:
    """Write the vectors of those ``chunks`` of CHUNK texts that are not done yet."""
    count, reused = writer.count, min(writer.done * CHUNK, writer.count)
    with CountProgress(count - reused, "text") as progress:
        for texts in islice(chunks, writer.done, None):
            vectors = embedder.comparable(embedder.embed_passages(texts))
            is_unit = embedder.settings.has_unit_products
            check_vectors(vectors, "the embedding model", writer.done * CHUNK, is_unit)
            writer.append(pack_vectors(vectors, writer.dtype))
            progress.advance(len(texts))
    if reused:
        logger.info("reused %d of %d vectors, of a run that did not finish", reused, count)
    if embedder.num_cut:
        logger.warning("%s", describe_cut(embedder, count))


def _write_texts(
    config: IndexConfig,
    draft: Path,
    left_out: LeftOut,
    kept: Optional[Kept],
    payload: Tuple[str, ...],
    stamps: Dict[Path, Tuple[int, int]],
) -> None:
    """Write the tables of texts, ids and ``payload``, those ``kept`` first; ids that are numbers go on.

    Raises InputError for a bad line that is not left out, an id that occurs twice, and a file without texts
    or that has another of ``stamps`` by now.
    """
    path, lines, first_id = Path(config.input_file), array("q"), 0
    rules, columns = LineRules(place=config.place), config.text_columns._replace(payload=payload)
    is_named = _has_ids(config, path, columns)
    left_out_lines = left_out if config.on_bad_row == "skip" else None
    names = [TEXTS, IDS, *([PAYLOAD] if payload else [])]
    with Progress(files_of(config.input_file), 0) as progress, ExitStack() as stack:
        tables = [stack.enter_context(TextTableWriter(draft, name)) for name in names]
        if kept is not None:
            old = kept.old
            named = (name for chunk in old.ids.chunks(CHUNK) for name in chunk)
            largest = max((int(name) for name in named if name.isdecimal() and len(name) < 19), default=-1)
            first_id = max(old.manifest.texts + old.manifest.lines_left_out, largest + 1)
            lines.extend([0] * int(kept.texts.sum()))
            for table, before in zip(tables, filter(None, (old.texts, old.ids, old.payload))):
                for text in compress(chain.from_iterable(before.chunks(CHUNK)), kept.texts):
                    table.append(text)
        if not config.input_file:
            return
        for row in read_texts(path, left_out_lines, progress.read, BAD_LINE_CURE, rules, columns):
            name = row.id if is_named else str(first_id + int(row.id))
            for table, text in zip(tables, (row.text, name, json.dumps(row.payload, ensure_ascii=False))):
                table.append(text)
            lines.append(row.line)
    for file, stamp in stamps.items():
        check_unchanged(file, stamp)
    numbers = np.array(lines, dtype=np.int64)
    if not numbers.any():
        raise InputError(
            f"{path} holds no text, so there is nothing to index; give a file with one text per line"
        )
    own_ids = (name for chunk in TextTable(draft, IDS).chunks(CHUNK) for name in chunk)
    check_unique_ids(path, own_ids, numbers)


def measure_recall(index: VectorIndex, vectors: Chunks, count: int) -> float:
    """Return the share of the NEAREST vectors of PROBED ones that ``index`` finds; each finds itself.

    Similarities are compared, so that one of several equal texts is as good as another.
    """
    picked = np.linspace(0, count - 1, min(PROBED, count)).astype(np.int64)
    first, probes = 0, []
    for chunk in vectors():
        probes.append(chunk[picked[(picked >= first) & (picked < first + len(chunk))] - first])
        first += len(chunk)
    queries, wanted = np.concatenate(probes), min(NEAREST, count)
    best = np.full((len(queries), wanted), -np.inf, dtype=np.float32)
    places = index.nearest(queries, wanted)[1]
    found = np.full(places.shape, -np.inf, dtype=np.float32)
    first = 0
    for chunk in vectors():
        cosines = queries @ chunk.T
        best = -np.sort(-np.concatenate([best, cosines], axis=1), axis=1)[:, :wanted]
        here = (places >= first) & (places < first + len(chunk))
        rows, columns = np.nonzero(here)
        found[rows, columns] = cosines[rows, places[rows, columns] - first]
        first += len(chunk)
    return float((found >= best[:, -1:] - 1e-6).mean())
