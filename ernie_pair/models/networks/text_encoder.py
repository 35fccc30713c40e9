"""One encoder for any text: an encoder of PaddleNLP, and one vector of its hidden states.

The poolings, and the steps after them, are those of sentence-transformers. A folder of it is one of the
encoder alone, ErnieModel for example, which PaddleNLP and every command here take, with an embedding.json
beside it. B batch, S sequence, D hidden; ``is_text_BS1`` is 1 for a token and 0 for padding, of the dtype of
states.
"""

import hashlib
import json
import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Optional, Sequence, Tuple

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from ernie_pair.inference.embedder import EmbeddingModel
from ernie_pair.inference.token_rows import open_tokenizer
from ernie_pair.kernels.choice import KernelChoice, KernelFlags
from ernie_pair.models.embedding_json import EMBEDDING, EmbeddingSettings, Step
from ernie_pair.models.families import FAMILIES, OF_MATCH
from ernie_pair.models.networks import encoders
from ernie_pair.models.networks.classifier import HEADS, set_matching, unused_parts, with_prefix
from ernie_pair.models.networks.kernel_path import casting, choose_path, take_threads
from ernie_pair.models.sentence_transformers import DENSE, write_sentence_files
from ernie_pair.models.source import ModelSource, with_match
from ernie_pair.models.spec import ModelSpec
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.paddle_patches.core_settings import without_tf32
from ernie_pair.runtime.paddle_patches.paddlenlp_import import skipped_init
from ernie_pair.runtime.processes.world import World

FAR_BELOW = 6e4  # below any hidden state, and within float16
ACTIVATIONS = {
    "tanh": paddle.tanh, "identity": lambda vectors: vectors, "relu": F.relu, "gelu": F.gelu,
    "sigmoid": F.sigmoid, "silu": F.silu,
}  # fmt: skip
EPSILON_CLASS = "OwnEpsilonTextEncoder"  # which PaddleNLP has not, and would compute with another epsilon
logger = logging.getLogger(__name__)
OF_CLASSIFIERS = ("num_labels", "num_classes", "pooling", "model_class", "id2label", "label2id", *OF_MATCH)


def pooled(names: str, states_BSD, is_text_BS1):
    """Return the vectors [B, D times their number] of the poolings ``names``, joined by +."""
    parts = [POOLINGS[name](states_BSD, is_text_BS1) for name in names.split("+")]
    return parts[0] if len(parts) == 1 else paddle.concat(parts, axis=-1)


def _weighted_mean(states_BSD, is_text_BS1):
    return encoders.masked_mean(states_BSD, is_text_BS1.cumsum(axis=1) * is_text_BS1)  # by 1, 2, 3, ...


def _last_token(states_BSD, is_text_BS1):
    numbers_BS1 = is_text_BS1.cumsum(axis=1) * is_text_BS1
    is_last_BS1 = (numbers_BS1 == is_text_BS1.sum(axis=1, keepdim=True)).astype(states_BSD.dtype)
    return (states_BSD * is_last_BS1 * is_text_BS1).sum(axis=1)


POOLINGS = {
    "cls": lambda states_BSD, is_text_BS1: states_BSD[:, 0],
    "mean": encoders.masked_mean,
    "max": lambda states, is_text: (states * is_text - (1 - is_text) * FAR_BELOW).max(axis=1),
    "mean_sqrt_len_tokens": lambda states, is_text: encoders.masked_mean(states, is_text)
    * is_text.sum(axis=1).sqrt(),
    "weightedmean": _weighted_mean,
    "lasttoken": _last_token,
}


class Steps(nn.LayerList):
    """The steps after the pooling of vectors of ``width``, to ``dim``; its layers are of the dense ones."""

    def __init__(self, steps, width: int):
        super().__init__()
        self.steps, self.dim = tuple(steps), width
        for step in self.steps:
            if step.kind == "dense":
                self.append(Dense(self.dim, step))
            self.dim = step.width or self.dim

    def forward(self, vectors_BD):
        """Return the vectors [B, dim] after all steps."""
        layers = iter(self)
        for step in self.steps:
            if step.kind == "dense":
                vectors_BD = next(layers)(vectors_BD)
            elif step.kind == "truncate":
                vectors_BD = vectors_BD[:, : step.width]
            else:
                vectors_BD = F.normalize(vectors_BD, axis=1, epsilon=1e-12)
        return vectors_BD


class Dense(nn.Layer):
    """A dense step: its activation of a linear layer of ``width`` inputs, and where it says so those too."""

    def __init__(self, width: int, step: Step):
        super().__init__()
        self.step = step
        self.linear = nn.Linear(width, step.width, bias_attr=None if step.bias else False)
        if step.residual and step.width != width:
            self.residual = nn.Linear(width, step.width, bias_attr=False)

    def forward(self, vectors_BD):
        """Return the vectors [B, width of the step]."""
        made = ACTIVATIONS[self.step.activation](self.linear(vectors_BD))
        if not self.step.residual:
            return made
        return made + (self.residual(vectors_BD) if hasattr(self, "residual") else vectors_BD)


