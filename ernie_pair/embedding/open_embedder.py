"""Open an embedding model, trained or exported; no Paddle is loaded for an exported one."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Union

from data_tools.files.errors import InputError, counted
from ernie_pair.inference.embedder import (
    EmbedderOptions,
    EmbeddingModel,
    TextEmbedder,
    open_exported_embedder,
)
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.embedding_json import (
    EMBEDDING,
    NORMALIZE,
    SHORTEST_TEXT,
    EmbeddingSettings,
    bad_poolings,
    read_embedding,
    width_after,
)
from ernie_pair.models.sentence_transformers import USUAL_TEMPERATURE, settings_of_folder
from ernie_pair.models.source import ModelSource, model_folder_of

logger = logging.getLogger(__name__)


def open_embedder(
    folder: Union[str, Path],
    device: str = "cpu",
    options: EmbedderOptions = EmbedderOptions(),  # noqa: B008
    kernels: KernelFlags = KernelFlags(),  # noqa: B008
) -> TextEmbedder:
    """Open the embedding model in ``folder``: trained (on Paddle) or exported (on ONNX Runtime, CPU only).

    ``folder`` may be the output of a training run, which stands for its best model, a folder of
    sentence-transformers, or any model folder that was not trained for embeddings. ``device``: cpu or gpu.
    ``kernels``: kernels of a trained model. Raises InputError if it is not such a folder or ``options`` do
    not fit it, CheckpointError if it is damaged.
    """
    if not Path(folder).is_dir():
        raise InputError(f"{folder} is not a folder; give that of an embedding model, or of any model")
    path = model_folder_of(Path(folder))
    settings = read_embedding(path)
    if settings is not None:
        _refuse_change(options, settings, path)
        if settings.is_exported:
            if device != "cpu":
                raise InputError(f"{path} is an exported model, which runs on a CPU; use --device cpu")
            return open_exported_embedder(
                path,
                dim=options.dim,
                threads=options.threads,
                batch_size=options.batch_size,
                prompt=options.prompt_in(settings, str(path)),
            )
    model = _open_trained(path, device, options, kernels)
    prompt = options.prompt_in(model.settings, model.name)
    return TextEmbedder(model, options.dim, options.batch_size, prompt)


def _refuse_change(options: EmbedderOptions, settings: EmbeddingSettings, path: Path) -> None:
    for name in ("pooling", "max_seq_len"):
        asked, told = getattr(options, name), getattr(settings, name)
        if asked and asked != told:
            raise InputError(
                f"--{name} {asked}: {path} was trained with {told}, and its vectors would be others; leave "
                "it out"
            )


def _open_trained(path: Path, device: str, options: EmbedderOptions, kernels: KernelFlags) -> EmbeddingModel:
    from ernie_pair.embedding.trained_model import open_trained  # which loads Paddle
    from ernie_pair.models.source import open_model, refuse_no_family

    source = open_model(str(path), model_type="")
    refuse_no_family(source, "write model_type there")
    settings = settings_of_model(path, source, options.pooling, options.max_seq_len)
    return open_trained(source, settings, device, kernels, options.threads, path)


def settings_of_model(
    folder: Path, source: ModelSource, pooling: str = "", max_seq_len: int = 0
) -> EmbeddingSettings:
    """Return how to ask the model ``source`` in ``folder``: as its files say, otherwise by the mean.

    ``pooling`` and ``max_seq_len`` override that, with a line in the log. Of a plain model of transformers
    the vectors are what sentence-transformers makes of it: of any length, of texts of as many tokens as the
    tokenizer says, or as there are positions. Raises InputError.
    """
    spec = source.spec
    told = settings_of_folder(folder, spec)
    if told is None:
        length = (
            spec.trained_length or spec.max_positions if source.is_hugging_face else spec.inference_length
        )
        dim, length = spec.hidden_size, min(length, spec.max_positions)
        steps = () if source.is_hugging_face else (NORMALIZE,)
        told = EmbeddingSettings("mean", dim, (dim,), length, USUAL_TEMPERATURE, steps=steps)
        chosen = replace(told, pooling=pooling or told.pooling, max_seq_len=max_seq_len or length)
    else:
        makes = width_after(told.pooling, spec.hidden_size, told.steps)
        if told.dim != makes:
            raise InputError(
                f"{folder}: its vectors are said to have {told.dim} numbers, and the encoder makes {makes}; "
                f"correct {EMBEDDING}, or copy the model again"
            )
        chosen = replace(told, pooling=pooling or told.pooling, max_seq_len=max_seq_len or told.max_seq_len)
        for name in ("pooling", "max_seq_len"):
            before, now = getattr(told, name), getattr(chosen, name)
            if before != now:
                logger.info("--%s %s overrides %s, which %s says", name, now, before, folder)
    wrong = bad_poolings(list(chosen.poolings))
    if wrong:
        raise InputError(f"--pooling {pooling}: {wrong}; use one of them, or several joined by +")
    if not SHORTEST_TEXT <= chosen.max_seq_len <= spec.max_positions:
        raise InputError(
            f"--max_seq_len {chosen.max_seq_len} is not from {SHORTEST_TEXT} to the {spec.max_positions} "
            f"positions of {source.name}; use {spec.max_positions} at most"
        )
    return _with_pooling(chosen, len(told.poolings), spec.hidden_size)


def _with_pooling(settings: EmbeddingSettings, count: int, width: int) -> EmbeddingSettings:
    """Return ``settings`` with the length of a vector that their poolings make, ``count`` before."""
    if len(settings.poolings) == count:
        return settings
    if any(step.kind == "dense" for step in settings.steps):
        raise InputError(
            f"--pooling {settings.pooling}: the dense layer of this model takes {count} x {width} numbers; "
            f"name {counted(count, 'pooling')}, or leave it out"
        )
    dim = width_after(settings.pooling, width, settings.steps)
    return replace(settings, dim=dim, dims=(dim,))
