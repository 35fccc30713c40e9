"""Paddle's generated names (embedding_0.w_0, linear_12.b_0) -> structured names, by the order of creation.

The numbers count through a whole process, so they may begin anywhere and have gaps; within a kind they
increase in the order in which the layers were created, which is the model's own.
"""

import re
from typing import Dict, Iterable, List, Mapping, Protocol, Sequence, Tuple, Union

import numpy as np

from ernie_pair.core.errors import CheckpointError
from ernie_pair.weights.weight_files import Arrays, check_match, is_state

TOKEN_HEAD, ORDER_HEAD, NGRAM_HEAD = "cls.predictions.", "cls.seq_relationship.", "cls.ngrams."
RETRO_DECODER = "cls.retromae."
HEADS = ("cls.", "classifier.")
DECODER_BIAS = "cls.predictions.decoder.bias"
KINDS = ("embedding", "linear", "layer_norm")  # the kinds of layers in an ERNIE
_NAME = re.compile(r"([a-z][a-z_]*)_(\d+)\.([wb])_0")
Module = Tuple[str, Dict[str, str]]  # a layer: its kind, and w, b -> the parameter's name
RENAMED = {"cls.predictions.decoder_weight": "cls.predictions.decoder.weight"}
EMBEDDINGS = {
    "word_embedding": "word_embeddings", "pos_embedding": "position_embeddings",
    "sent_embedding": "token_type_embeddings", "task_embedding": "task_type_embeddings",
}  # fmt: skip
OUTSIDE_LAYERS = {
    "pre_encoder_layer_norm": "{family}.embeddings.layer_norm", "pooled_fc": "{family}.pooler.dense",
    "mask_lm_trans_fc": "cls.predictions.transform", "mask_lm_trans_layer_norm": "cls.predictions.layer_norm",
    "mask_lm_out_fc": "cls.predictions.decoder", "next_sent_fc": "cls.seq_relationship",
}  # fmt: skip
IN_LAYERS = {
    "multi_head_att_query_fc": "self_attn.q_proj", "multi_head_att_key_fc": "self_attn.k_proj",
    "multi_head_att_value_fc": "self_attn.v_proj", "multi_head_att_output_fc": "self_attn.out_proj",
    "post_att_layer_norm": "norm1", "ffn_fc_0": "linear1", "ffn_fc_1": "linear2",
    "post_ffn_layer_norm": "norm2",
}  # fmt: skip
_PARTED = re.compile(r"(?:encoder_layer_(\d+)_)?(\w+?)(?:\.([wb])_0|_(scale|bias))")
_ENDINGS = {"w": "weight", "b": "bias", "scale": "weight", "bias": "bias"}
Prefixes = Union[str, Tuple[str, ...]]


class Parameter(Protocol):
    """The attributes that are needed of a parameter of Paddle's, in either graph."""

    name: str
    shape: Sequence[int]


def is_numbered(name: str) -> bool:
    """Return whether ``name`` is one that Paddle generates, like linear_12.b_0."""
    return _NAME.fullmatch(name) is not None


