"""Texts as vectors, computed by a trained model on Paddle, or by an exported one without it.

`ernie_pair.embeddings.open_embedder` opens either; this room only knows the exported one.
N texts, B batch, S sequence, D length of a vector.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Tuple

import numpy as np

from data_tools.text.folder_tokenizer import FAST_TOKENIZER, AnyTokenizer
from ernie_pair.core.cli.options import check_whole_numbers
from ernie_pair.core.errors import CheckpointError, InputError, NumbersError
from ernie_pair.inference.backends import OnnxBackend
from ernie_pair.inference.exported_model import GPU, INT8_FILES, ExportedModel
from ernie_pair.inference.opened import OpenedFolder
from ernie_pair.inference.ray_flags import PickledByFolder
from ernie_pair.inference.scores import Ranked, rank_texts
from ernie_pair.inference.token_rows import (
    BatchRules,
    EncodedPairs,
    encode_single_texts,
    evaluation_batches,
    open_tokenizer,
    windows_of,
)
from ernie_pair.models.embedding_json import EmbeddingSettings, compute_fingerprint
from ernie_pair.models.spec import CONFIG, TOKENIZER, VOCAB, read_spec
from ernie_pair.models.temperature import read_match_threshold
from ernie_pair.runtime.cpu import cpu_threads

BATCH_SIZE = 64
MAX_LENGTH_ERROR = 1e-3  # difference from length 1 of a vector
VECTORS = "vectors"  # the name of the output of an exported embedding model
# Takes ids and token types int64 [B, S], and returns vectors float32 [B, D] of any length.
Forward = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class EmbedderOptions:
    """How a model is asked; each 0, empty or None is as the model says.

    ``dim``: numbers of a vector, one of the lengths that it was trained for. ``pooling`` and ``max_seq_len``
    are of a model without embedding.json: they override what sentence-transformers wrote of it; without that
    it is asked by the mean, and in the length of its training. ``prompt``: put before each text;
    ``prompt_name``: the name of one of the model's prompts. ``threads``: of one forward pass on a CPU, 0:
    those of this process. ``batch_tokens``: most tokens in one pass, in place of ``batch_size`` texts; 0:
    what suits the device.
    """

    dim: int = 0
    pooling: str = ""
    max_seq_len: int = 0
    threads: int = 0
    batch_size: int = BATCH_SIZE
    batch_tokens: int = 0
    prompt: Optional[str] = None
    prompt_name: str = ""

    def __post_init__(self):
        of_any = {name: getattr(self, name) for name in ("dim", "max_seq_len", "threads", "batch_tokens")}
        check_whole_numbers(0, **of_any)
        check_whole_numbers(1, batch_size=self.batch_size)

    def prompt_in(self, settings: EmbeddingSettings, where: str) -> Optional[str]:
        """Return the prompt that is asked for; None: the model's own. Raises InputError."""
        if self.prompt_name and self.prompt is not None:
            raise InputError("--prompt and --prompt_name exclude each other; give one of them")
        return settings.prompt_named(self.prompt_name, where) if self.prompt_name else self.prompt


class EmbeddingModel(NamedTuple):
    """Computes vectors. ``name`` is its name in errors, ``backend`` that of its backend in the log.

    ``layer``: the encoder of a trained model, a layer of Paddle; None: it is exported. ``rules``: of batches.
    """

    name: str
    settings: EmbeddingSettings
    model_sha256: str
    tokenizer: AnyTokenizer
    forward: Forward
    backend: str
    layer: Any = None
    rules: BatchRules = BatchRules()


