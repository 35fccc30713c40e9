"""The encoders of PaddleNLP, how each family is called, what it answers, and the folder of a model on one.

The last layer may be computed for the first token of each sequence only, if the head reads nothing else. Its
keys and values are those of all tokens, as ever; its queries, its norms and its feed-forward are of one token
per sequence. The answer is the same within the rounding of float32, and so are the gradients, for what is
left out had no part in them. B batch, S sequence, D hidden.
"""

import sys
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Callable, Collection, ContextManager, Optional, TypeVar

import numpy as np
import paddle
from paddle import nn
from tqdm import tqdm

from ernie_pair.core.errors import InputError, NumbersError
from ernie_pair.core.progress import shows_bars
from ernie_pair.inference.token_rows import SEPARATOR, BatchRules, EncodedPairs, evaluation_batches
from ernie_pair.kernels.encoder_layer import FusedLayer, ModelState
from ernie_pair.models.families import FAMILIES, encoder_name
from ernie_pair.models.hugging_face import KINDS, config_to_hf, write_hf_folder
from ernie_pair.models.source import ModelSource
from ernie_pair.models.spec import CONFIG, NO_MODEL, ModelSpec, json_bytes
from ernie_pair.models.tokenizers import hf_tokenizer_files, tokenizer_files
from ernie_pair.runtime.paddle_patches.core_settings import without_tf32
from ernie_pair.runtime.paddle_patches.layers import (
    has_hooks,
    make_gelu_new,
    own_forward,
    read_padding_row,
    set_epsilon,
    set_forward,
    share_positions,
)
from ernie_pair.runtime.paddle_patches.paddlenlp_import import transformers
from ernie_pair.runtime.processes.world import seed_of
from ernie_pair.weights.parameter_names import ROWS
from ernie_pair.weights.weight_files import MODEL_STATE, Arrays

Model = TypeVar("Model")
THEIRS = "hugging_face"
HALVES = (paddle.float16, paddle.bfloat16)
MASKED = -1e4  # added to the scores of padding, as PaddleNLP does
TRAINING_ONLY = "distillation"  # the part that is trained along, and no part of what is written


class FirstTokenAlone:
    """A context in which an encoder's last layer returns [B, 1, D]; None for ``layer`` changes nothing.

    What stands in for the layer's forward pass already (recompute, the fused kernels) has a method
    ``for_first_token``, which is given Paddle's way to do it and returns its own.
    """

    def __init__(self, layer):
        self.layer = layer

    def __enter__(self) -> None:
        if self.layer is not None:
            self.before = own_forward(self.layer)
            alone = partial(first_token_state, self.layer)
            set_forward(self.layer, alone if self.before is None else self.before.for_first_token(alone))

    def __exit__(self, *error) -> None:
        if self.layer is not None:
            set_forward(self.layer, self.before)


def can_run_first_token(layer) -> bool:
    """Return whether `first_token_state` computes what ``layer`` does: it is Paddle's own, not a subclass."""
    return type(layer) is nn.TransformerEncoderLayer and type(layer.self_attn) is nn.MultiHeadAttention


def first_token_state(layer, states_BSD, src_mask=None, cache=None, output_attentions=False):
    """Return the state of the first token after ``layer``, [B, 1, D].

    ``src_mask`` is added to the scores, and is the same for every query. ``cache`` and ``output_attentions``
    are as TransformerEncoder passes them: None and False, for no classifier asks for more.
    """
    assert cache is None and not output_attentions
    return attend_from(layer, states_BSD[:, :1], states_BSD, src_mask)


def attend_from(layer, queries_BQD, states_BSD, src_mask=None):
    """Return what ``layer`` makes of the states ``queries_BQD`` that attend to ``states_BSD``, [B, Q, D].

    ``src_mask``: added to the scores, or bool, [B or 1, H or 1, Q or 1, S].
    """
    is_first, asks_BQD, seen_BSD = layer.normalize_before, queries_BQD, states_BSD
    if is_first:
        asks_BQD, seen_BSD = layer.norm1(queries_BQD), layer.norm1(states_BSD)
    state_BQD = queries_BQD + layer.dropout1(layer.self_attn(asks_BQD, seen_BSD, seen_BSD, src_mask))
    if not is_first:
        state_BQD = layer.norm1(state_BQD)
    inner_BQD = layer.norm2(state_BQD) if is_first else state_BQD
    inner_BQD = layer.linear2(layer.dropout(layer.activation(layer.linear1(inner_BQD))))
    state_BQD = state_BQD + layer.dropout2(inner_BQD)
    return state_BQD if is_first else layer.norm2(state_BQD)


