"""The vectors of a file of texts, in bounded memory, by this process, by several, or by the tasks of Ray.

Of several processes each computes whole pieces, as one would, and the first writes those of all.
"""

import json
import logging
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import numpy as np

from data_tools.text.text_files import LineRules
from data_tools.text.texts import NamedText, check_unique_ids, has_ids, read_texts
from ernie_pair.checkpoint.run_config import CONFIG_YAML, publish_results
from ernie_pair.core.cli.options import paths_in
from ernie_pair.core.cli.standard_streams import original_value, with_standard_streams
from ernie_pair.core.errors import InputError, MachineError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.atomic_folder import MADE, check_replaceable
from ernie_pair.core.files.json_file import shown, write_json
from ernie_pair.core.files.results import Results, files_of, settings_of
from ernie_pair.core.process_pool import ReadAhead
from ernie_pair.core.progress import CountProgress
from ernie_pair.embeddings.embed_config import EmbedConfig
from ernie_pair.embeddings.open_embedder import log_drift, open_embedder
from ernie_pair.inference.embedder import TextEmbedder, describe_cut
from ernie_pair.inference.vector_files import (
    SCALES_FILE,
    VECTORS_FILE,
    VECTORS_FORMAT,
    VECTORS_JSON,
    VectorFile,
    VectorWriter,
    open_vectors,
    pack_vectors,
    part_folder,
)
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.embedding_json import SIMILARITIES
from ernie_pair.models.model_folder import list_model_files, with_model_folder
from ernie_pair.pairs.data.pair_source import check_unchanged, file_stamp
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import AllReduce, World, gather_texts, launched_world

PARQUET = "vectors.parquet"
PIECE = 4096  # texts that are sorted by length together; decides the last bits of the vectors

logger = logging.getLogger(__name__)


@with_standard_streams
def embed(config: EmbedConfig) -> None:
    """Write the vectors of ``input_file`` into ``output_dir``, or go on with what a killed run has left.

    Raises InputError for bad texts or what would be lost, MachineError when the disk or Ray refuses.
    """
    world = launched_world()
    start_console(world)
    config = _with_folder(config)
    output_dir, text_file = Path(os.path.realpath(config.output_dir)), Path(config.input_file)
    check_replaceable(output_dir, (VECTORS_FILE, SCALES_FILE, VECTORS_JSON, PARQUET, CONFIG_YAML))
    inputs: Dict[str, Sequence[Path]] = {
        "model_path": list_model_files(config.model_path),
        "input_file": files_of(config.input_file),
    }
    more = {SCALES_FILE: config.dtype == "int8", PARQUET: config.format == "parquet"}
    names = [VECTORS_FILE, VECTORS_JSON, *(name for name, is_asked in more.items() if is_asked)]
    outputs, settings = [output_dir / name for name in names], settings_of(config, *paths_in(config))
    results = Results("embed", outputs, inputs, settings, config.overwrite, record=output_dir / MADE)
    if results.are_done():
        return
    config.check_ray()
    count, sha256, stamp = _count_texts(config)
    embedder = open_embedder(*_opened_by(config))
    logger.info("%d texts by %s, fingerprint %s", count, embedder.backend, embedder.fingerprint[:12])
    if embedder.prompt:
        logger.info("before each text: %s", shown(embedder.prompt))
    log_drift(embedder, [row.text for row in islice(_rows_of(config), PIECE)], *_opened_by(config))
    made_of = {"texts": sha256, "fingerprint": embedder.fingerprint, "backend": embedder.backend}
    key: Dict[str, object] = {**made_of, "settings": settings, "batch_tokens": config.batch_tokens}
    share = Share(world, _join(config, world), key, stamp, count)
    if not world.is_first:
        deque(_pieces(config, embedder, np.asarray, share), maxlen=0)
        return
    part = output_dir.with_name(f"{output_dir.name}.part")
    busy = f"{part}: another run is writing these vectors; let it end, then run again"
    with part_folder(part, busy) as folder:
        writer = VectorWriter(folder, count, embedder.dim, config.dtype, PIECE, key)
        _write(config, embedder, writer, share)
        check_unchanged(text_file, stamp)
        about = _about(config, embedder, writer, sha256)
        fill = partial(_fill, writer=writer, about=about, config=config, stamp=stamp)
        publish_results(output_dir, fill, "embed", config, results)
    if embedder.num_cut:  # of those that this process has seen
        logger.info("%s", describe_cut(embedder))
    logger.info("%d vectors of %d numbers, %s: %s", count, writer.dim, writer.dtype, config.output_dir)


