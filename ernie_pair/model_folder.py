"""Where a model comes from: a folder (config.json, vocab.txt, weights), or a built-in name of PaddleNLP.

A path that is given and cannot be read is an error, never a fresh start.
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Optional

import numpy as np

from data_tools.errors import CheckpointError, InputError
from ernie_pair.weights import Arrays, read_weights, refuse_mismatch

CONFIG, VOCAB = "config.json", "vocab.txt"
WEIGHT_FILES = ("model_state.pdparams", "model.safetensors", "static_vars.safetensors")
# The recipe's spelling of the name that PaddleNLP knows.
ALIASES = {"ERNIE 1.0": "ernie-1.0"}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSource:
    """What a model is made from. ``weights`` is None only for a start from scratch."""

    name: str
    config: Dict[str, object]
    vocab_file: Path
    weights: Optional[Path]


def open_model(name_or_path: str, *, model_type: str, from_scratch: bool) -> ModelSource:
    """Find config, vocabulary and weights of ``name_or_path``.

    ``model_type``: ernie | ernie_gram. Raises InputError when something is missing or cannot be
    fetched; weights may be missing only with ``from_scratch``.
    """
    folder = Path(name_or_path)
    if folder.is_dir():
        return _open_folder(folder, from_scratch)
    if folder.exists() or "/" in name_or_path:
        raise InputError(f"--model_name_or_path {name_or_path} is not a folder; give one that holds {CONFIG}")
    return _fetch(ALIASES.get(name_or_path, name_or_path), model_type, from_scratch)


def _open_folder(folder: Path, from_scratch: bool) -> ModelSource:
    missing = [name for name in (CONFIG, VOCAB) if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"{folder} has no {' and no '.join(missing)}; a model folder holds {CONFIG} and {VOCAB}"
        )
    weights = next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if weights is None and not from_scratch:
        raise InputError(
            f"{folder} holds no weights ({', '.join(WEIGHT_FILES)}); add them, or start from random "
            "weights with --from_scratch true"
        )
    return ModelSource(
        str(folder), read_config(folder / CONFIG), folder / VOCAB, None if from_scratch else weights
    )


def read_config(path: Path) -> Dict[str, object]:
    """The model configuration. Raises InputError when it is not one JSON object."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        line = getattr(error, "lineno", 1)
        raise InputError(f"{path}:{line}: not a JSON object ({error.__class__.__name__}); mend it") from None
    if not isinstance(config, dict) or "vocab_size" not in config:
        raise InputError(
            f"{path}:1: no model configuration with a vocab_size; give the config.json of a model"
        )
    return config


def _fetch(name: str, model_type: str, from_scratch: bool) -> ModelSource:
    """A built-in model, from PaddleNLP's cache or its download site."""
    config_class, tokenizer_class = _classes_of(model_type)
    configs = config_class.pretrained_init_configuration
    if name not in configs:
        raise InputError(
            f"--model_name_or_path {name} is neither a folder nor a built-in {model_type} model "
            f"({', '.join(list(configs)[:4])}, ...); give one of them"
        )
    vocab_file = _download(name, tokenizer_class.pretrained_resource_files_map["vocab_file"][name])
    weights = None
    if not from_scratch:
        weights = _download(name, config_class.pretrained_resource_files_map["model_state"][name])
    return ModelSource(name, dict(configs[name]), vocab_file, weights)


def _classes_of(model_type: str):
    from paddlenlp import transformers

    if model_type == "ernie_gram":
        return transformers.ErnieGramConfig, transformers.ErnieGramTokenizer
    return transformers.ErnieConfig, transformers.ErnieTokenizer


def _download(name: str, address: str) -> Path:
    from paddlenlp.utils.download import resolve_file_path

    logger.info("fetching %s of %s", address.rsplit("/", 1)[-1], name)
    try:
        path = resolve_file_path(name, [address])
    except OSError:
        path = None
    if path is None:
        raise InputError(
            f"--model_name_or_path {name} cannot be fetched (no network?); give a folder with {CONFIG}, "
            f"{VOCAB} and weights"
        )
    return Path(path)


def load_parameters(
    parameters: Dict[str, object], weights: Path, *, may_miss: str = "", may_have: str = ""
) -> Arrays:
    """Match a weight file with the parameters of a model, by structured names, all or nothing.

    ``parameters``: {structured name: parameter}; two names of one (tied) parameter are aliases and
    the file may use either. Names that start with ``may_miss`` may be absent from the file, names in
    the file that start with ``may_have`` are passed over; empty: none. Returns {parameter.name:
    array}. Raises CheckpointError naming what is missing, unknown or of another shape.
    """
    found = read_weights(weights)
    return match_parameters(parameters, found, str(weights), may_miss=may_miss, may_have=may_have)


def match_parameters(
    parameters: Dict[str, object], found: Arrays, where: str, *, may_miss: str = "", may_have: str = ""
) -> Arrays:
    """``load_parameters`` for arrays that have been read already."""
    chosen: Arrays = {}
    unknown: Arrays = {}
    for name, array in found.items():
        if name not in parameters:
            if not (may_have and name.startswith(may_have)):
                unknown[name] = array
            continue
        key = parameters[name].name
        if key in chosen and not np.array_equal(chosen[key], array):
            raise CheckpointError(
                f"{where}: {name} is tied to another name but differs from it; mend the file"
            )
        chosen[key] = array
    first_names: Dict[str, str] = {}
    for name, parameter in parameters.items():
        first_names.setdefault(parameter.name, name)
    wanted = {
        first_names[parameter.name]: tuple(parameter.shape)
        for parameter in parameters.values()
        if parameter.name in chosen or not (may_miss and first_names[parameter.name].startswith(may_miss))
    }
    named = {first_names[key]: array for key, array in chosen.items()}
    refuse_mismatch(wanted, {**named, **unknown}, where)
    return chosen
