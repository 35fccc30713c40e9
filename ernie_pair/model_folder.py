"""Where a model comes from: a folder (config.json, vocab.txt, weights), a run, or a name of PaddleNLP.

A path that is given and cannot be read is an error, never a fresh start.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, Optional, Tuple, Union

import numpy as np
import yaml

from data_tools.errors import CheckpointError, InputError
from ernie_pair.checkpoint_folder import MANIFEST, Checkpoint
from ernie_pair.model_config import CONFIG, FAMILIES, VOCAB, family_of, find_config, read_config
from ernie_pair.weights import Arrays, refuse_mismatch

WEIGHT_FILES = (
    *("model_state.pdparams", "model.safetensors", "static_vars.safetensors"),
    *("static_vars.pdparams", "static_vars", "params"),  # the recipe's, and ERNIE's own releases
)
RECIPE_NOTE, MOST_NOTE_BYTES = "config.yml", 1 << 16
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

    ``model_type``: ernie | ernie-gram (or ernie_gram), or '' for whichever it is; the config of a
    source that names no family gets it. A run's ``output_dir`` stands for its newest checkpoint.
    Raises InputError when something is missing or cannot be fetched; weights may be missing only with
    ``from_scratch``.
    """
    family, folder = model_type.replace("-", "_"), Path(name_or_path)
    if folder.is_dir():
        source = _open_folder(folder, family, from_scratch)
    elif folder.exists() or "/" in name_or_path:
        raise InputError(f"--model_name_or_path {name_or_path} is not a folder; give one that holds {CONFIG}")
    else:
        source = _fetch(ALIASES.get(name_or_path, name_or_path), family, from_scratch)
    named = family_of(source.config) or family
    return replace(source, config={**source.config, "model_type": named}) if named else source


def refuse_other_family(source: ModelSource, family: str) -> None:
    found = family_of(source.config)
    if found not in (None, family):
        raise CheckpointError(
            f"{source.name} holds {found} weights; pass --model_type {found}, or another folder"
        )


def _open_folder(folder: Path, family: str, from_scratch: bool) -> ModelSource:
    config = find_config(folder)
    if config is None and (folder / RECIPE_NOTE).is_file():
        return _open_recipes_checkpoint(folder, family, from_scratch)
    if config is None and any((folder / name).is_dir() for name in ("model_last", "checkpoints")):
        return _open_folder(_newest_of_run(folder), family, from_scratch)
    missing = [CONFIG] * (config is None) + [VOCAB] * (not (folder / VOCAB).is_file())
    if missing:
        raise InputError(
            f"{folder} has no {' and no '.join(missing)}; a model folder holds {CONFIG} and {VOCAB}"
        )
    weights = find_weights(folder)
    if weights is None and not from_scratch:
        raise InputError(
            f"{folder} holds no weights ({', '.join(WEIGHT_FILES)}); add them, or start from random "
            "weights with --from_scratch true"
        )
    weights = None if from_scratch else weights
    _refuse_damage(folder, config, folder / VOCAB, weights)
    return ModelSource(str(folder), read_config(config), folder / VOCAB, weights)


def find_weights(folder: Path) -> Optional[Path]:
    """The file or, of the recipe's own kinds, the folder of parameters in ``folder``."""
    return next((folder / name for name in WEIGHT_FILES if (folder / name).exists()), None)


def _refuse_damage(folder: Path, *files: Optional[Path]) -> None:
    """Raises CheckpointError when ``folder`` is a checkpoint and one of ``files`` is not what it promises."""
    if (folder / MANIFEST).is_file():
        checkpoint = Checkpoint(folder)
        for file in files:
            if file is not None:
                checkpoint.read(file.name)


def _newest_of_run(output_dir: Path) -> Path:
    """The newest checkpoint, or the folder model_last itself where the recipe made it."""
    steps = sorted((output_dir / "checkpoints").glob("step_*"), reverse=True)
    for step in steps:
        try:
            Checkpoint(step).verify()
            return step
        except CheckpointError as error:
            logger.warning("%s; the checkpoint before it is taken", error)
    if steps:
        raise CheckpointError(f"no usable checkpoint in {output_dir}; give another --model_name_or_path")
    return output_dir / "model_last"


def _open_recipes_checkpoint(folder: Path, family: str, from_scratch: bool) -> ModelSource:
    """The recipe's model_last: parameters, and a config.yml that names the model they began from."""
    note = folder / RECIPE_NOTE
    try:
        content = note.read_bytes()[: MOST_NOTE_BYTES + 1]
        named = yaml.safe_load(content)["model_name"] if len(content) <= MOST_NOTE_BYTES else None
    except (yaml.YAMLError, UnicodeDecodeError, TypeError, KeyError):
        named = None
    if not isinstance(named, str) or (Path(named).is_dir() and find_config(Path(named)) is None):
        raise InputError(f"{note}: no usable model_name; put {CONFIG} and {VOCAB} of the model into {folder}")
    weights = find_weights(folder)
    if weights is None and not from_scratch:
        raise InputError(f"{folder} holds no weights ({', '.join(WEIGHT_FILES[3:5])}); see model_last_bak")
    base = open_model(named, model_type=family, from_scratch=True)
    return replace(base, name=str(folder), weights=None if from_scratch else weights)


def _fetch(name: str, family: str, from_scratch: bool) -> ModelSource:
    """A built-in model, from PaddleNLP's cache or its download site."""
    wanted = family or next(iter(FAMILIES))
    found = next((f for f in FAMILIES if name in _classes_of(f)[0].pretrained_init_configuration), None)
    if found is None or (family and found != family):
        known = list(_classes_of(wanted)[0].pretrained_init_configuration)
        way_out = f"pass --model_type {found}" if found else "give one of them"
        raise InputError(
            f"--model_name_or_path {name} is neither a folder nor a built-in {wanted} model "
            f"({', '.join(known[:4])}, ...); {way_out}"
        )
    family = found
    config_class, tokenizer_class, model_class = _classes_of(family)
    config = {**config_class.pretrained_init_configuration[name], "model_type": family}
    vocab_file = _download(name, tokenizer_class.pretrained_resource_files_map["vocab_file"][name])
    weights = None
    if not from_scratch:
        weights = _download(name, model_class.pretrained_resource_files_map["model_state"][name])
    return ModelSource(name, config, vocab_file, weights)


def _classes_of(family: str):
    from paddlenlp import transformers

    return [getattr(transformers, FAMILIES[family] + kind) for kind in ("Config", "Tokenizer", "Model")]


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


Prefixes = Union[str, Tuple[str, ...]]


def match_parameters(
    parameters: Dict[str, object],
    found: Arrays,
    where: str,
    *,
    may_miss: Prefixes = "",
    may_have: Prefixes = "",
) -> Arrays:
    """Match the arrays of a file with the parameters of a model, by structured names, all or nothing.

    ``parameters``: {structured name: parameter}; two names of one (tied) parameter are aliases and
    the file, ``where``, may use either. Names that start with ``may_miss`` may be absent from it,
    names in it that start with ``may_have`` are passed over; empty: none. Returns {parameter.name:
    array}. Raises CheckpointError naming what is missing, unknown or of another shape.
    """
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
