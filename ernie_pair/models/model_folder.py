"""A folder that PaddleNLP's models and tokenizers load with from_pretrained."""

import pickle
from pathlib import Path
from typing import Iterable

import numpy as np

from data_tools.files.json_file import write_json
from ernie_pair.models.config_json import CONFIG, FAMILIES
from ernie_pair.models.hugging_face.folders import MODEL_STATE
from ernie_pair.models.source import VOCAB, ModelSource
from ernie_pair.models.spec import ModelSpec
from ernie_pair.models.tokenizer_files import copy_tokenizer, own_vocabulary
from ernie_pair.weights.weight_files import Arrays

TOKEN_HEAD, ORDER_HEAD = "cls.predictions.", "cls.seq_relationship."
GELU_NEW = "gelu_new"  # of transformers; PaddleNLP has it under no name
# PaddleNLP misses a tied parameter that stands under one of its names alone.
DECODER = "cls.predictions.decoder"
TIED = (
    (f"{DECODER}_bias", f"{DECODER}.bias"),
    ("{family}.embeddings.word_embeddings.weight", f"{DECODER}.weight"),
)


def write_model_folder(folder: Path, source: ModelSource, weights: Arrays) -> None:
    """Write config.json, the files of the tokenizer and model_state.pdparams into ``folder``.

    ``weights``: {structured name: float32 array} of the model of pretraining, heads included.
    """
    family = source.spec.family or "ernie"
    config = source.spec.to_config(model_type=family, architectures=[class_of(source.spec, weights)])
    if family == "ernie_gram":  # PaddleNLP's default is 768, whatever hidden_size is
        config.setdefault("embedding_size", source.spec.hidden_size)
    write_json(folder / CONFIG, config)
    if source.spec.tokenizer.is_folders:
        copy_tokenizer(source.vocab_file, source.spec, folder)
    else:
        tokenizer = {"do_lower_case": True, "tokenizer_class": f"{FAMILIES[family]}Tokenizer"}
        write_json(folder / "tokenizer_config.json", tokenizer)
        (folder / VOCAB).write_bytes(own_vocabulary(source.vocab_file, source.spec))
    write_weights(folder, _with_tied_names(weights, family))


def class_of(spec: ModelSpec, weights: Iterable[str]) -> str:
    """Return PaddleNLP's class with the heads that the names ``weights`` have, or a name that it lacks.

    It has none for ErnieGram with heads: its encoder finds itself in the same file. Where PaddleNLP's class
    would compute something else, no class of it is named.
    """
    family = spec.family or "ernie"
    is_own = spec.own_epsilon is not None or spec.config.get("hidden_act") == GELU_NEW
    heads = {head for head in (TOKEN_HEAD, ORDER_HEAD) for name in weights if name.startswith(head)}
    ending = "Model"
    if TOKEN_HEAD in heads and family != "ernie_gram":
        ending = "ForPretraining" if ORDER_HEAD in heads else "ForMaskedLM"
    return ("Own" if is_own else "") + FAMILIES[family] + ending


def write_weights(folder: Path, weights: Arrays) -> None:
    """Write model_state.pdparams, a pickle of {name: array} as `paddle.save` writes a state dict."""
    with open(folder / MODEL_STATE, "wb") as file:
        pickle.dump(weights, file, protocol=4)


def _with_tied_names(weights: Arrays, family: str) -> Arrays:
    """Return ``weights`` in the order of names, tied parameters under both of theirs.

    A tied array is one object, of which a pickle holds one copy.
    """
    arrays = {name: np.ascontiguousarray(weights[name]) for name in sorted(weights)}
    has_decoder = any(name.startswith(DECODER) for name in arrays)
    for tied in TIED if has_decoder else ():
        names = [name.format(family=family) for name in tied]
        array = next(arrays[name] for name in names if name in arrays)
        arrays.update(dict.fromkeys(names, array))
    return {name: arrays[name] for name in sorted(arrays)}