@with_standard_streams
def vectors_of_file(config: EmbedConfig) -> np.ndarray:
    """Return the vectors of the texts of ``input_file``, float32 [N, D]; write nothing. Raises as `embed`."""
    start_console(World())
    config = _with_folder(config)
    config.check_ray()
    count, _, stamp = _count_texts(config)
    embedder = open_embedder(*_opened_by(config))
    share = Share(World(), np.asarray, {}, stamp, count)
    return np.concatenate(list(_pieces(config, embedder, np.asarray, share)))


@dataclass(frozen=True)
class Share:
    """What this process of a ``world`` does of ``count`` texts, for the vectors of ``key``.

    ``stamp``: that of the texts; ``done``: how many pieces the first process has found on the disk.
    """

    world: World
    all_reduce: AllReduce
    key: Dict[str, object]
    stamp: Tuple[int, int]
    count: int
    done: int = 0

    def agreed(self) -> "Share":
        """Return it with what the first process has found. Raises MachineError for another model or texts."""
        own = json.dumps([self.key, self.done], sort_keys=True)
        told = [json.loads(text) for text in gather_texts(self.all_reduce, self.world, own)]
        for rank, (key, _) in enumerate(told):
            if key != told[0][0]:
                unlike = ", ".join(name for name in key if key[name] != told[0][0][name])
                raise MachineError(
                    f"rank {rank} has not the {unlike} of rank 0; give all processes the same files, and "
                    "--kernels plain on unlike machines"
                )
        return replace(self, done=told[0][1])

    def in_turn(self, own: Iterator[np.ndarray], dim: int, check: Callable[[], None]) -> Iterator[np.ndarray]:
        """Yield the vectors of all pieces that are not done, float32 [rows, dim]; ``own``: those of this one.

        ``check`` raises for texts that have changed.
        """
        starts = range(self.done * PIECE, self.count, PIECE)
        sizes, rank = [min(PIECE, self.count - start) for start in starts], self.world.rank
        for first in range(0, len(sizes), self.world.size):
            rows = sizes[first : first + self.world.size]
            ends = np.cumsum(rows)
            found = np.zeros((ends[-1], dim), dtype=np.float32)
            if rank < len(rows):
                computed = next(own, None)
                check()
                found[ends[rank] - rows[rank] : ends[rank]] = computed
            # As whole numbers, whose sum with zeros has the same bits: -0 + 0 is 0.
            found = self.all_reduce(found.view(np.int32)).view(np.float32)
            yield from np.split(found, ends[:-1])


def _join(config: EmbedConfig, world: World) -> AllReduce:
    """Return the sum over the processes of the run, which meet here."""
    if world.size == 1:
        return np.asarray
    from ernie_pair.training.process_group import join_process_group  # which loads Paddle

    start_device(config.device, world)
    return join_process_group(world).all_reduce


def _with_folder(config: EmbedConfig) -> EmbedConfig:
    """Return the flags with the folder of the model itself. Raises InputError if there is none."""
    config = with_model_folder(config, "give that of an embedding model")
    there = Path(config.model_path)
    return config if there.is_absolute() else replace(config, model_path=str(there.absolute()))


def _count_texts(config: EmbedConfig) -> Tuple[int, str, Tuple[int, int]]:
    """Read all texts; return their number, hash and the file's stamp. Raises InputError for a bad line."""
    path = Path(config.input_file)
    if not path.is_file():
        raise InputError(f"--input_file {path}: no such file; give a file with a text in each line")
    stamp = file_stamp(path)
    lines = np.fromiter((row.line for row in _rows_of(config)), dtype=np.int64)
    if not len(lines):
        raise InputError(f"{path} holds no text; give a file with a text in each line")
    if has_ids(path, _rules_of(config), config.text_columns):  # an index of these vectors would refuse it
        check_unique_ids(path, (row.id for row in _rows_of(config)), lines)
    return len(lines), sha256_of_file(path), stamp


def _rows_of(config: EmbedConfig) -> Iterator[NamedText]:
    columns = config.text_columns._replace(payload=config.payload)
    return read_texts(Path(config.input_file), rules=_rules_of(config), columns=columns)


def _rules_of(config: EmbedConfig) -> LineRules:
    return LineRules(encoding=config.encoding, has_flag=True, place=config.place)


