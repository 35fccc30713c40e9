"""The vectors of a file of texts, in bounded memory, by this process or by the tasks of Ray."""

import contextlib
import hashlib
import json
import logging
import os
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from data_tools.files.arrays import HEADER_BYTES, npy_header, sha256_of_file
from data_tools.files.atomic_files import make_folder
from data_tools.files.atomic_folder import MADE, publish_folder, refuse_loss
from data_tools.files.errors import InputError, MachineError
from data_tools.files.file_lock import locked
from data_tools.files.json_file import shown
from data_tools.files.progress import CountProgress
from data_tools.files.results import Results, files_of, settings_of
from data_tools.options.standard_streams import as_asked, with_standard_streams
from data_tools.text.text_files import LineRules, NamedText, has_ids, read_texts, refuse_repeated_ids
from ernie_pair.checkpoint.manifest import sha256_of
from ernie_pair.checkpoint.run_config import CONFIG_YAML, with_config
from ernie_pair.embedding.embed_config import EmbedConfig
from ernie_pair.embedding.open_embedder import open_embedder
from ernie_pair.inference.embedder import TextEmbedder, describe_cut
from ernie_pair.inference.ray_flags import RayModel
from ernie_pair.inference.vector_files import (
    DTYPES,
    SCALE_DTYPE,
    SCALES_FILE,
    VECTORS_FILE,
    VECTORS_FORMAT,
    VECTORS_JSON,
    Packed,
    pack_vectors,
)
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.embedding_json import SIMILARITIES
from ernie_pair.models.source import files_of_model, model_folder_of
from ernie_pair.pair.data.pair_file import refuse_changed, stamp_of
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World

LOCK, PIECES, ENDING = "lock", "pieces.txt", ".part"
OURS = {LOCK, PIECES, VECTORS_FILE, SCALES_FILE}


@dataclass(frozen=True)
class VectorShape:
    """What is to be written: ``count`` vectors of ``dim`` numbers, in pieces of ``piece`` rows."""

    count: int
    dim: int
    dtype: str
    piece: int

    @property
    def arrays(self) -> Dict[str, Tuple[np.dtype, Tuple[int, ...]]]:
        """Return {file: (type, shape)}."""
        found: Dict[str, Tuple[np.dtype, Tuple[int, ...]]] = {
            VECTORS_FILE: (DTYPES[self.dtype], (self.count, self.dim))
        }
        return {**found, SCALES_FILE: (SCALE_DTYPE, (self.count,))} if self.dtype == "int8" else found

    @property
    def num_pieces(self) -> int:
        """Return how many pieces there are, the last of which may be shorter."""
        return -(-self.count // self.piece)

    def rows_of(self, number: int) -> int:
        """Return how many rows piece ``number`` has."""
        return min(self.piece, self.count - number * self.piece)

    def row_bytes(self, name: str) -> int:
        """Return the bytes of a row of the file ``name``."""
        dtype, shape = self.arrays[name]
        return dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))


