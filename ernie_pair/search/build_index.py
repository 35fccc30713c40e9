"""ernie-pair index: build an index of the texts of a file, for search by meaning.

All lines are checked before the model runs. Vectors are kept chunk by chunk beside the folder, so that a run
after a killed one reuses them; the folder appears when it is complete.
"""

import logging
import os
from array import array
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Dict, List, Literal, Optional, Sequence

import numpy as np

from data_tools.files.arrays import sha256_of_file
from data_tools.files.atomic_folder import MADE, content_of, publish_folder, refuse_loss
from data_tools.files.errors import InputError, counted
from data_tools.files.json_file import shown
from data_tools.files.keyed_cache import remove_arrays
from data_tools.files.progress import CountProgress, Progress
from data_tools.files.results import Results, files_of, settings_of
from data_tools.options.options import Options, option, refuse_empty
from data_tools.options.standard_streams import with_standard_streams
from data_tools.text.text_files import LeftOut, read_texts, refuse_repeated_ids
from ernie_pair.checkpoint.run_config import CONFIG_YAML, with_config
from ernie_pair.embedding.open_embedder import open_embedder
from ernie_pair.inference.embedder import EmbedderOptions, describe_cut
from ernie_pair.inference.exported_model import EXPORT_MANIFEST
from ernie_pair.inference.vector_files import (
    VectorFile,
    VectorShape,
    VectorWriter,
    pack_vectors,
    part_folder,
)
from ernie_pair.models.embedding_json import read_embedding
from ernie_pair.runtime.cpu_env import cpu_threads
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World
from ernie_pair.search.index import (
    Chunks,
    IndexShape,
    VectorIndex,
    build_index,
    refuse_little_memory,
    require_faiss,
    write_index,
)
from ernie_pair.search.index_folder import (
    IDS,
    INDEX_FILE,
    INDEX_MANIFEST,
    TEXTS,
    WRITTEN,
    IndexManifest,
    TextTable,
    TextTableWriter,
)
from ernie_pair.search.stored_vectors import CHUNK, StoredVectors, open_stored, refuse_bad_vectors

