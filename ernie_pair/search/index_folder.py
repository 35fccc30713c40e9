"""The folder of an index: written by `ernie-pair index`, read by all searches.

index.faiss                       the vectors, see `faiss_index`
texts.utf8, texts.offsets.npy     the texts, see `text_table`; row i is vector i
ids.utf8, ids.offsets.npy         their ids
index.json                        what they were made with, and the hash of each file:

    {"format": 1, "kind": "flat", "precision": "fp32", "texts": 100000, "dim": 312, "fingerprint": ...,
     "max_seq_len": 64, "recall_at_10": 1.0, "files": {"index.faiss": SHA-256, ...}, ...}

Of a model that has them also "similarity": "dot" and "prompt": "passage: ", put before each text.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict

from data_tools.base.errors import CheckpointError, InputError
from data_tools.files.json_file import is_number, is_texts, is_whole_number, read_json_object
from data_tools.files.npy_stream import sha256_of_file
from ernie_pair.model_files.embedding_json import SEARCHED, SIMILARITIES
from ernie_pair.search.faiss_index import KINDS, PRECISIONS
from ernie_pair.search.text_table import CURE, TextTable, table_files

INDEX_MANIFEST, INDEX_FORMAT = "index.json", 1
INDEX_FILE, TEXTS, IDS = "index.faiss", "texts", "ids"
FILES = (INDEX_FILE, *table_files(TEXTS), *table_files(IDS))
WRITTEN = (*FILES, INDEX_MANIFEST)


@dataclass(frozen=True)
class IndexManifest:
    """The content of index.json."""

    kind: str
    precision: str
    texts: int
    dim: int
    fingerprint: str  # of the embedding model
    max_seq_len: int  # tokens of a text that it read
    recall_at_10: float  # share of the ten nearest that the index finds
    similarity: str = SIMILARITIES[0]  # of its vectors: their cosine, or the product of what they are
    prompt: str = ""  # that the texts were read with

    def write(self, folder: Path, **more: object) -> None:
        """Write index.json beside the other files, with further values ``more``."""
        files = {name: sha256_of_file(folder / name) for name in FILES}
        said = {name: value for name, value in vars(self).items() if value not in (SIMILARITIES[0], "")}
        content = {"format": INDEX_FORMAT, **said, **more, "files": files}
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (folder / INDEX_MANIFEST).write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class IndexFolder:
    """An index on disk, its files as written."""

    folder: Path
    manifest: IndexManifest
    texts: TextTable
    ids: TextTable

    def refuse_breadth(self, breadth: int) -> None:
        """Raise InputError if ``breadth`` would have no effect; 0 leaves it to the index."""
        if breadth and self.manifest.kind == "flat":
            raise InputError(
                f"--breadth {breadth}: {self.folder} is a flat index, which compares all vectors; leave "
                "the flag out"
            )


def open_index_folder(folder: Path) -> IndexFolder:
    """Open an index, and check all of its files by their hashes.

    Raises InputError when ``folder`` is not an index, CheckpointError when it is damaged.
    """
    if not folder.is_dir():
        raise InputError(f"--index {folder} is not a folder; give the --output_dir of ernie-pair index")
    path = folder / INDEX_MANIFEST
    if not path.is_file():
        raise InputError(f"--index {folder} holds no {INDEX_MANIFEST}; make an index with ernie-pair index")
    found = read_json_object(path, CURE, CheckpointError)
    if found.get("format") != INDEX_FORMAT:
        raise CheckpointError(f"{path}: format {found.get('format')!r}, not {INDEX_FORMAT}; {CURE}")
    manifest = _manifest_of(path, found)
    for name in FILES:
        file = folder / name
        if not file.is_file() or sha256_of_file(file) != found["files"].get(name):
            raise CheckpointError(f"{file} is not the file that was written; {CURE}")
    texts, ids = TextTable(folder, TEXTS), TextTable(folder, IDS)
    if not len(texts) == len(ids) == manifest.texts:
        raise CheckpointError(f"{path}: {manifest.texts} texts, and {len(texts)} are there; {CURE}")
    return IndexFolder(folder, manifest, texts, ids)


def _manifest_of(path: Path, found: Dict[str, Any]) -> IndexManifest:
    files = found.get("files")
    is_sound = {
        "kind": found.get("kind") in KINDS,
        "precision": found.get("precision") in PRECISIONS,
        "texts": is_whole_number(found.get("texts"), 1),
        "dim": is_whole_number(found.get("dim"), 1),
        "fingerprint": isinstance(found.get("fingerprint"), str),
        "max_seq_len": is_whole_number(found.get("max_seq_len"), 0),
        "recall_at_10": is_number(found.get("recall_at_10"), 0, 1),
        "files": isinstance(files, dict) and is_texts(list(files.values())),
        "similarity": found.get("similarity", SIMILARITIES[0]) in SEARCHED,
        "prompt": isinstance(found.get("prompt", ""), str),
    }
    for key, sound in is_sound.items():
        if not sound:
            raise CheckpointError(f"{path}: wrong or missing: {key}; {CURE}")
    return IndexManifest(
        **{name: found[name] for name in IndexManifest.__dataclass_fields__ if name in found}
    )