def names_by_order(found: Arrays, parameters: Mapping[str, Parameter], where: str) -> Arrays:
    """Rename ``found`` to structured names by the order of its layers.

    The n-th layer of a kind in it is the n-th of that kind in the model. Some versions of PaddleNLP count
    the masked-token decoder among the linear layers, others create it differently; it is recognized by its
    bias, one number per token. Its weight, which is tied to the embedding, is ignored, even
    if it is all that is left of the decoder, and so is the state of the optimizer. The heads, which are
    created last, may be missing: both or one of them. Raises CheckpointError when the file holds more or
    fewer layers of a kind than the model.
    """
    arrays = {name: array for name, array in found.items() if not is_state(name)}
    strange = [name for name in arrays if not is_numbered(name)]
    if strange:
        raise CheckpointError(
            f"{where}: {strange[0]} is not the name of an ERNIE parameter; give other weights"
        )
    ours = {parameter.name: name for name, parameter in reversed(list(parameters.items()))}
    theirs, decoders = [], []
    words: Tuple[int, ...] = (0, 0)  # the shape of the first embedding, that of the words
    for kind, names in _modules(arrays):
        shapes = {part: arrays[name].shape for part, name in names.items()}
        if kind == "embedding" and words == (0, 0):
            words = shapes["w"]
        if shapes.get("b") == words[:1] and shapes.get("w", words) == words:
            decoders.append(names)
        elif kind != "linear" or shapes != {"w": words}:
            # Otherwise it is the weight of a decoder without its bias: Paddle saves it although it is tied to
            # the embedding, also for a program whose heads were removed by their names.
            theirs.append((kind, names))
    if len(decoders) > 1:
        raise CheckpointError(
            f"{where}: {len(decoders)} layers look like the decoder of {words[0]} tokens, but one is "
            "wanted; give the weights of a whole ERNIE of pretraining"
        )
    bias = parameters[DECODER_BIAS].name
    model = [(kind, names) for kind, names in _modules(ours) if bias not in names.values()]
    begins = [ours[next(iter(names.values()))] for _, names in model]  # a structured name of each
    missing = () if decoders else (TOKEN_HEAD,)  # of the heads, as prefixes of structured names
    linear = [name for name, (kind, _) in zip(begins, model) if kind == "linear"]
    without_order = [name for name in linear if not name.startswith((*missing, ORDER_HEAD))]
    if sum(kind == "linear" for kind, _ in theirs) <= len(without_order):
        missing = (*missing, ORDER_HEAD)
    wanted = [module for name, module in zip(begins, model) if not name.startswith(missing)]
    structured = {DECODER_BIAS: arrays[decoders[0]["b"]]} if decoders else {}
    for kind in KINDS:
        of_theirs, of_wanted = ([names for k, names in each if k == kind] for each in (theirs, wanted))
        if list(map(sorted, of_theirs)) != list(map(sorted, of_wanted)):
            listed = [name for names in of_theirs for name in names.values()]
            raise CheckpointError(
                f"{where} holds {len(of_theirs)} layers of the kind {kind} "
                f"({f'{listed[0]} to {listed[-1]}' if listed else 'none'}), but "
                f"config.json makes {len(of_wanted)}; give weights of this config"
            )
        for one, other in zip(of_theirs, of_wanted):
            structured.update({ours[other[part]]: arrays[name] for part, name in one.items()})
    return structured


def _modules(names: Iterable[str]) -> List[Module]:
    modules: Dict[Tuple[str, int], Dict[str, str]] = {}
    for match in filter(None, map(_NAME.fullmatch, names)):
        kind, number, part = match.groups()
        modules.setdefault((kind, int(number)), {})[part] = match.group()
    return [(kind, modules[kind, number]) for kind, number in sorted(modules)]


def structured_names(found: Arrays, parameters: Mapping[str, Parameter], where: str) -> Arrays:
    """Rename ``found`` to the names of ``parameters``, {structured name: parameter}, as far as known.

    An unknown name stays as it is. Raises CheckpointError when numbered names do not fit the order
    in which this model is built.
    """
    family = next(iter(parameters)).split(".")[0]
    if "embeddings.word_embeddings.weight" in found:
        return {name if name.startswith(HEADS) else f"{family}.{name}": a for name, a in found.items()}
    if "word_embedding" in found:
        return {_of_ernies_program(name, family): a for name, a in found.items() if not is_state(name)}
    if any(map(is_numbered, found)):
        return names_by_order(found, parameters, where)
    return {RENAMED.get(name, name): array for name, array in found.items()}


def _of_ernies_program(name: str, family: str) -> str:
    if name in EMBEDDINGS:
        return f"{family}.embeddings.{EMBEDDINGS[name]}.weight"
    parts = _PARTED.fullmatch(name)  # encoder_layer_3_ffn_fc_0.w_0: 3, ffn_fc_0, w
    if not parts:
        return name
    layer, module, letter, word = parts.groups("")
    ending = _ENDINGS[letter or word]
    if layer and module in IN_LAYERS:
        return f"{family}.encoder.layers.{layer}.{IN_LAYERS[module]}.{ending}"
    if not layer and module in OUTSIDE_LAYERS:
        return f"{OUTSIDE_LAYERS[module].format(family=family)}.{ending}"
    return name


