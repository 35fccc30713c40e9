"""Open an embedding model, trained or exported; no Paddle is loaded for an exported one."""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Sequence, Union

import numpy as np

from ernie_pair.core.cli.options import check_unset
from ernie_pair.core.cli.python_call import checks_names
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.hub import local_model
from ernie_pair.inference.embedder import EmbedderOptions, TextEmbedder, open_exported_embedder
from ernie_pair.kernels.choice import DEFAULT_KERNELS, KernelFlags
from ernie_pair.models.embedding_json import (
    EMBEDDING,
    MIN_TEXT_LENGTH,
    NORMALIZE,
    EmbeddingSettings,
    check_pooling,
    read_embedding,
    width_after,
)
from ernie_pair.models.model_folder import EXPORTED, no_model_folder, resolve_model_folder

if TYPE_CHECKING:
    from ernie_pair.models.source import ModelSource

PROBED = 64  # texts

logger = logging.getLogger(__name__)


@checks_names
def open_embedder(
    folder: Union[str, Path],
    device: str = "cpu",
    options: EmbedderOptions = EmbedderOptions(),  # noqa: B008
    kernels: KernelFlags = KernelFlags(),  # noqa: B008
) -> TextEmbedder:
    """Open the embedding model in ``folder``: trained (on Paddle) or exported (on ONNX Runtime).

    ``folder`` may be the output of a training run, which stands for its best model, a folder of
    sentence-transformers, or any model folder that was not trained for embeddings. An exported one needs no
    library for training. ``device``: cpu, gpu or gpu:N. ``kernels``: kernels of a trained model. Raises
    InputError if it is not such a folder or ``options`` do not fit it, CheckpointError if it is damaged.
    """
    path = Path(local_model(str(Path(folder).expanduser())))
    if not path.is_dir():
        raise no_model_folder("", str(path), "give that of an embedding model, or of any model")
    if (path / EXPORTED).is_file():
        raise InputError(
            f"{path} is an exported model of pairs, and this takes an embedding model; give it as "
            f"--model_path {path} to serve or search, or to ernie_pair.PairPredictor"
        )
    settings = read_embedding(path)
    if settings is None or not settings.is_exported:
        path = resolve_model_folder(path)
        settings = read_embedding(path)
    opens = partial(open_embedder, path.absolute(), device, options, kernels)
    if settings is not None:
        for name in ("pooling", "max_seq_len"):
            requested, trained = getattr(options, name), getattr(settings, name)
            if requested and requested != trained:
                raise InputError(
                    f"--{name} {requested}: {path} was trained with {trained}, and its vectors would be "
                    "others; leave it out"
                )
        if settings.is_exported:
            check_unset(
                kernels,
                DEFAULT_KERNELS,
                f": {path} is an exported model, which computes as it was exported; leave it out, or export "
                "it with --quantize int8",
            )
            embedder = open_exported_embedder(path, settings, options, device)
            embedder.opens = opens
            return embedder
    from ernie_pair.models.networks.text_encoder import open_trained  # which loads Paddle
    from ernie_pair.models.source import WRITE_FAMILY, open_model, warn_of_classifier

    source = open_model(str(path), no_family=WRITE_FAMILY)
    if settings is None and not options.pooling:
        warn_of_classifier(path, source.spec.config)
    settings = settings_of_model(source, options.pooling, options.max_seq_len)
    model = open_trained(source, settings, device, kernels, options.threads)
    model = model._replace(rules=model.rules.holding(options.batch_tokens))
    embedder = TextEmbedder(model, options.dim, options.batch_size, options.prompt_in(settings, model.name))
    embedder.opens = opens
    return embedder


def log_drift(
    embedder: TextEmbedder,
    texts: Sequence[str],
    folder: str,
    device: str,
    options: EmbedderOptions,
    kernels: KernelFlags,
) -> None:
    """Log how near the vectors of PROBED of the ``texts`` are to those in fp32, if ``kernels`` are lower.

    The others: what ``embedder`` was opened with. Its count of texts that were cut stays as it is.
    """
    if kernels.precision == "fp32" or not texts:
        return
    probed, num_cut = texts[:PROBED], embedder.num_cut
    hidden = logging.root.manager.disable
    logging.disable(logging.INFO)  # the lines of a model that computes nothing else
    try:
        exact_model = open_embedder(folder, device, options, replace(kernels, precision="fp32"))
    finally:
        logging.disable(hidden)
    exact = exact_model.embed_passages(probed)
    near = embedder.embed_passages(probed)
    embedder.num_cut = num_cut
    cosines = np.sum(exact * near, axis=1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(near, axis=1)
    logger.info(
        "%s beside fp32: the cosine of the vectors of %s is %.5f in the mean, %.5f at least",
        kernels.precision, counted(len(probed), "text"), cosines.mean(), cosines.min(),
    )  # fmt: skip


def settings_of_model(source: "ModelSource", pooling: str = "", max_seq_len: int = 0) -> EmbeddingSettings:
    """Return how to ask the model ``source``: as its files say, otherwise by the mean.

    ``pooling`` and ``max_seq_len`` override that, with a line in the log. Of a plain model of transformers
    the vectors are what sentence-transformers makes of it: of any length, of texts of as many tokens as the
    tokenizer says, or as there are positions. Raises InputError.
    """
    from ernie_pair.models.sentence_transformers import DEFAULT_TEMPERATURE

    spec, stated, folder = source.spec, source.embedding, source.folder
    if stated is None:
        length = (
            spec.trained_length or spec.max_positions if source.is_hugging_face else spec.inference_length
        )
        dim, length = spec.hidden_size, min(length, spec.max_positions)
        steps = () if source.is_hugging_face else (NORMALIZE,)
        stated = EmbeddingSettings("mean", dim, (dim,), length, DEFAULT_TEMPERATURE, steps=steps)
    else:
        makes = width_after(stated.pooling, spec.hidden_size, stated.steps)
        if stated.dim != makes:
            raise InputError(
                f"{folder}: its vectors are said to have {stated.dim} numbers, and the encoder makes "
                f"{makes}; correct {EMBEDDING}, or copy the model again"
            )
        for name, now in (("pooling", pooling), ("max_seq_len", max_seq_len)):
            before = getattr(stated, name)
            if now and now != before:
                logger.info("--%s %s overrides %s, which %s says", name, now, before, folder)
    chosen = replace(stated, pooling=pooling or stated.pooling, max_seq_len=max_seq_len or stated.max_seq_len)
    check_pooling(chosen.pooling)
    if not MIN_TEXT_LENGTH <= chosen.max_seq_len <= spec.max_positions:
        raise InputError(
            f"--max_seq_len {chosen.max_seq_len} is not from {MIN_TEXT_LENGTH} to the {spec.max_positions} "
            f"positions of {source.name}; use {spec.max_positions} at most"
        )
    count = len(stated.poolings)
    if len(chosen.poolings) == count:
        return chosen
    if any(step.kind == "dense" for step in chosen.steps):
        raise InputError(
            f"--pooling {chosen.pooling}: the dense layer of this model takes {count} x {spec.hidden_size} "
            f"numbers; name {counted(count, 'pooling')}, or leave it out"
        )
    dim = width_after(chosen.pooling, spec.hidden_size, chosen.steps)
    return replace(chosen, dim=dim, dims=(dim,))