def network_spec(
    spec: ModelSpec,
    architecture: str,
    dropout: Optional[float],
    *,
    without: Collection[str],
    rates: Collection[str] = (),
    **more: object,
) -> ModelSpec:
    """Return ``spec`` as that of the class ``architecture``, ``without`` these keys, and with ``more``.

    ``dropout``: the rate of the encoder and of the keys ``rates``; None: as in ``spec``.
    """
    settings = {key: value for key, value in spec.config.items() if key not in without}
    settings.update(model_type=spec.family, **more, architectures=[architecture])
    if dropout is not None:
        rates = ("hidden_dropout_prob", "attention_probs_dropout_prob", *rates)
        settings.update(dict.fromkeys(rates, dropout))
    if FAMILIES[spec.family].embeds_in_width and spec.embedding_size is None:
        settings["embedding_size"] = spec.hidden_size
    return spec.with_config(settings)


def new_encoder(spec: ModelSpec) -> nn.Layer:
    """Return PaddleNLP's encoder of ``spec`` with random weights, and the epsilon that ``spec`` states."""
    family = FAMILIES[spec.family]
    model_class = getattr(transformers, f"{family.class_start}Model")
    settings = spec.to_config(model_type=model_class.config_class.model_type)
    is_to_change = settings.get("hidden_act") == "gelu_new" and family.has_paddle_layers
    settings.update({"hidden_act": "gelu"} if is_to_change else {})
    settings.update({"type_vocab_size": spec.token_types * ROWS} if spec.has_match else {})
    config = model_class.config_class.from_dict(settings)
    # PaddleNLP's classifier leaves this pooler away.
    leaves_pooler = family.class_start == "Roberta"
    encoder = model_class(config, add_pooling_layer=False) if leaves_pooler else model_class(config)
    read_padding_row(encoder.embeddings.word_embeddings)
    if spec.family == "nezha":
        share_positions(encoder)
    if is_to_change:
        make_gelu_new(encoder.encoder.layers)
    if spec.own_epsilon is not None:
        set_epsilon(encoder, spec.own_epsilon)
    return encoder


def build_seeded(source: ModelSource, seed: int, build: Callable[[], Model], is_ours: bool = True) -> Model:
    """Return what ``build`` makes of ``source``, with random weights that are the same for the same ``seed``.

    Raises InputError if ``source`` does not describe a valid model, and what code that is not ours raises.
    """
    paddle.seed(seed_of(seed))
    try:
        return build()
    except NO_MODEL as error:
        if not is_ours:
            raise
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{source.name}: {CONFIG} describes no valid {source.spec.family} model ({reason}); correct it"
        ) from None


def own_head_class(family: str, encoder: nn.Layer) -> type[nn.Layer]:
    """Return PaddleNLP's class that makes logits of hidden states; it reads that of the first token alone."""
    modeling = sys.modules[type(encoder).__module__]
    return getattr(modeling, f"{FAMILIES[family].class_start}ClassificationHead")


class PaddingLeftOut:
    """A context in which the fused kernels, if they compute all ``layers``, compute no padding of the ids.

    A hook may read it, or would get states of another shape: with one on ``encoder`` or its parts they do.
    None for ``layers`` changes nothing.
    """

    def __init__(self, encoder: nn.Layer, layers: Optional[list[nn.Layer]], input_ids, pad_id: int):
        self.encoder, self.layers, self.input_ids, self.pad_id = encoder, layers, input_ids, pad_id
        self.context = ExitStack()

    def __enter__(self) -> None:
        if self.layers is None or not paddle.in_dynamic_mode():
            return
        fused: list[Any] = [own_forward(layer) for layer in self.layers]
        has_hook = any(map(has_hooks, (self.encoder, *self.encoder.children(), *self.layers)))
        if not has_hook and all(isinstance(one, FusedLayer) for one in fused):
            is_token = is_token_in(self.input_ids.numpy(), self.pad_id)
            self.context.enter_context(fused[0].state.without_padding(is_token))

    def __exit__(self, *error) -> None:
        self.context.close()