def match_parameters(
    parameters: Mapping[str, Parameter],
    found: Arrays,
    where: str,
    *,
    may_miss: Prefixes = "",
    may_have: Prefixes = "",
) -> Arrays:
    """Match the arrays of a file with the parameters of a model, by structured names, all or nothing.

    ``parameters``: {structured name: parameter}; two names of one (tied) parameter are aliases and
    the file, ``where``, may use either. Names that start with ``may_miss`` may be missing from it,
    names in it that start with ``may_have`` are ignored; empty: none. Returns {parameter.name:
    array}. Raises CheckpointError naming what is missing, unknown or of another shape.
    """
    first_names = {parameter.name: name for name, parameter in reversed(list(parameters.items()))}
    chosen: Arrays = {}
    compared: Arrays = {}  # under the first names, and those that no parameter has
    for name, array in found.items():
        if name in parameters:
            key = parameters[name].name
            if key in chosen and not np.array_equal(chosen[key], array):
                raise CheckpointError(
                    f"{where}: {name} is tied to another name but differs from it; fix the file"
                )
            chosen[key] = compared[first_names[key]] = array
        elif not (may_have and name.startswith(may_have)):
            compared[name] = array
    wanted = {
        first_names[parameter.name]: tuple(parameter.shape)
        for parameter in parameters.values()
        if parameter.name in chosen or not (may_miss and first_names[parameter.name].startswith(may_miss))
    }
    check_match(wanted, compared, where)
    return chosen


def without_training_heads(arrays: Arrays) -> Arrays:
    """Return ``arrays`` {structured name: array} without the n-gram head and RetroMAE's decoder."""
    return {n: array for n, array in arrays.items() if not n.startswith((NGRAM_HEAD, RETRO_DECODER))}


LEVELS = 3  # of match embeddings: runs of 1, of 2, and of 3 or more tokens
ROWS = 1 + LEVELS  # per token type
TYPES = "embeddings.token_type_embeddings.weight"
MATCH_HEAD = "match_head."


def fit_rows(table_TD: np.ndarray, num_types: int, has_match: bool, where: str) -> np.ndarray:
    """Return a table of ``num_types`` token types as a model has it that ``has_match``, or has not.

    New rows are copies of those of their types. Raises CheckpointError, naming ``where``, for other sizes.
    """
    if len(table_TD) not in (num_types, ROWS * num_types):
        raise CheckpointError(
            f"{where}: {TYPES} has {len(table_TD)} rows, and config.json says type_vocab_size {num_types}; "
            "give the weights of this model"
        )
    if has_match and len(table_TD) == num_types:
        return np.tile(table_TD, (ROWS, 1))
    return table_TD if has_match else table_TD[:num_types]


# The program adds rows to the vocabulary, so that its matrices are a multiple of 8 wide, as half-precision
# matrix units need it. Files never hold those rows: they are cut on the way out and put back on the way in.
# They affect nothing else: the bias of an added token is -1e4, which float16 can hold, so its probability is
# exactly 0 in float32, and so are its gradients. Cutting the logits instead would copy [P, V] numbers in each
# pass and give the loss a width that is no multiple of 8.
MULTIPLE = 8
NEVER_LOGIT = -1e4
WORDS = "embeddings.word_embeddings.weight"


def padded_size(vocab_size: int) -> int:
    """Return the rows of the program's vocabulary: the next multiple of 8."""
    return -(-vocab_size // MULTIPLE) * MULTIPLE


def pad_vocabulary(arrays: Arrays, vocab_size: int) -> Arrays:
    """Pad a file's arrays to the program's; names are structured, or end in a slot: `NAME/moment1_0`."""
    padded = dict(arrays)
    for name, array in arrays.items():
        if _has_a_row_per_token(name) and array.shape[:1] == (vocab_size,):
            parameter, _, slot = name.partition("/")
            is_bias = parameter.endswith("bias") and "moment" not in slot  # or its float32 copy at O2
            shape = padded_size(vocab_size) - vocab_size, *array.shape[1:]
            added = np.full(shape, NEVER_LOGIT if is_bias else 0.0, array.dtype)
            padded[name] = np.concatenate([array, added])
    return padded


def cut_vocabulary(arrays: Arrays, vocab_size: int) -> Arrays:
    """Cut the arrays of the program, or of a file with the added rows, to what our files hold."""
    padded = padded_size(vocab_size)
    return {
        name: array[:vocab_size] if _has_a_row_per_token(name) and array.shape[:1] == (padded,) else array
        for name, array in arrays.items()
    }


def _has_a_row_per_token(name: str) -> bool:
    parameter = name.partition("/")[0]
    return parameter.endswith(WORDS) or parameter.startswith(f"{TOKEN_HEAD}decoder")