PROBED, NEAREST = 100, 10  # vectors searched for when the index is built, and how many neighbours of each
BAD_LINE_CURE = "fix the line, or pass --on_bad_row skip"
THREADS_HELP = "threads of one forward pass and of faiss; 0: the number of cores of this process"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexConfig(Options):
    """Build an index in which `ernie-pair search` finds the texts that match a query."""

    EXAMPLE = "--input_file faq.tsv --embedding_model embedder --output_dir faq.index"

    input_file: str = option(
        help="one text per line; .tsv: id TAB text; .jsonl: id and text; also compressed as .gz or .zst",
        group="data",
        stdin=(".txt", ".jsonl"),
    )
    output_dir: str = option(help="folder to create", group="data")
    embedding_model: str = option(
        "", help="an embedding model, trained or exported: its folder", group="model"
    )
    vectors: str = option(
        "", help="instead of a model: the vectors that ernie-pair embed wrote for these texts", group="data"
    )
    kind: Literal["flat", "ivf", "hnsw"] = option(
        "flat", help="flat: exact; ivf: lists of near vectors; hnsw: a graph of near vectors", group="model"
    )
    dtype: Literal["fp32", "fp16", "int8"] = option(
        "fp32",
        help="type of the numbers in the index; fp16 takes half the memory, int8 a quarter",
        group="precision",
    )
    dim: int = option(
        0, help="length of the vectors, one of the model's lengths; 0: full length", group="model", at_least=0
    )
    lists: int = option(
        0,
        help="number of lists of ivf; 0: 4 x the square root of the number of texts",
        group="model",
        unit="lists",
        at_least=0,
    )
    links: int = option(
        32, help="links per text in hnsw", group="model", unit="links", at_least=2, at_most=512
    )
    ef_construction: int = option(
        80, help="candidates for the links of hnsw", group="model", unit="texts", at_least=1
    )
    batch_size: int = option(64, help="texts in one forward pass", group="devices", unit="texts", at_least=1)
    device: Literal["cpu", "gpu"] = option("cpu", help="where the embedding model runs", group="devices")
    threads: int = option(0, help=THREADS_HELP, group="devices", unit="threads", at_least=0)
    on_bad_row: Literal["stop", "skip"] = option(
        "stop", help="a line without text: stop and name the line, or skip it", group="data"
    )
    overwrite: bool = option(False, help="replace an existing index", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")
        if bool(self.embedding_model) == bool(self.vectors):
            raise InputError(
                "give either --embedding_model or --vectors: a model that makes the vectors, or their folder"
            )
        if self.vectors and self.dim:
            raise InputError(
                f"--dim {self.dim} needs --embedding_model; --vectors have the length they were made with"
            )
        for name, kind in (("lists", "ivf"), ("links", "hnsw"), ("ef_construction", "hnsw")):
            value, usual = getattr(self, name), type(self).__dataclass_fields__[name].default
            if value != usual and self.kind != kind:
                raise InputError(f"--{name} {value} is for --kind {kind}; leave it out, or use that kind")

    @property
    def shape(self) -> IndexShape:
        """Return the settings that the index is built with."""
        return IndexShape(self.kind, self.dtype, self.lists, self.links, self.ef_construction)


@with_standard_streams
def make_index(config: IndexConfig) -> Path:
    """Write ``output_dir``, entirely or not at all, and return it. Raises an ErniePairError."""
    start_console(World())
    require_faiss()
    output_dir = Path(os.path.realpath(config.output_dir))
    is_index = (output_dir / INDEX_MANIFEST).is_file()
    refuse_loss(output_dir, (*WRITTEN, CONFIG_YAML) if is_index else ())
    inputs: Dict[str, Sequence[Path]] = {
        "input_file": files_of(config.input_file),
        "embedding_model": files_of_model(config.embedding_model),
        "vectors": content_of(config.vectors),
    }
    outputs = [output_dir / name for name in WRITTEN]
    settings = settings_of(config, *inputs, "output_dir", "batch_size")
    results = Results("index", outputs, inputs, settings, config.overwrite, record=output_dir / MADE)
    if results.are_done():
        return Path(config.output_dir)
    work = output_dir.with_name(f".{output_dir.name}.vectors")
    remove_arrays(work, "vectors-")  # by which earlier versions kept them there
    (work / "run.lock").unlink(missing_ok=True)
    busy = f"{work}: another run makes this index; let it end, or stop it, then run again"
    with part_folder(work, busy):
        publish_folder(
            output_dir,
            with_config(partial(_fill, config=config, work=work), "index", config),
            results.about_folder,
            may_be_lost=lambda folder: config.overwrite,
        )
    logger.info("the index of %s is in %s", config.input_file, config.output_dir)
    return Path(config.output_dir)


def files_of_model(folder: str) -> List[Path]:
    """Return the files that determine the answers of a model, trained or exported; '': no model, no files."""
    settings = read_embedding(Path(folder)) if folder else None
    is_exported = (Path(folder) / EXPORT_MANIFEST).is_file() or bool(settings and settings.is_exported)
    if is_exported or not folder:
        return content_of(folder)
    from ernie_pair.models import source  # which needs the libraries for training

    return source.files_of_model(folder)


def _fill(draft: Path, config: IndexConfig, work: Path) -> None:
    left_out = LeftOut()
    count = _write_texts(Path(config.input_file), draft, left_out if config.on_bad_row == "skip" else None)
    if config.lists > count:  # faiss cannot find centres for them
        raise InputError(
            f"--lists {config.lists} is above the {count} texts of {config.input_file}; use "
            f"{replace(config.shape, lists=0).lists_for(count)}, or leave it out"
        )
    if left_out.count:
        logger.warning("left out: %s, the first: %s", counted(left_out.count, "line"), left_out.first)
    vectors = _vectors_of(config, TextTable(draft, TEXTS), work)
    kind, dim, threads = config.kind, vectors.dim, config.threads or cpu_threads()
    refuse_little_memory(config.shape, count, dim)
    few = config.shape.few_for_lists(count)
    if few:
        logger.warning("%s", few)
    logger.info("building %s of %d vectors of %d", config.shape.words(count), count, dim)
    with CountProgress(count, "vector") as progress:
        index = build_index(config.shape, count, dim, vectors, threads, progress.advance)
    write_index(index, draft / INDEX_FILE)
    del index
    recall = recall_of(VectorIndex(draft / INDEX_FILE, kind, count, dim, threads), vectors, count)
    checked, nearest = counted(min(PROBED, count), "text"), min(NEAREST, count)
    logger.info(
        "checked with %s: %.1f %% of the nearest %d of each are found", checked, 100 * recall, nearest
    )
    manifest = IndexManifest(kind, config.dtype, count, dim, recall_at_10=recall, **vectors.about)
    manifest.write(draft, lines_left_out=left_out.count)


def _vectors_of(config: IndexConfig, table: TextTable, work: Path) -> StoredVectors:
    """Return the vectors of the texts: existing ones, or those that the model computes now, in ``work``.

    Raises NumbersError for vectors that are not finite or not of length 1, where those of the model are.
    """
    if config.vectors:
        return open_stored(Path(config.vectors), Path(config.input_file), len(table))
    threads = config.threads or cpu_threads()
    options = EmbedderOptions(dim=config.dim, threads=threads, batch_size=config.batch_size)
    embedder = open_embedder(config.embedding_model, config.device, options)
    settings, prompt = embedder.settings, embedder.settings.prompt_of("passage")
    settings.refuse_search(config.embedding_model)
    shape = VectorShape(len(table), embedder.dim, "float32", CHUNK)
    refuse_little_memory(config.shape, shape.count, shape.dim)
    if prompt:
        logger.info("before each text: %s", shown(prompt))
    about = {
        "fingerprint": embedder.fingerprint,
        "max_seq_len": embedder.max_seq_len,
        "similarity": settings.similarity,
        "prompt": prompt,
    }
    texts_sha256 = sha256_of_file(Path(config.input_file))
    writer = VectorWriter(work, shape, {**about, "texts": texts_sha256, "on_bad_row": config.on_bad_row})
    reused, is_unit = min(writer.done * CHUNK, shape.count), settings.has_unit_products
    with CountProgress(shape.count - reused, "text") as progress:
        for texts in islice(table.chunks(CHUNK), writer.done, None):
            vectors = embedder.comparable(embedder.embed_passages(texts))
            refuse_bad_vectors(vectors, "the embedding model", writer.done * CHUNK, is_unit)
            writer.append(pack_vectors(vectors, shape.dtype))
            progress.advance(len(texts))
    if reused:
        logger.info("reused %d of %d vectors, of a run that did not finish", reused, shape.count)
    if embedder.num_cut:
        logger.warning("%s", describe_cut(embedder, shape.count))
    made = VectorFile(work, embedder.fingerprint, shape.count, shape.dim, shape.dtype, {})
    return StoredVectors(made, about, is_unit, is_rounded=False)


def _write_texts(path: Path, draft: Path, left_out: Optional[LeftOut]) -> int:
    """Write the tables of texts and ids, and return how many.

    Raises InputError for a bad line that is not left out, an id that occurs twice, and a file without texts.
    """
    lines = array("q")
    tables = TextTableWriter(draft, TEXTS), TextTableWriter(draft, IDS)
    with Progress(files_of(str(path)), 0) as progress, tables[0] as texts, tables[1] as ids:
        for row in read_texts(path, left_out, progress.read, BAD_LINE_CURE):
            texts.append(row.text)
            ids.append(row.id)
            lines.append(row.line)
    numbers = np.array(lines, dtype=np.int64)
    if not len(numbers):
        raise InputError(
            f"{path} holds no text, so there is nothing to index; give a file with one text per line"
        )
    names = (name for chunk in TextTable(draft, IDS).chunks(CHUNK) for name in chunk)
    refuse_repeated_ids(path, names, numbers)
    return len(numbers)


def recall_of(index: VectorIndex, vectors: Chunks, count: int) -> float:
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
