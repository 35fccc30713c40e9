"""The file embedding.json, which marks a model folder as an embedding model.

    {"format": 1, "pooling": "mean", "dim": 312, "dims": [64, 128, 312], "max_seq_len": 64,
     "temperature": 0.05}

``dims`` are the lengths to which a vector may be truncated, the last of them ``dim``, see Kusupati et al.
2022 (Matryoshka). An exported model also records its files, and the largest difference from the trained
model:

    {..., "model_sha256": "5f0c...", "files": {"model.onnx": SHA-256, ...}, "parity": {"onnx": 3.1e-07}}

One with int8 weights has model.int8.onnx instead of model.onnx and a model_sha256 of its own, so that its
vectors are not confused with those of the float model, and records their cosines with these:

    {..., "int8": {"texts": 24, "mean_cosine": 0.9991, "least_cosine": 0.9978}}
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from data_tools.base.errors import InputError
from data_tools.files.json_file import is_number, is_texts, is_whole_number, read_json_object
from data_tools.text.folder_tokenizer import FAST_TOKENIZER
from ernie_pair.inference.exported_model import INT8_FILES, ONNX_FILES
from ernie_pair.inference.token_rows import SHORTEST_TEXT
from ernie_pair.model_files.config_json import CONFIG, EMBEDDING, VOCAB
from ernie_pair.model_files.tokenizer_json import TOKENIZER

EMBEDDING_FORMAT = 1
EXPORTED = (*ONNX_FILES, *INT8_FILES, VOCAB, FAST_TOKENIZER, CONFIG, TOKENIZER)
POOLINGS = ("mean", "first_token")
LONGEST_TEXT = 1 << 20
CURE = "use the embedding.json of the folder that ernie-pair wrote, or train again"
Files = Dict[str, str]  # name: SHA-256


@dataclass(frozen=True)
class EmbeddingSettings:
    """The content of embedding.json; only an exported model has ``model_sha256`` and ``files``."""

    pooling: str
    dim: int
    dims: Tuple[int, ...]
    max_seq_len: int
    temperature: float
    model_sha256: str = ""
    files: Files = field(default_factory=dict)

    @property
    def is_exported(self) -> bool:
        """Return whether they belong to an exported model."""
        return bool(self.model_sha256)

    def chosen_dim(self, asked: int, where: str) -> int:
        """Return the length of a vector: ``asked``, or full length for 0. Raises InputError."""
        if asked and asked not in self.dims:
            known = ", ".join(map(str, self.dims))
            raise InputError(
                f"--dim {asked}: {where} was trained for vectors of length {known}; use one of these"
            )
        return asked or self.dim

    def to_json(self, **more: object) -> str:
        """Return the text of embedding.json, with further values ``more``."""
        said = {name: value for name, value in asdict(self).items() if value not in ("", {})}
        return json.dumps({"format": EMBEDDING_FORMAT, **said, **more}, indent=2, ensure_ascii=False) + "\n"


def read_embedding(folder: Path) -> Optional[EmbeddingSettings]:
    """Return the settings in ``folder``; None if it has no embedding.json.

    Raises InputError when the file is damaged, or of a later format.
    """
    path = folder / EMBEDDING
    if not path.exists():
        return None
    found = read_json_object(path, CURE)
    if found.get("format") != EMBEDDING_FORMAT:
        raise InputError(
            f"{path}: format is {found.get('format')!r}, not {EMBEDDING_FORMAT}; update ernie-pair"
        )
    return _checked(path, {key: found.get(key) for key in EmbeddingSettings.__dataclass_fields__})


def _checked(path: Path, found: Dict[str, Any]) -> EmbeddingSettings:
    found["model_sha256"], found["files"] = found["model_sha256"] or "", found["files"] or {}
    dim, dims, files = found["dim"], found["dims"], found["files"]
    is_sound = {
        "pooling": found["pooling"] in POOLINGS,
        "dim": is_whole_number(dim, 1, 10**5),
        "dims": isinstance(dims, list) and dims[-1:] == [dim] and _ascends(dims),
        "max_seq_len": is_whole_number(found["max_seq_len"], SHORTEST_TEXT, LONGEST_TEXT),
        "temperature": is_number(found["temperature"], 0) and found["temperature"] > 0,
        "model_sha256": isinstance(found["model_sha256"], str),
        "files": isinstance(files, dict) and set(files) <= set(EXPORTED) and is_texts(list(files.values())),
    }
    for key, sound in is_sound.items():
        if not sound:
            raise InputError(f"{path}: wrong or missing: {key}; {CURE}")
    return EmbeddingSettings(**{**found, "dims": tuple(dims)})


def _ascends(dims: list) -> bool:
    return all(is_whole_number(one, 1) for one in dims) and sorted(set(dims)) == dims


def fingerprint_of(model_sha256: str, settings: EmbeddingSettings, dim: int) -> str:
    """Return what identifies vectors, in hex: only vectors of the same fingerprint can be compared.

    ``model_sha256`` is the hash of the weights, the vocabulary and the sizes; ``dim`` the length in use. An
    exported model has the fingerprint of the model that it was made from: their outputs agree.
    """
    known_by = [EMBEDDING_FORMAT, model_sha256, settings.pooling, dim, settings.max_seq_len]
    return hashlib.sha256(json.dumps(known_by).encode()).hexdigest()