class TextEmbedder(PickledByFolder, OpenedFolder):
    """Compute vectors with an embedding model, which is loaded once. Not thread-safe; picklable.

    ``dim``: length of the vectors, one of the lengths that the model was trained for; 0: full length. Texts
    longer than ``max_seq_len`` tokens are truncated; ``num_cut`` counts them. ``prompt``: what `embed` puts
    before a text; None: the default prompt of the model, if it has one.
    """

    kind = "an embedding model"

    def __init__(
        self, model: EmbeddingModel, dim: int = 0, batch_size: int = BATCH_SIZE, prompt: Optional[str] = None
    ):
        check_whole_numbers(0, dim=dim)
        check_whole_numbers(1, batch_size=batch_size)
        self.model, self.batch_size, self.num_cut = model, batch_size, 0
        self.measured = {"model_path": model.name}
        self.settings, self.backend = model.settings, model.backend
        self.dim = model.settings.chosen_dim(dim, model.name)
        self.prompt = self.settings.prompt_named("", model.name) if prompt is None else prompt

    @property
    def max_seq_len(self) -> int:
        """Return the maximum number of tokens of a text, including [CLS] and [SEP]."""
        return self.settings.max_seq_len

    @cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of everything that a vector depends on; see `compute_fingerprint`."""
        return compute_fingerprint(self.model.model_sha256, self.settings, self.dim)

    @property
    def match_threshold(self) -> Optional[float]:
        """Return from which similarity on two texts match, as `evaluate` saved it; None: it did not."""
        return read_match_threshold(Path(self.model.name), self.fingerprint)

    @property
    def identity(self) -> Tuple[str, str]:
        """Return the fingerprint, and what computes the vectors."""
        return self.fingerprint, self.backend

    def num_tokens(self, text: str, role: str = "") -> int:
        """Return the number of tokens of a text, including [CLS] and [SEP], before truncation.

        ``role``: query or passage, with whose prompt it is read; '': as `embed` reads it.
        """
        return self.count_tokens(text, role)[0]

    def count_tokens(self, text: str, role: str = "") -> Tuple[int, int]:
        """Return `num_tokens`, and how many of them stand for what the vocabulary lacks."""
        tokenizer = self.model.tokenizer
        (read,) = self.settings.texts_read([text], self.settings.prompt_of(role) if role else self.prompt)
        ids = tokenizer.encode(read)
        return sum(map(len, tokenizer.text_specials)) + len(ids), ids.count(tokenizer.unk_id)

    def embed(self, texts: Iterable[str], prompt: Optional[str] = None) -> np.ndarray:
        """Return the vectors of ``texts``, float32 [N, D], in the order of ``texts``.

        They have norm 1, except where a published model says that its vectors are used as they are.
        ``prompt``: put before each text instead of that of this embedder. Equal calls give bit-identical
        vectors, regardless of earlier calls. Raises InputError for an item that is not a text, NumbersError
        for a vector that is not finite or is zero.
        """
        return self.vectors_of(self.encode(texts, prompt))

    def encode(self, texts: Iterable[str], prompt: Optional[str] = None) -> EncodedPairs:
        """Return ``texts`` as token ids, for `vectors_of`; a thread of its own may do so. See `embed`."""
        texts = texts if isinstance(texts, str) else list(texts)  # an iterator can be read once
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise InputError("texts must be a list of texts; put a single one into a list")
        prompt = self.prompt if prompt is None else prompt
        self.settings.check_prompt(prompt, self.model.name)
        read = self.settings.texts_read(texts, prompt)
        rows = encode_single_texts(read, self.model.tokenizer, self.max_seq_len)
        self.num_cut += rows.num_cut
        return rows

    def vectors_of(self, rows: EncodedPairs) -> np.ndarray:
        """Return the vectors of texts as token ids, float32 [N, D]. Raises NumbersError as `embed`."""
        vectors = np.zeros((len(rows), self.dim), dtype=np.float32)
        for picked in evaluation_batches(rows.lengths, self.batch_size, self.model.rules):
            batch = rows.batch(picked)
            vectors[picked] = self.model.forward(batch.input_ids, batch.token_type_ids)[:, : self.dim]
        if self.settings.is_unit:
            return unit_rows(vectors, self.model.name)
        check_vectors(vectors, self.model.name, is_unit=False)
        return vectors

    def embed_queries(self, texts: Iterable[str]) -> np.ndarray:
        """Return `embed` of ``texts`` with the model's own prompt for queries."""
        return self.embed(texts, self.settings.prompt_of("query"))

    def embed_passages(self, texts: Iterable[str]) -> np.ndarray:
        """Return `embed` of ``texts`` with the model's own prompt for passages: what is searched."""
        return self.embed(texts, self.settings.prompt_of("passage"))

    def windows_of(self, text: str, overlap: int) -> List[Tuple[int, int]]:
        """Return the windows in which a passage is read, see `token_rows.windows_of`. Raises InputError."""
        beside, tokenizer = self.num_tokens("", "passage"), self.model.tokenizer
        room = self.max_seq_len - beside
        if overlap >= room:
            raise InputError(
                f"--window_overlap {overlap} is as long as a window: {self.model.name} reads {room} tokens "
                f"of a text; make the index with {room - 1} or less"
            )
        return windows_of(
            text, tokenizer, lambda part: self.num_tokens(part, "passage") - beside, room, overlap
        )

    def rank(self, query: str, candidates: Iterable[str], top_k: int = 10) -> List[Ranked]:
        """Return the ``top_k`` candidates nearest to ``query``, best first, by the similarity of vectors.

        Raises InputError as `rank_texts`, and for a model whose vectors are not compared.
        """
        (own,) = self.comparable(self.embed_queries([query]))
        return rank_texts(
            lambda texts: (self.comparable(self.embed_passages(texts)) @ own, [None] * len(texts)),
            candidates,
            top_k,
        )

    @property
    def has_roles(self) -> bool:
        """Return whether queries and passages have different prompts."""
        return self.settings.prompt_of("query") != self.settings.prompt_of("passage")

    def unit_vectors(self, texts: Iterable[str], role: str) -> np.ndarray:
        """Return the vectors of ``texts`` as query or passage, float32 [N, D] of norm 1 in any case."""
        vectors = self.embed(texts, self.settings.prompt_of(role))
        return vectors if self.settings.is_unit else unit_rows(vectors, self.model.name)

    def comparable(self, vectors: np.ndarray) -> np.ndarray:
        """Return vectors [N, D] whose products are the model's similarity. Raises InputError if none are."""
        self.settings.check_search(self.model.name)
        is_to_change = self.settings.has_unit_products and not self.settings.is_unit
        return unit_rows(vectors, self.model.name) if is_to_change else vectors


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


