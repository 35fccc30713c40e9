"""A trained embedding model on Paddle, in the dynamic graph."""

import logging
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import paddle

from ernie_pair.inference.embedder import EmbeddingModel
from ernie_pair.inference.token_rows import open_tokenizer
from ernie_pair.kernels.choice import KernelChoice, KernelFlags
from ernie_pair.models.embedding_json import EmbeddingSettings
from ernie_pair.models.networks.kernel_path import casting, choose_path, constant_weights, take_threads
from ernie_pair.models.networks.text_encoder import TextEncoder, build_text_encoder, load_text_weights
from ernie_pair.models.source import ModelSource
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.paddle_patches.core_settings import without_tf32
from ernie_pair.runtime.paddle_patches.initializers import drawing_nothing
from ernie_pair.runtime.processes.world import World

logger = logging.getLogger(__name__)


def open_trained(
    source: ModelSource,
    settings: EmbeddingSettings,
    device: str,
    kernels: KernelFlags,
    threads: int,
    folder: Path,
) -> EmbeddingModel:
    """Open the model of ``source``, to be asked on ``threads`` of a CPU, 0: those of this process.

    ``folder``: where its modules.json is, if it has one. Raises InputError for what ``device`` cannot do,
    CheckpointError."""
    logger.info("on %s", start_device(device, World()))
    model, choice = load_text_encoder(source, settings, device, kernels, folder)
    take_threads(model, threads)
    if model.fused_state is not None:
        model.fused_state.is_constant = True  # weights are packed once, and not for each batch
    logger.info("%s", choice.describe())
    tokenizer = open_tokenizer(source.vocab_file, source.spec, settings.max_seq_len, of_pairs=False)
    return EmbeddingModel(
        source.name,
        settings,
        model.sha256(tokenizer.sha256),
        tokenizer,
        lambda ids, types: vectors_of(model, choice, ids, types),
        f"paddle, {choice.name}",
        model,
    )


def load_text_encoder(
    source: ModelSource, settings: EmbeddingSettings, device: str, kernels: KernelFlags, folder: Path
) -> tuple[TextEncoder, KernelChoice]:
    """Return the encoder of ``source`` in ``folder`` in evaluation mode, and the kernels that compute it."""
    with nullcontext() if source.weights is None else drawing_nothing():
        model = build_text_encoder(source, 0, 0.0, settings.pooling, settings.graph_steps)
    load_text_weights(model, source, folder)
    choice = choose_path(model, kernels, device, casts=True)
    model.eval()
    return model, choice


def vectors_of(model: TextEncoder, choice: KernelChoice, ids: np.ndarray, types: np.ndarray) -> np.ndarray:
    """Return the vectors of ids and token types int64 [B, S], float32 [B, D] of any length."""
    with paddle.no_grad(), constant_weights(model), without_tf32(), casting(choice):
        return model(paddle.to_tensor(ids), paddle.to_tensor(types)).astype("float32").numpy()