def is_token_in(input_ids, pad_id: int):
    """Return which ids [B, S], of Paddle or numpy, are tokens, bool [B, S]: all up to the last but padding.

    A row ends in a special token; before it, a "[PAD]" of a text is a token, as in transformers.
    """
    is_other = (input_ids != pad_id).astype("int64")
    so_far = is_other.cumsum(axis=1)
    return so_far - is_other < so_far[:, -1:]


def masked_mean(states_BSD, weights_BS1):
    """Return the mean [B, D] of states by weights; 0 for a row of padding alone, whose weights are 0."""
    totals_B1 = weights_BS1.sum(axis=1)
    return (states_BSD * weights_BS1).sum(axis=1) / paddle.maximum(totals_B1, paddle.ones_like(totals_B1))


def hidden_states(
    spec: ModelSpec, encoder: nn.Layer, input_ids, token_type_ids, alone=None, layers=None, levels_BS=None
):
    """Return hidden states [B, S, D] and the pooled output [B, D], or None for it.

    ``input_ids`` and ``token_type_ids`` are int64 [B, S]; a model with one token type gives it to both texts.
    ``levels_BS``: of `match_levels`, of a model with match embeddings.
    ``alone``: the last layer, to run for the first token alone; the hidden states are [B, 1, D] then.
    ``layers``: those of the encoder, if nobody reads the states of padding; where the fused kernels compute
    them, they leave it out, and return 0 there.
    """
    called, pad_id = FAMILIES[spec.family], spec.pad_id
    if spec.token_types == 1:
        token_type_ids = token_type_ids * 0  # a program that is traced keeps its input
    elif called.counts_from_padding:  # its tokenizer of two separators between the texts gives all one type
        token_type_ids = token_type_ids * (1 - token_type_ids.max(axis=1, keepdim=True) // SEPARATOR)
    token_type_ids = token_type_ids if levels_BS is None else token_type_ids + levels_BS
    asked = {"token_type_ids": token_type_ids} if called.takes_types else {}
    mask_BS = is_token_in(input_ids, pad_id).astype(encoder.embeddings.word_embeddings.weight.dtype)
    added = ((1.0 - mask_BS) * MASKED).unsqueeze([1, 2]) if called.takes_added_mask else mask_BS
    asked = {**asked, "attention_mask": added}
    with FirstTokenAlone(alone), PaddingLeftOut(encoder, layers, input_ids, pad_id):
        answer = encoder(input_ids, **asked)
    return (answer[0], answer[1]) if called.gives_pooled else (answer, None)


def widen_tensors(tensors: dict[str, paddle.Tensor]) -> Arrays:
    """Return {name: array}; 16-bit tensors become float32, which changes no value."""
    return {
        name: (tensor.astype("float32") if tensor.dtype in HALVES else tensor).numpy()
        for name, tensor in tensors.items()
    }


def set_weight(parameter, array: np.ndarray) -> None:
    """Set ``parameter`` to ``array``, as precisely as its type allows.

    The cast is Paddle's, which on a CPU truncates to bfloat16 instead of rounding.
    """
    if parameter.dtype in HALVES:
        parameter.set_value(paddle.to_tensor(array.astype(np.float32)).astype(parameter.dtype))
    else:
        parameter.set_value(array.astype(parameter.numpy().dtype))


class SavedLayer(nn.Layer):
    """A layer that is saved as a model; ``spec`` describes it, as in its config.json.

    ``keeps_frozen``: parameters with ``stop_gradient`` stay frozen in training: the caller froze them.
    """

    spec: ModelSpec
    keeps_frozen = False

    def __init__(self) -> None:
        super().__init__()
        self.frozen_modules: list[nn.Layer] = []  # what stays in evaluation mode

    def train(self) -> None:
        """Set training mode, except for what is frozen."""
        super().train()
        for layer in self.frozen_modules:
            layer.eval()

    def saved_tensors(self) -> dict[str, paddle.Tensor]:
        """Return {name: tensor} of what a checkpoint holds of the model."""
        return dict(self.named_parameters())

    def own_weights(self) -> dict[str, paddle.Tensor]:
        """Return {name: tensor} of what the folder of the model holds."""
        return self.state_dict()

    def set(self, arrays: Arrays) -> None:
        """Set `saved_tensors` to the values of {tensor.name: array}; others stay as they are."""
        for tensor in self.saved_tensors().values():
            if tensor.name in arrays:
                set_weight(tensor, arrays[tensor.name])

    def files_beside(self, vocab_file: Path, max_seq_len: int = 0) -> dict[str, bytes]:
        """Return {name: content} of what a folder holds beside the weights.

        ``max_seq_len``: tokens per pair in training, which the tokenizer's configuration remembers.
        """
        config = json_bytes(self.spec.to_config())
        return {**tokenizer_files(vocab_file, self.spec, max_seq_len), CONFIG: config}

    def write_paddle(self, folder: Path, vocab_file: Path, max_seq_len: int) -> None:
        """Fill ``folder`` with the weights for Paddle, and `files_beside`."""
        # As plain arrays: tensors would carry along names that differ from process to process.
        paddle.save(widen_tensors(self.own_weights()), str(folder / MODEL_STATE))
        for name, content in self.files_beside(vocab_file, max_seq_len).items():
            (folder / name).write_bytes(content)


class EncoderModel(SavedLayer):
    """A model on an encoder. ``spec`` describes it, as in its config.json; its family is known."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        self.family, self.family_spec, self.spec = spec.family, FAMILIES[spec.family], spec
        self.pad_id = spec.pad_id
        self.attribute = encoder_name(spec.family)
        self.add_sublayer(self.attribute, new_encoder(spec))
        self.written_apart: tuple[str, ...] = ()  # begins names of weights that transformers' model has not
        self.fused_state: Optional[ModelState] = None  # of the fused kernels, where they compute the encoder

    @property
    def encoder(self):
        """Return the encoder, a model of PaddleNLP."""
        return getattr(self, self.attribute)

    def is_unused(self, name: str) -> bool:
        """Return whether no output depends on the parameter of this name."""
        return name.startswith(tuple(f"{self.attribute}.{part}" for part in self.unused_parts()))

    def unused_parts(self) -> tuple[str, ...]:
        """Return the name prefixes of the encoder's parameters that no output depends on."""
        return self.family_spec.unused

    def freeze_unused(self) -> None:
        """Freeze the parameters that no output depends on, once all parameters exist."""
        for name, parameter in self.named_parameters():
            parameter.stop_gradient = self.is_unused(name)

    def layers(self) -> list[nn.Layer]:
        """Return the layers of the encoder, from the embeddings up; shared ones stand once."""
        found = self.encoder
        for name in self.family_spec.layers.split("."):
            found = getattr(found, name)
        return list(found)

    def embeddings(self) -> list[nn.Layer]:
        """Return the parts of the encoder that make the input of its first layer."""
        return [part for name, part in self.encoder.named_children() if name not in ("encoder", "pooler")]

    def depth_of(self, name: str) -> int:
        """Return 0 for a parameter of the embeddings, 1 to L of a layer, L + 1 of the head and the pooler."""
        num_layers, prefix = len(self.layers()), f"{self.attribute}."
        inside = name[len(prefix) :]
        if not name.startswith(prefix) or inside.startswith("pooler."):
            return num_layers + 1
        if inside.startswith(f"{self.family_spec.layers}."):
            return 1 + int(inside[len(self.family_spec.layers) + 1 :].split(".")[0])
        is_last_norm = inside.startswith("encoder.") and "embedding" not in inside
        return num_layers if is_last_norm else 0

    def own_weights(self) -> dict[str, paddle.Tensor]:
        """Return {name: tensor} of the model, without parameters that are trained but not saved."""
        weights = super().own_weights().items()
        return {name: tensor for name, tensor in weights if not name.startswith(f"{TRAINING_ONLY}.")}

    def write(
        self, folder: Path, vocab_file: Path, max_seq_len: int = 0, save_format: str = "paddle"
    ) -> None:
        """Fill ``folder`` so that from_pretrained, and ``load_classifier``, read it.

        ``max_seq_len``: tokens per pair in training, which the tokenizer's configuration remembers.
        ``save_format``: paddle is for PaddleNLP, hf for transformers; both is for PaddleNLP with a folder
        hugging_face inside. Raises InputError for hf where transformers has no such model.
        """
        if save_format != "hf":
            self.write_paddle(folder, vocab_file, max_seq_len)
        if save_format != "paddle":
            theirs = folder / THEIRS if save_format == "both" else folder
            theirs.mkdir(exist_ok=True)
            arrays = widen_tensors(self.own_weights())
            arrays = {name: arrays[name] for name in arrays if not name.startswith(self.written_apart)}
            tokenizer = hf_tokenizer_files(vocab_file, self.spec, max_seq_len)
            write_hf_folder(theirs, self.family, self.spec.config, tokenizer, arrays, "the model")

    def check_equal_in_hf(self) -> None:
        """Raise InputError when transformers has no model that computes the same."""
        config_to_hf(self.spec.config, self.family, {}, "--save_format hf", KINDS[0])


def constant_weights(model) -> ContextManager[None]:
    """Return a context in which the weights of ``model`` do not change: copies in bfloat16 are made once."""
    return nullcontext() if model.fused_state is None else model.fused_state.constant_weights()


def predict_rows(
    model,
    rows: EncodedPairs,
    width: int,
    batch_size: int,
    process_group,
    on_batch: Optional[Callable[[int], None]] = None,
    rules: BatchRules = BatchRules(),  # noqa: B008
) -> np.ndarray:
    """Return the ``width`` numbers that ``model`` gives every row, float32 [N, width], on every rank.

    The batches follow from the rows, ``batch_size`` and ``rules`` alone and are dealt to the ranks one by
    one, so a row always stands in the same batch. ``on_batch`` is given the rows of each batch, of all ranks;
    without it a bar of the first rank shows them, see `shows_bars`. Leaves ``model`` in evaluation mode.
    """
    model.eval()
    batches = evaluation_batches(rows.lengths, batch_size, rules)[process_group.rank :: process_group.size]
    is_hidden = on_batch is not None or process_group.rank > 0 or not shows_bars()
    found = np.zeros((len(rows), width), dtype=np.float32)
    answers = []
    with paddle.no_grad(), constant_weights(model), without_tf32():
        for picked in tqdm(batches, unit="batch", disable=is_hidden, leave=False):
            batch = rows.batch(picked)
            answer = model(paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids))
            answers.append(answer.astype("float32"))
            if on_batch is not None:
                on_batch(len(picked) * process_group.size)
        if answers:  # they are copied once: a copy waits for all that the device was asked for
            found[np.concatenate(batches)] = paddle.concat(answers).numpy()
    return process_group.all_reduce_now(found)


def predict_logits(
    model,
    rows: EncodedPairs,
    batch_size: int,
    process_group,
    on_batch: Optional[Callable[[int], None]] = None,
    rules: BatchRules = BatchRules(),  # noqa: B008
) -> np.ndarray:
    """Return the logits of every row, float32 [N, C], in the order of the file, on every rank.

    ``on_batch``, ``rules`` and the batches are those of `predict_rows`. Leaves ``model`` in evaluation mode.
    Raises NumbersError for a logit that is not finite.
    """
    logits = predict_rows(model, rows, model.num_classes, batch_size, process_group, on_batch, rules)
    if not np.isfinite(logits).all():
        row = int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
        raise NumbersError(
            f"the logits of row {row} are {logits[row].tolist()}; the weights are damaged, train again"
        )
    return logits
