"""Export a trained embedding model to ONNX, and check that it gives the same vectors."""

import hashlib
import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
from paddle import nn

from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.checkpoint.run_config import CONFIG_YAML, publish_results
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.atomic_folder import MADE, README, check_replaceable
from ernie_pair.core.files.json_file import write_json
from ernie_pair.core.files.results import Results, settings_of
from ernie_pair.deployment import formats
from ernie_pair.deployment.onnx_gpu import ON_A_GPU, GpuGraph
from ernie_pair.embeddings.embed_config import ExportEmbeddingConfig
from ernie_pair.embeddings.open_embedder import settings_of_model
from ernie_pair.inference.backends import OnnxBackend
from ernie_pair.inference.embedder import VECTORS, open_vector_backend
from ernie_pair.inference.exported_model import GPU, INT8_FILES, ONNX_FILES, PADDLE_FILES
from ernie_pair.inference.token_rows import Batch, encode_single_texts, evaluation_batches, open_tokenizer
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.embedding_json import (
    EMBEDDING,
    EXPORTED,
    EmbeddingSettings,
    compute_fingerprint,
    read_embedding,
)
from ernie_pair.models.model_card import ModelCard, data_in, measured_in, write_card
from ernie_pair.models.model_folder import list_model_files, with_model_folder
from ernie_pair.models.networks.text_encoder import TextEncoder, load_text_encoder
from ernie_pair.models.source import WRITE_FAMILY, ModelSource, open_model
from ernie_pair.models.spec import CONFIG
from ernie_pair.models.temperature import CALIBRATION, read_match_threshold
from ernie_pair.models.tokenizers import copy_tokenizer
from ernie_pair.runtime.cpu import cpu_threads
from ernie_pair.runtime.device import quiet_libraries, start_device
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World

NUM_TEXTS, TEXTS_PER_BATCH = 24, 6
COMMANDS = "ernie-pair embed --model_path . --input_file texts.txt --output_dir vectors"
PYTHON = """\
from ernie_pair import open_embedder

print(open_embedder(".").embed(["怎么注销信用卡", "如何注销信用卡"]))"""

logger = logging.getLogger(__name__)


def export_embedding(config: ExportEmbeddingConfig) -> None:
    """Write ``output_dir`` and log the largest difference of a vector's numbers from the trained model.

    Of int8 the cosines with its vectors are logged as well. Raises InputError for what cannot be exported or
    would be lost, CheckpointError if ONNX answers differently from the model; then nothing is written.
    """
    start_console(World())
    quiet_libraries()
    config = with_model_folder(config, "give that of an embedding model")
    output_dir = Path(os.path.realpath(config.output_dir))
    check_replaceable(
        output_dir,
        (*EXPORTED, EMBEDDING, CALIBRATION, README, CONFIG_YAML)
        if (output_dir / EMBEDDING).is_file()
        else (),
    )
    inputs: Dict[str, Sequence[Path]] = {"model_path": list_model_files(config.model_path)}
    outputs = [output_dir / name for name in (*EXPORTED, EMBEDDING, README)]
    flags, record = settings_of(config, *inputs, "output_dir"), output_dir / MADE
    results = Results("export embedding", outputs, inputs, flags, config.overwrite, record=record)
    if results.are_done():
        return
    start_device("cpu", World())
    source, settings = _open(Path(config.model_path))
    fill = partial(_fill, source=source, settings=settings, config=config)
    publish_results(output_dir, fill, "export embedding", config, results)
    logger.info("exported %s to %s", config.model_path, config.output_dir)


def _open(folder: Path) -> Tuple[ModelSource, EmbeddingSettings]:
    """Return the trained model in ``folder`` and how it is asked. Raises InputError for another folder."""
    settings = read_embedding(folder)
    if settings is not None and settings.is_exported:
        raise InputError(f"{folder} is an exported model already; give the trained one that it was made of")
    source = open_model(str(folder), no_family=WRITE_FAMILY)
    if settings is None and not source.is_hugging_face:
        raise InputError(f"{folder} holds no {EMBEDDING}; train one with ernie-pair train-embedding")
    return source, settings_of_model(source)


