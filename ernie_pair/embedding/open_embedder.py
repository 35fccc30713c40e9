"""Open an embedding model, trained or exported; no Paddle is loaded for an exported one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Union

from data_tools.base.errors import InputError
from ernie_pair.inference.embedder import BATCH_SIZE, EmbeddingModel, TextEmbedder, open_exported_embedder
from ernie_pair.inference.embedding_json import POOLINGS, EmbeddingSettings, read_embedding
from ernie_pair.inference.token_rows import SHORTEST_TEXT
from ernie_pair.kernels.kernel_flags import KernelFlags
from ernie_pair.model_files.source import ModelSource, model_folder_of

USUAL_TEMPERATURE = 0.05


@dataclass(frozen=True)
class EmbedderOptions:
    """How a model is asked; each 0 or empty is as the model says.

    ``dim``: numbers of a vector, one of the lengths that it was trained for. ``pooling`` and ``max_seq_len``
    are of a model without embedding.json, which is asked as it is: mean, and the length of its training.
    ``threads``: of one forward pass on a CPU, 0: those of this process.
    """

    dim: int = 0
    pooling: str = ""
    max_seq_len: int = 0
    threads: int = 0
    batch_size: int = BATCH_SIZE


def open_embedder(
    folder: Union[str, Path],
    device: str = "cpu",
    options: EmbedderOptions = EmbedderOptions(),  # noqa: B008
    kernels: KernelFlags = KernelFlags(),  # noqa: B008
) -> TextEmbedder:
    """Open the embedding model in ``folder``: trained (on Paddle) or exported (on ONNX Runtime, CPU only).

    ``folder`` may be the output of a training run, which stands for its best model, or any model folder that
    was not trained for embeddings. ``device``: cpu or gpu. ``kernels``: kernels of a trained model. Raises
    InputError if it is not such a folder or ``options`` do not fit it, CheckpointError if it is damaged.
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
                path, dim=options.dim, threads=options.threads, batch_size=options.batch_size
            )
    return TextEmbedder(_open_trained(path, device, options, kernels), options.dim, options.batch_size)


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
    from ernie_pair.model_files.source import open_model, refuse_no_family

    source = open_model(str(path), model_type="")
    refuse_no_family(source, "write model_type there")
    settings = read_embedding(path) or _untrained_settings(source, options)
    return open_trained(source, settings, device, kernels, options.threads)


def _untrained_settings(source: ModelSource, options: EmbedderOptions) -> EmbeddingSettings:
    """Return how to ask a model that was trained for something else. Raises InputError."""
    spec, dim = source.spec, source.spec.hidden_size
    length = options.max_seq_len or spec.inference_length
    if options.pooling and options.pooling not in POOLINGS:
        raise InputError(f"--pooling {options.pooling} is not one of {', '.join(POOLINGS)}; use one of them")
    if not SHORTEST_TEXT <= length <= spec.max_positions:
        raise InputError(
            f"--max_seq_len {length} is not from {SHORTEST_TEXT} to the {spec.max_positions} positions of "
            f"{source.name}; use {spec.max_positions} at most"
        )
    return EmbeddingSettings(options.pooling or POOLINGS[0], dim, (dim,), length, USUAL_TEMPERATURE)