def check_vectors(vectors: np.ndarray, where: str, first: int = 0, is_unit: bool = True) -> None:
    """Raise NumbersError for vectors [N, D] that are not finite or, with ``is_unit``, not of length 1.

    ``first``: the index of the first of them.
    """
    lengths = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1))
    good = np.abs(lengths - 1) < MAX_LENGTH_ERROR if is_unit else np.isfinite(lengths)
    bad = np.flatnonzero(~good)  # NaN fails every comparison
    if len(bad):
        raise NumbersError(
            f"{where}: vector {first + bad[0]} is NaN, infinite or of length {lengths[bad[0]]:.4g} instead "
            "of 1; embed the texts again with a sound model"
        )


def open_exported_embedder(
    folder: Path, settings: EmbeddingSettings, options: EmbedderOptions, device: str = "cpu"
) -> TextEmbedder:
    """Open what `ernie-pair export` wrote, ``settings`` among it, on ONNX Runtime and ``device``.

    Raises InputError if ``options`` do not fit it, CheckpointError when a file is not as exported.
    """
    prompt = options.prompt_in(settings, str(folder))
    backend = open_vector_backend(folder, settings, options.threads or cpu_threads(), device)
    vocab_file = folder / (FAST_TOKENIZER if FAST_TOKENIZER in settings.files else VOCAB)
    spec = read_spec(folder / CONFIG, vocab_file)
    if TOKENIZER not in settings.files and (folder / TOKENIZER).exists():
        raise CheckpointError(f"{folder / TOKENIZER} was not exported; remove it, or export the model again")
    tokenizer = open_tokenizer(vocab_file, spec, settings.max_seq_len, of_pairs=False)
    name, sha256 = str(folder), settings.model_sha256
    computes = backend.name, None, backend.rules.holding(options.batch_tokens)
    model = EmbeddingModel(name, settings, sha256, tokenizer, backend.logits, *computes)
    return TextEmbedder(model, options.dim, options.batch_size, prompt)


def open_vector_backend(
    folder: Path, settings: EmbeddingSettings, threads: int, device: str = "cpu"
) -> OnnxBackend:
    """Open an exported embedding model; its ``logits`` are vectors [B, D]. Raises CheckpointError.

    On a card it is asked in the file for one, if there is one; InputError if that is in int8.
    """
    exported = ExportedModel(folder, (), settings.max_seq_len, 1.0, settings.files)
    for name in settings.files:
        exported.file(name)  # checks its hash
    name = "onnx-int8" if INT8_FILES[0] in settings.files else "onnx"
    if device != "cpu" and name != "onnx":
        raise InputError(f"{folder} was exported in int8, which runs on the CPU; use --device cpu")
    if device != "cpu" and exported.files_of(GPU):
        name = GPU
    return OnnxBackend(exported, threads, name, VECTORS, device)


def describe_cut(embedder: TextEmbedder, count: Optional[int] = None) -> str:
    """Return a line on how many texts, of ``count``, were longer than the model reads; empty: none."""
    if not embedder.num_cut:
        return ""
    of_all = "" if count is None else f" of {count:,}"
    return f"{embedder.num_cut:,}{of_all} texts are longer than {embedder.max_seq_len} tokens and are cut"
