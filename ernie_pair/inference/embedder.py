"""Texts as vectors, computed by a trained model on Paddle, or by an exported one without it.

`ernie_pair.embedding.open_embedder` opens either; this room only knows the exported one.
N texts, B batch, S sequence, D length of a vector.
"""

from functools import cached_property
from pathlib import Path
from typing import Callable, NamedTuple, Optional, Sequence, Union

import numpy as np

from data_tools.base.errors import CheckpointError, InputError, NumbersError
from data_tools.text.folder_tokenizer import FAST_TOKENIZER, AnyTokenizer
from ernie_pair.device.cpu_env import cpu_threads
from ernie_pair.inference.backends import OnnxBackend
from ernie_pair.inference.embedding_json import EMBEDDING, EmbeddingSettings, fingerprint_of, read_embedding
from ernie_pair.inference.exported_model import INT8_FILES, ExportedModel
from ernie_pair.inference.token_rows import (
    encode_single_texts,
    evaluation_batches,
    open_tokenizer,
)
from ernie_pair.model_files.config_json import CONFIG, VOCAB
from ernie_pair.model_files.spec import read_spec
from ernie_pair.model_files.tokenizer_json import TOKENIZER

BATCH_SIZE = 64
VECTORS = "vectors"  # the name of the output of an exported embedding model
# Takes ids and token types int64 [B, S], and returns vectors float32 [B, D] of any length.
Forward = Callable[[np.ndarray, np.ndarray], np.ndarray]


class EmbeddingModel(NamedTuple):
    """Computes vectors. ``name`` is its name in errors, ``backend`` that of its backend in the log."""

    name: str
    settings: EmbeddingSettings
    model_sha256: str
    tokenizer: AnyTokenizer
    forward: Forward
    backend: str


class TextEmbedder:
    """Compute vectors with an embedding model, which is loaded once. Not thread-safe.

    ``dim``: length of the vectors, one of the lengths that the model was trained for; 0: full length. Texts
    longer than ``max_seq_len`` tokens are truncated; ``num_cut`` counts them.
    """

    def __init__(self, model: EmbeddingModel, dim: int = 0, batch_size: int = BATCH_SIZE):
        self.model, self.batch_size, self.num_cut = model, batch_size, 0
        self.settings, self.backend = model.settings, model.backend
        self.dim = model.settings.chosen_dim(dim, model.name)

    @property
    def max_seq_len(self) -> int:
        """Return the maximum number of tokens of a text, including [CLS] and [SEP]."""
        return self.settings.max_seq_len

    @cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of everything that a vector depends on; see `fingerprint_of`."""
        return fingerprint_of(self.model.model_sha256, self.settings, self.dim)

    def num_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, including [CLS] and [SEP], before truncation."""
        tokenizer = self.model.tokenizer
        return sum(map(len, tokenizer.text_specials)) + len(tokenizer.encode(text) or tokenizer.empty)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of ``texts``, float32 [N, D], with norm 1, in the order of ``texts``.

        Equal calls give bit-identical vectors, regardless of earlier calls. Raises InputError for an item
        that is not a text, NumbersError for a vector that is not finite or is zero.
        """
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise InputError("texts must be a list of texts; put a single one into a list")
        rows = encode_single_texts(texts, self.model.tokenizer, self.max_seq_len)
        self.num_cut += rows.num_cut
        vectors = np.zeros((len(rows), self.dim), dtype=np.float32)
        for picked in evaluation_batches(rows.lengths, self.batch_size):
            batch = rows.batch(picked)
            vectors[picked] = self.model.forward(batch.input_ids, batch.token_type_ids)[:, : self.dim]
        return unit_rows(vectors, self.model.name)


def unit_rows(vectors: np.ndarray, where: str) -> np.ndarray:
    """Return the rows of float32 [N, D] with norm 1. Raises NumbersError for a zero or non-finite one."""
    lengths = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1))
    bad = np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))
    if len(bad):
        raise NumbersError(
            f"{where}: the vector of text {bad[0]} is NaN, infinite or zero; the weights are damaged, train "
            "or export again"
        )
    return (vectors / lengths[:, None]).astype(np.float32)


def open_exported_embedder(
    folder: Union[str, Path], *, dim: int = 0, threads: int = 0, batch_size: int = BATCH_SIZE
) -> TextEmbedder:
    """Open what `ernie-pair export-embedding` wrote, on ONNX Runtime and a CPU, without a training framework.

    ``threads``: of one forward pass, 0: the cores of this process. Raises InputError when ``folder`` is not
    such a folder or has no vectors of length ``dim``, CheckpointError when a file is not as exported.
    """
    folder = Path(folder)
    settings = read_embedding(folder)
    if settings is None or not settings.is_exported:
        raise InputError(
            f"{folder} is not an exported embedding model; make one with ernie-pair export-embedding"
        )
    exported = exported_parts(folder, settings)
    for name in settings.files:
        exported.file(name)  # checks its hash
    vocab_file = folder / (FAST_TOKENIZER if FAST_TOKENIZER in settings.files else VOCAB)
    if not {CONFIG, vocab_file.name} <= set(settings.files):
        raise CheckpointError(f"{folder}/{EMBEDDING} lacks {CONFIG} or {VOCAB}; export the model again")
    spec = read_spec(folder / CONFIG, vocab_file)
    if TOKENIZER not in settings.files and (folder / TOKENIZER).exists():
        raise CheckpointError(f"{folder / TOKENIZER} was not exported; remove it, or export the model again")
    tokenizer = open_tokenizer(vocab_file, spec, settings.max_seq_len)
    backend = open_vector_backend(exported, threads or cpu_threads())
    model = EmbeddingModel(
        str(folder), settings, settings.model_sha256, tokenizer, backend.logits, backend.name
    )
    return TextEmbedder(model, dim, batch_size)


def exported_parts(folder: Path, settings: EmbeddingSettings) -> ExportedModel:
    """Return the exported files of an embedding model, in the form that a backend takes."""
    return ExportedModel(folder, (), settings.max_seq_len, 1.0, settings.files)


class VectorBackend(OnnxBackend):
    """An exported embedding model on ONNX Runtime: ``logits`` returns vectors, float32 [B, D]."""

    output = VECTORS


class Int8VectorBackend(VectorBackend):
    """An exported embedding model with int8 weights, on ONNX Runtime."""

    name, precision = "onnx-int8", "int8"


def open_vector_backend(exported: ExportedModel, threads: int) -> VectorBackend:
    """Open the ONNX model of ``exported``, the int8 one if there is one. Raises CheckpointError."""
    is_int8 = INT8_FILES[0] in exported.files
    return (Int8VectorBackend if is_int8 else VectorBackend)(exported, threads)


def describe_cut(embedder: TextEmbedder, count: Optional[int] = None) -> str:
    """Return a line on how many texts, of ``count``, were longer than the model reads; empty: none."""
    if not embedder.num_cut:
        return ""
    of_all = "" if count is None else f" of {count:,}"
    return f"{embedder.num_cut:,}{of_all} texts are longer than {embedder.max_seq_len} tokens and are cut"