def _fill(
    draft: Path, source: ModelSource, settings: EmbeddingSettings, config: ExportEmbeddingConfig
) -> None:
    model, _ = load_text_encoder(source, settings, "cpu", KernelFlags(kernels="plain"))
    tokenizer = open_tokenizer(source.vocab_file, source.spec, settings.max_seq_len, of_pairs=False)
    model_sha256 = model.sha256(tokenizer.sha256)
    layer = UnitVectors(model) if settings.is_unit else model
    batches = parity_texts(tokenizer, settings.max_seq_len)
    expected = formats.compute_answers(layer, batches)
    copy_tokenizer(source.vocab_file, source.spec, draft)
    write_json(draft / CONFIG, model.spec.to_config())
    formats.write_paddle(model, draft, layer)
    formats.write_onnx(draft, VECTORS)
    for name in PADDLE_FILES:
        (draft / name).unlink()
    files = {path.name: sha256_of_file(path) for path in sorted(draft.iterdir())}
    settings = replace(settings, model_sha256=model_sha256, files=files)
    backend = open_vector_backend(draft, settings, cpu_threads())
    difference = formats.largest_difference(backend, batches, expected)
    message = "largest difference of %s from the trained model %.3g, in %d batches"
    logger.info(message, ONNX_FILES[0], difference, len(batches))
    facts: Dict[str, Any] = {"parity": {backend.name: difference}, "model": Path(source.name).name}
    note = f"onnx {difference:.3g}"
    if config.format == GPU:
        for_gpu = GpuGraph(model, layer, VECTORS)
        for_gpu.write(draft, config.gpu_precision)
        files = {path.name: sha256_of_file(path) for path in sorted(draft.iterdir())}
        settings = replace(settings, files=files)
        facts["parity"][GPU] = difference = for_gpu.difference(batches, expected, cpu_threads())
        with for_gpu.twin(config.gpu_precision, cpu_threads()) as twin:
            facts[config.gpu_precision] = drift = _drift(twin, batches, expected)
        note += f", {GPU} {difference:.3g}; {_describe_drift(config.gpu_precision, drift)}"
        logger.info("%s, with its rounding on this CPU", note)
    if config.quantize == "int8":
        formats.write_int8(draft)
        (draft / ONNX_FILES[0]).unlink()
        files = {path.name: sha256_of_file(path) for path in sorted(draft.iterdir())}
        own = hashlib.sha256(f"{model_sha256} {INT8_FILES[0]}".encode()).hexdigest()  # another model
        settings = replace(settings, model_sha256=own, files=files)
        int8 = open_vector_backend(draft, settings, cpu_threads())
        facts["int8"] = drift = _drift(int8, batches, expected)
        note = _describe_drift("int8", drift)
        logger.info("%s", note)
    _carry_threshold(Path(source.name), draft, compute_fingerprint(model_sha256, settings, settings.dim))
    (draft / EMBEDDING).write_text(settings.to_json(**facts), encoding="utf-8")
    told = {
        "exported from": Path(source.name).name,
        "numbers of a vector": ", ".join(map(str, settings.dims)),
        "pooling": settings.pooling,
        "tokens per text": str(settings.max_seq_len),
        "largest difference": note,
        **(ON_A_GPU if config.format == GPU else {}),
    }
    title = f"An embedding model of the family {model.family}, exported"
    folder = Path(config.model_path)
    on, metrics = measured_in(folder)
    card = ModelCard(title=title, facts=told, commands=COMMANDS, python=PYTHON)
    write_card(draft, replace(card, data=data_in(folder), metrics=metrics, measured_on=on))


def _carry_threshold(folder: Path, draft: Path, fingerprint: str) -> None:
    """Copy from which similarity on texts match, if it was saved of the vectors that the export computes."""
    is_same = read_match_threshold(folder, fingerprint)
    if is_same is not None:
        (draft / CALIBRATION).write_bytes((folder / CALIBRATION).read_bytes())


def _drift(
    backend: OnnxBackend, batches: Sequence[Batch], expected: Sequence[np.ndarray]
) -> Dict[str, float]:
    """Return the cosines of the vectors of int8 with those ``expected``, float32 [B, D] of each batch."""
    found = [backend.logits(batch.input_ids, batch.token_type_ids) for batch in batches]
    lengths = [np.linalg.norm(np.concatenate(rows), axis=1) for rows in (found, expected)]
    products = np.concatenate([(one * other).sum(axis=1) for one, other in zip(found, expected)])
    cosines = products / (lengths[0] * lengths[1])
    if not np.isfinite(cosines).all():
        cure = "pass --precision fp32" if backend.name == GPU else "leave --quantize int8 out"
        raise CheckpointError(f"the {backend.name} model answers with NaN or infinity; {cure}")
    return {"texts": len(cosines), "mean_cosine": float(cosines.mean()), "least_cosine": float(cosines.min())}


def _describe_drift(name: str, drift: Dict[str, float]) -> str:
    mean, least = drift["mean_cosine"], drift["least_cosine"]
    return f"{name}: cosine to the trained model's vectors {mean:.4f}, at least {least:.4f}"


class UnitVectors(nn.Layer):
    """The vectors of a model at length 1, which is what is exported."""

    def __init__(self, model: TextEncoder):
        super().__init__()
        self.model = model

    def forward(self, input_ids, token_type_ids):
        """Return vectors [B, D] of length 1, of ids and token types int64 [B, S]."""
        vectors_BD = self.model(input_ids, token_type_ids)
        return vectors_BD / (vectors_BD * vectors_BD).sum(axis=1, keepdim=True).sqrt()


def parity_texts(tokenizer: AnyTokenizer, max_seq_len: int) -> List[Batch]:
    """Return batches of texts of random tokens, of all lengths, some longer than ``max_seq_len``."""
    texts, more = formats.random_texts(np.random.default_rng(0), tokenizer, 2 * max_seq_len, NUM_TEXTS // 2)
    short = [text[: number + 1] for number, text in enumerate(more)]
    rows = encode_single_texts([*texts, *short], tokenizer, max_seq_len)
    return [rows.batch(picked) for picked in evaluation_batches(rows.lengths, TEXTS_PER_BATCH)]