class TextEncoder(encoders.EncoderModel):
    """A model that makes a vector of a text; a number in ``dropout`` replaces its rates.

    ``pooling``: mean of the last hidden states over what is no padding, that of the first token, or others of
    `POOLINGS`, several joined by +. ``steps``: what is done with the vector after that.
    """

    def __init__(
        self,
        spec: ModelSpec,
        dropout: Optional[float] = None,
        pooling: str = "mean",
        steps: Sequence[Step] = (),
    ):
        architecture = (
            f"{FAMILIES[spec.family].class_start}Model" if spec.own_epsilon is None else EPSILON_CLASS
        )
        super().__init__(encoders.network_spec(spec, architecture, dropout, without=OF_CLASSIFIERS))
        self.pooling, self.written_apart = pooling, (DENSE,)
        self.dense = Steps(steps, self.spec.hidden_size * len(pooling.split("+")))
        self.freeze_unused()

    @property
    def dim(self) -> int:
        """Return the numbers of a vector."""
        return self.dense.dim

    def unused_parts(self) -> Tuple[str, ...]:
        """Return the beginnings of the names of parameters that no vector depends on: the pooler's too."""
        return (*self.family_spec.unused, "pooler.")

    def forward(self, input_ids, token_type_ids):
        """Return vectors [B, D] of any length, of ids and token types int64 [B, S]; padding has no part."""
        layers = self.layers()
        alone = layers[-1] if self.pooling == "cls" and encoders.can_run_first_token(layers[-1]) else None
        states_BSD, _ = encoders.hidden_states(
            self.spec, self.encoder, input_ids, token_type_ids, alone, layers
        )
        is_text_BS1 = encoders.is_token_in(input_ids, self.pad_id).astype(states_BSD.dtype).unsqueeze(-1)
        return self.dense(pooled(self.pooling, states_BSD, is_text_BS1))

    def write_embedding(
        self, folder: Path, vocab_file: Path, settings: EmbeddingSettings, save_format: str = "paddle"
    ) -> None:
        """Fill ``folder`` as `write` does, with embedding.json or the files of sentence-transformers."""
        self.write(folder, vocab_file, settings.max_seq_len, save_format)
        if save_format != "hf":
            (folder / EMBEDDING).write_text(settings.to_json(), encoding="utf-8")
        if save_format != "paddle":
            theirs = folder / encoders.THEIRS if save_format == "both" else folder
            dense = {name: p for name, p in self.state_dict().items() if name.startswith(DENSE)}
            write_sentence_files(theirs, settings, self.spec.hidden_size, encoders.widen_tensors(dense))

    def sha256(self, vocab_sha256: str) -> str:
        """Return the hash of all that a vector depends on but its settings: weights, sizes, vocabulary."""
        digest = hashlib.sha256(json.dumps([self.spec.shape, self.spec.lower_case, vocab_sha256]).encode())
        arrays = encoders.widen_tensors({n: p for n, p in self.named_parameters() if not self.is_unused(n)})
        for name in sorted(arrays):
            digest.update(f"{name} {arrays[name].shape}".encode())
            digest.update(arrays[name].astype("<f4", copy=False).tobytes())
        return digest.hexdigest()


def build_text_encoder(
    source: ModelSource,
    seed: int,
    dropout: Optional[float],
    pooling: str = "mean",
    steps: Sequence[Step] = (),
) -> TextEncoder:
    """Return an encoder of the family of ``source``; see `build_seeded`, whose errors it raises."""
    return encoders.build_seeded(source, seed, lambda: TextEncoder(source.spec, dropout, pooling, steps))


def load_text_weights(model: TextEncoder, source: ModelSource) -> str:
    """Load the weights of ``source``, if any, into ``model``, and return a description of its start.

    A classifier and the heads of pretraining are passed over, a pooler may be absent; anything else must fit
    name by name. Raises CheckpointError otherwise.
    """
    if source.weights is None:
        return "start from random weights (--from_scratch true)"
    found = with_prefix(with_match(source, False).read_weights(), model)
    if source.is_hugging_face and len(model.dense):
        found.update(source.read_dense())
    unused = (*model.family_spec.pretraining_heads, *HEADS, *unused_parts(model, source))
    passed_over = sum(name.startswith(unused) for name in found)
    may_miss = tuple(f"{model.attribute}.{part}" for part in model.unused_parts())
    set_matching(model, found, source.weights, may_miss=may_miss, may_have=(*unused, *may_miss))
    note = f", {passed_over} weights of other heads are ignored" if passed_over else ""
    return f"start from the weights {source.weights}{note}"


def open_trained(
    source: ModelSource, settings: EmbeddingSettings, device: str, kernels: KernelFlags, threads: int
) -> EmbeddingModel:
    """Open the model of ``source``, to be asked on ``threads`` of a CPU, 0: those of this process.

    Raises InputError for what ``device`` cannot do, CheckpointError.
    """
    logger.info("on %s", start_device(device, World()))
    model, choice = load_text_encoder(source, settings, device, kernels)
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
        lambda ids, types: compute_vectors(model, choice, ids, types),
        f"paddle, {choice.name}",
        model,
    )


def load_text_encoder(
    source: ModelSource, settings: EmbeddingSettings, device: str, kernels: KernelFlags
) -> Tuple[TextEncoder, KernelChoice]:
    """Return the encoder of ``source`` in evaluation mode, and the kernels that compute it."""
    with nullcontext() if source.weights is None else skipped_init():
        model = build_text_encoder(source, 0, 0.0, settings.pooling, settings.graph_steps)
    load_text_weights(model, source)
    choice = choose_path(model, kernels, device, casts=True)
    model.eval()
    return model, choice


def compute_vectors(
    model: TextEncoder, choice: KernelChoice, ids: np.ndarray, types: np.ndarray
) -> np.ndarray:
    """Return the vectors of ids and token types int64 [B, S], float32 [B, D] of any length."""
    with paddle.no_grad(), encoders.constant_weights(model), without_tf32(), casting(choice):
        return model(paddle.to_tensor(ids), paddle.to_tensor(types)).astype("float32").numpy()