class VectorWriter:
    """Writes what ``shape`` says into ``folder``; ``done`` pieces are there already, of the same ``key``."""

    def __init__(self, folder: Path, shape: VectorShape, key: Dict[str, object]):
        self.folder, self.shape = folder, shape
        self._key = hashlib.sha256(json.dumps([key, asdict(shape)], sort_keys=True).encode()).hexdigest()
        self.done = self._find_done()
        self._cut()

    def append(self, packed: Packed) -> None:
        """Write the next piece, and then the line by which it counts. Raises OSError."""
        assert len(packed.rows) == self.shape.rows_of(self.done)
        arrays = {VECTORS_FILE: packed.rows, SCALES_FILE: packed.scales}
        content = {
            name: np.ascontiguousarray(arrays[name], dtype=dtype).tobytes()
            for name, (dtype, _) in self.shape.arrays.items()
        }
        content[PIECES] = f"{sha256_of(*content.values())}\n".encode()
        for name, data in content.items():
            self._write(name, data)
        self.done += 1

    def _write(self, name: str, data: bytes) -> None:
        with open(self.folder / name, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _find_done(self) -> int:
        """Return how many pieces of the same key are whole on the disk."""
        path = self.folder / PIECES
        if not path.is_file():
            return 0
        key, *hashes = path.read_bytes().decode("ascii", "replace").split("\n")
        if key != self._key:
            return 0
        done = 0
        for wanted in hashes[: self.shape.num_pieces]:
            content = self._read(done)
            if content is None or sha256_of(*content) != wanted:
                break
            done += 1
        return done

    def _read(self, number: int) -> Optional[List[bytes]]:
        found = []
        for name in self.shape.arrays:
            size = self.shape.row_bytes(name)
            with contextlib.suppress(FileNotFoundError), open(self.folder / name, "rb") as file:
                file.seek(HEADER_BYTES + number * self.shape.piece * size)
                found.append(file.read(self.shape.rows_of(number) * size))
        return found if len(found) == len(self.shape.arrays) else None

    def _cut(self) -> None:
        """Leave the headers and what is done; begin the files that are not there."""
        kept = self.done * self.shape.piece
        lines = [self._key]
        if self.done:
            lines = (self.folder / PIECES).read_text(encoding="ascii").split("\n")[: self.done + 1]
        for name, (dtype, shape) in self.shape.arrays.items():
            with open(self.folder / name, "r+b" if self.done else "wb") as file:
                file.write(npy_header(dtype, *shape))
                file.truncate(HEADER_BYTES + min(kept, self.shape.count) * self.shape.row_bytes(name))
        (self.folder / PIECES).write_text("".join(f"{line}\n" for line in lines), encoding="ascii")

    def publish_into(self, draft: Path) -> None:
        """Put the finished files into ``draft``, and leave them here too, until the folder is removed."""
        assert self.done == self.shape.num_pieces
        for name in self.shape.arrays:
            try:
                os.link(self.folder / name, draft / name)
            except OSError:  # a file system without them
                shutil.copyfile(self.folder / name, draft / name)


@contextmanager
def part_folder(output_dir: Path) -> Iterator[Path]:
    """Hold the folder in which the vectors of ``output_dir`` come to be; it is gone after a clean end.

    Raises MachineError when another process holds it, or when it holds what no run put there.
    """
    folder = output_dir.with_name(output_dir.name + ENDING)
    make_folder(folder)
    strange = sorted(path.name for path in folder.iterdir() if path.name not in OURS or path.is_symlink())
    if strange:
        raise MachineError(
            f"{folder} holds {strange[0]}, which no run made there; rename the folder, or choose another "
            "--output_dir"
        )
    busy = f"{folder}: another run is writing these vectors; let it end, then run again"
    with locked(folder / LOCK, seconds=0, refusal=busy):
        yield folder
        for name in OURS:
            (folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()


PIECE = 4096  # texts that are sorted by length together; decides the last bits of the vectors
PLACES = ("model_path", "input_file", "output_dir", "workers", "ray_address", "engine", "device")

logger = logging.getLogger(__name__)


@with_standard_streams
def embed(config: EmbedConfig) -> None:
    """Write the vectors of ``input_file`` into ``output_dir``, or go on with what a killed run has left.

    Raises InputError for bad texts or what would be lost, MachineError when the disk or Ray refuses.
    """
    start_console(World())
    if not Path(config.model_path).is_dir():
        raise InputError(f"--model_path {config.model_path} is not a folder; give that of an embedding model")
    config = replace(config, model_path=str(model_folder_of(Path(config.model_path)).absolute()))
    output_dir, text_file = Path(os.path.realpath(config.output_dir)), Path(config.input_file)
    refuse_loss(output_dir, (VECTORS_FILE, SCALES_FILE, VECTORS_JSON, CONFIG_YAML))
    inputs: Dict[str, Sequence[Path]] = {
        "model_path": files_of_model(config.model_path),
        "input_file": files_of(config.input_file),
    }
    outputs = [VECTORS_FILE, VECTORS_JSON, *([SCALES_FILE] if config.dtype == "int8" else [])]
    results = Results(
        "embed",
        [output_dir / name for name in outputs],
        inputs,
        settings_of(config, *PLACES),
        config.overwrite,
        record=output_dir / MADE,
    )
    if results.are_done():
        return
    config.refuse_no_ray()
    count, sha256, stamp = _count_texts(config)
    embedder = open_embedder(*_opened_by(config))
    logger.info("%d texts by %s, fingerprint %s", count, embedder.backend, embedder.fingerprint[:12])
    if embedder.prompt:
        logger.info("before each text: %s", shown(embedder.prompt))
    shape = VectorShape(count, embedder.dim, config.dtype, PIECE)
    made_of = {"texts": sha256, "fingerprint": embedder.fingerprint, "backend": embedder.backend}
    with part_folder(output_dir) as folder:
        writer = VectorWriter(folder, shape, {**made_of, "settings": settings_of(config, *PLACES)})
        _write(config, embedder, writer)
        refuse_changed(text_file, stamp)
        about = _about(config, embedder, shape, sha256)
        publish_folder(
            output_dir,
            with_config(lambda draft: _fill(draft, writer, about), "embed", config),
            results.about_folder,
            may_be_lost=lambda there: config.overwrite,
        )
    if embedder.num_cut:  # of those that this process has seen
        logger.info("%s", describe_cut(embedder))
    logger.info("%d vectors of %d numbers, %s: %s", shape.count, shape.dim, shape.dtype, config.output_dir)


def _count_texts(config: EmbedConfig) -> Tuple[int, str, Tuple[int, int]]:
    """Read all texts once, before anything is computed; return how many, their hash and the file's stamp.

    Raises InputError for a line that is none.
    """
    path = Path(config.input_file)
    if not path.is_file():
        raise InputError(f"--input_file {path}: no such file; give a file with a text in each line")
    stamp = stamp_of(path)
    lines = np.fromiter((row.line for row in _rows_of(config)), dtype=np.int64)
    if not len(lines):
        raise InputError(f"{path} holds no text; give a file with a text in each line")
    if has_ids(path):  # an index of these vectors would refuse it
        refuse_repeated_ids(path, (row.id for row in _rows_of(config)), lines)
    return len(lines), sha256_of_file(path), stamp


def _rows_of(config: EmbedConfig) -> Iterator[NamedText]:
    rules = LineRules(encoding=config.encoding, has_flag=True)
    return read_texts(Path(config.input_file), rules=rules)


def _opened_by(config: EmbedConfig) -> Tuple[Any, ...]:
    return config.model_path, config.device, config.options, KernelFlags(config.kernels, config.precision)


def _write(config: EmbedConfig, embedder: TextEmbedder, writer: VectorWriter) -> None:
    """Write the pieces that are not done yet, in their order, by ``embedder`` or those of Ray's tasks."""
    ask = partial(_packed, dtype=config.dtype)
    maker: Callable[[List[str]], Packed] = partial(ask, embedder)
    if config.engine == "ray":
        opened_by, folder = _opened_by(config), config.model_path
        maker = RayModel(open_embedder, opened_by, folder, embedder.identity, ask)
    shape, done = writer.shape, min(writer.done * PIECE, writer.shape.count)
    if writer.done:
        logger.info("an earlier run has left %d of %d vectors: continuing", done, shape.count)
    texts = islice((row.text for row in _rows_of(config)), done, None)
    pieces = iter(lambda: list(islice(texts, PIECE)), [])
    with CountProgress(shape.count - done, "text") as progress:
        for packed in config.mapped(maker, pieces):
            writer.append(packed)
            progress.advance(len(packed.rows))


def _packed(embedder: TextEmbedder, texts: List[str], dtype: str) -> Packed:
    return pack_vectors(embedder.embed(texts), dtype)


def _about(config: EmbedConfig, embedder: TextEmbedder, shape: VectorShape, sha256: str) -> dict:
    beyond: Dict[str, object] = {} if embedder.settings.is_unit else {"unit": False}
    if embedder.settings.similarity != SIMILARITIES[0]:
        beyond["similarity"] = embedder.settings.similarity
    beyond.update({"prompt": embedder.prompt} if embedder.prompt else {})
    return {
        "format": VECTORS_FORMAT,
        "fingerprint": embedder.fingerprint,
        "count": shape.count,
        "dim": shape.dim,
        "dtype": shape.dtype,
        "model": Path(config.model_path).name,
        "max_seq_len": embedder.max_seq_len,
        "computed_by": embedder.backend,
        "texts": {"name": Path(as_asked(config.input_file)).name, "sha256": sha256},
        **beyond,
    }


def _fill(draft: Path, writer: VectorWriter, about: dict) -> None:
    writer.publish_into(draft)
    files = {name: sha256_of_file(draft / name) for name in writer.shape.arrays}
    content = json.dumps({**about, "files": files}, indent=2, ensure_ascii=False)
    (draft / VECTORS_JSON).write_text(content + "\n", encoding="utf-8")