def _opened_by(config: EmbedConfig) -> Tuple[Any, ...]:
    return (
        config.model_path,
        config.device,
        config.options,
        KernelFlags(kernels=config.kernels, precision=config.precision),
    )


def _write(config: EmbedConfig, embedder: TextEmbedder, writer: VectorWriter, share: Share) -> None:
    """Write the pieces that are not done yet, in their order, whoever computes them."""
    count, done = writer.count, min(writer.done * PIECE, writer.count)
    if writer.done:
        logger.info("an earlier run has left %d of %d vectors: continuing", done, count)
    with CountProgress(count - done, "text") as progress, ThreadPoolExecutor(1) as pool:
        before: Future = pool.submit(int)  # behind a piece that is not written none may be
        share, pack = replace(share, done=writer.done), partial(pack_vectors, dtype=config.dtype)
        for packed in _pieces(config, embedder, pack, share):
            before.result()
            before = pool.submit(writer.append, packed)
            progress.advance(len(packed[VECTORS_FILE]))
        before.result()


def _pieces(config: EmbedConfig, embedder: TextEmbedder, make: Callable, share: Share) -> Iterator[Any]:
    """Yield what ``make`` makes of the vectors of each piece of the texts that is not done.

    Here a thread reads and encodes the next piece while one is computed.
    """
    share = share.agreed()
    check = partial(check_unchanged, Path(config.input_file), share.stamp)
    texts = islice((row.text for row in _rows_of(config)), share.done * PIECE, None)
    pieces = iter(lambda: list(islice(texts, PIECE)), [])
    if config.engine == "ray":
        for made in config.mapped(partial(_ask, embedder, make), pieces):
            check()
            yield made
        return
    with ReadAhead(islice(pieces, share.world.rank, None, share.world.size), embedder.encode) as encoded:
        yield from map(make, share.in_turn(map(embedder.vectors_of, encoded), embedder.dim, check))


def _ask(embedder: TextEmbedder, make: Callable, texts: List[str]) -> Any:
    return make(embedder.embed(texts))


def _about(config: EmbedConfig, embedder: TextEmbedder, writer: VectorWriter, sha256: str) -> dict:
    settings, name = embedder.settings, Path(original_value(config.input_file)).name
    texts = {"name": name, "sha256": sha256, **config.read_as}
    return {
        "format": VECTORS_FORMAT,
        "fingerprint": embedder.fingerprint,
        "count": writer.count,
        "dim": writer.dim,
        "dtype": writer.dtype,
        "model": Path(original_value(config.model_path)).name,
        "max_seq_len": embedder.max_seq_len,
        "computed_by": embedder.backend,
        "texts": texts,
        **({} if settings.is_unit else {"unit": False}),
        **({} if settings.similarity == SIMILARITIES[0] else {"similarity": settings.similarity}),
        **({"prompt": embedder.prompt} if embedder.prompt else {}),
    }


def _fill(draft: Path, writer: VectorWriter, about: dict, config: EmbedConfig, stamp: Any) -> None:
    writer.publish_into(draft)
    files = {name: sha256_of_file(draft / name) for name in writer.arrays}
    write_json(draft / VECTORS_JSON, {**about, "files": files})
    if config.format == "parquet":
        _write_parquet(draft / PARQUET, config, open_vectors(draft))
        check_unchanged(Path(config.input_file), stamp)  # it was read once more


def _write_parquet(path: Path, config: EmbedConfig, vectors: VectorFile) -> None:
    """Write the texts as rows: id, text, the columns of the payload, and vector, float32 [D]."""
    import pyarrow
    from pyarrow import parquet

    kinds: Dict[str, Any] = dict.fromkeys(["id", "text", *config.payload], pyarrow.string())
    kinds["vector"] = pyarrow.list_(pyarrow.float32(), vectors.dim)
    schema, rows = pyarrow.schema(kinds), _rows_of(config)
    with parquet.ParquetWriter(path, schema) as file:
        for first in range(0, vectors.count, PIECE):
            part = list(islice(rows, min(PIECE, vectors.count - first)))
            numbers = vectors.rows(first, first + len(part)).ravel()
            columns: Dict[str, Any] = {"id": [row.id for row in part], "text": [row.text for row in part]}
            columns["vector"] = pyarrow.FixedSizeListArray.from_arrays(numbers, vectors.dim)
            columns.update({name: [row.payload.get(name) for row in part] for name in config.payload})
            file.write_table(pyarrow.table(columns, schema))
