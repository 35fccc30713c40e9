"""The model that PairTrainer is given: a name, a folder, or a layer in memory."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Tuple, Union

import paddle
from paddle import nn

from data_tools.base.errors import InputError
from data_tools.files.json_file import read_json_object
from data_tools.text.folder_tokenizer import (
    AnyTokenizer,
    cuts_by_own_rule,
    find_tokenizer,
    is_their_config,
    open_folder_tokenizer,
)
from data_tools.text.wordpiece import WordPiece
from ernie_pair.model_files.config_json import VOCAB, find_config
from ernie_pair.model_files.labels import Labels
from ernie_pair.model_files.source import ModelSource, open_layer_folder, open_model
from ernie_pair.model_files.spec import ModelSpec, parse_spec
from ernie_pair.model_files.tokenizer_json import TokenizerSettings, read_tokenizer_settings
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.config.target_flags import chosen_labels, refuse_unfit_flags
from ernie_pair.pair.model.classifier import PairClassifier
from ernie_pair.pair.model.classifier_weights import load_initial_weights
from ernie_pair.pair.model.kernel_path import choose_path
from ernie_pair.pair.model.paddlenlp_classifier import classifier_around, known_family, spec_of
from ernie_pair.pair.model.plain_model import PlainModel, load_plain_weights, plain_settings, width_of
from ernie_pair.pair.train.initial_model import InitialModel, open_initial_model, wrap_model

GivenModel = Union[str, Path, PairClassifier, nn.Layer]
# The flags that make a model, and of those of training the ones that know the encoder inside.
OF_MAKING = ("model_type", "model_class", "pooling", "dropout", "from_scratch")
OF_ENCODERS = (
    *("freeze", "freeze_layers", "layer_decay", "use_recompute", "fgm_epsilon", "sharding", "save_format"),
    "to_static",
)


def open_given_model(
    model: GivenModel,
    config: PairConfig,
    vocab_file: Union[str, Path, None],
    weights: Union[str, Path, None] = None,
) -> InitialModel:
    """Open what PairTrainer is given as a model; ``weights``: the folder of an earlier `PlainModel`.

    Raises InputError when the flags and the model do not fit, or a layer comes without its vocabulary.
    """
    is_own = isinstance(model, nn.Layer) and not isinstance(model, PairClassifier) and not known_family(model)
    if weights is not None and not is_own:
        raise InputError("weights is for a layer of your own; give the folder as the model")
    if not isinstance(model, nn.Layer):
        return open_initial_model(config, str(model))
    if vocab_file is None and weights is None:
        raise InputError("a model in memory has no vocabulary; give its vocab_file to PairTrainer")
    if isinstance(model, PairClassifier):
        return wrap_model(model, Path(str(vocab_file)), config)
    source = None if weights is None else open_layer_folder(Path(weights), type(model).__name__)
    if vocab_file is None:
        assert source is not None  # one of the two is given
        vocab_file = source.vocab_file
    return _open_layer(model, config, Path(vocab_file), source)


def _open_layer(
    layer: nn.Layer, config: PairConfig, vocab_file: Path, source: Optional[ModelSource]
) -> InitialModel:
    """Return a start from ``layer``, with the weights of ``source`` if there is one."""
    vocab_file = find_tokenizer(vocab_file) if vocab_file.is_dir() else vocab_file
    name, family = type(layer).__name__, known_family(layer)
    if isinstance(layer, paddle.DataParallel):
        raise InputError("PairTrainer averages gradients itself; give it the layer without DataParallel")
    _refuse_flags(config, OF_MAKING, f"{name} is made already, and keeps what it has")
    tokenizer, settings = _open_vocabulary(vocab_file)
    if family:
        spec, width = spec_of(layer, family, settings), layer.config.num_labels
        known = spec.labels if width > 1 else Labels.numbered(2)
        model = classifier_around(layer, _with_labels(spec, known, config, width, name))
        if model is not None:
            return wrap_model(model, vocab_file, config)
    _refuse_flags(config, OF_ENCODERS, f"{name} is a layer of your own, whose encoder is unknown")
    settings_of_layer = plain_settings(layer, tokenizer.vocab_size, tokenizer.pad_id)
    spec = replace(parse_spec(settings_of_layer), tokenizer=settings)
    width = width_of(layer, spec, vocab_file, config.max_seq_len)
    is_told = source is not None and source.spec.num_labels == width
    known = source.spec.labels if source is not None and is_told else Labels.numbered(max(width, 2))
    plain = PlainModel(layer, _with_labels(spec, known, config, width, name))
    refuse_unfit_flags(config, plain.spec.labels)
    choose_path(plain, config, config.device)  # refused before any data are read
    beginning = "start from the model as given"
    if source is not None:
        load_plain_weights(plain, source)
        beginning = f"start from the weights {source.weights}"
    return InitialModel(plain, ModelSource("the model", plain.spec, vocab_file, None), beginning)


def _refuse_flags(config: PairConfig, names: Sequence[str], reason: str) -> None:
    """Raise InputError for the first of the flags ``names`` that asks for something."""
    defaults = {item.name: item.default for item in fields(config)}
    for name in names:
        value = getattr(config, name)
        if value is True if name == "to_static" else value != defaults[name]:
            shown = str(value).lower() if isinstance(value, bool) else value
            raise InputError(f"--{name} {shown}: {reason}; leave it out")


def _with_labels(spec: ModelSpec, known: Labels, config: PairConfig, width: int, name: str) -> ModelSpec:
    """Return ``spec`` with the labels of a run; ``known`` where the flags say nothing.

    ``width``: how many numbers the layer ``name`` returns for a pair. Raises InputError if they do not fit.
    """
    if width == 1 and known.has_classes and config.target == "auto":
        raise InputError(
            f"{name} returns one number per pair, which is a score; pass --target regression or ranking as "
            "well, or return a logit of each class"
        )
    labels = chosen_labels(config, spec.with_labels(known))
    if len(labels.names) != width:
        raise InputError(
            f"{name} returns {width} numbers per pair, and the run has {len(labels.names)} "
            f"({', '.join(labels.names)}); correct --label_map or --target, or the layer"
        )
    return spec.with_labels(labels)


def _open_vocabulary(vocab_file: Path) -> Tuple[AnyTokenizer, TokenizerSettings]:
    """Open the tokenizer of a file; a vocab.txt cuts by ERNIE's rule, unless its folder says otherwise."""
    if not vocab_file.is_file():
        raise InputError(f"vocab_file {vocab_file} is no file; give the vocabulary of the model")
    config = find_config(vocab_file.parent)
    found: Mapping[str, Any] = {} if config is None else read_json_object(config, "correct it")
    is_own = vocab_file.suffix == ".txt"
    if vocab_file.name == VOCAB:
        is_own = cuts_by_own_rule(vocab_file.parent, found, is_their_config(found))
    settings = read_tokenizer_settings(vocab_file.parent, found, is_folders=not is_own)
    if is_own:
        return WordPiece.from_file(vocab_file, settings.lower_case), settings
    return open_folder_tokenizer(vocab_file), settings


def load_best(model: Union[PairClassifier, PlainModel], folder: Path) -> None:
    """Give ``model`` the weights of a best model of its own run. Raises CheckpointError."""
    if isinstance(model, PlainModel):
        load_plain_weights(model, open_layer_folder(folder, model.family))
    else:
        load_initial_weights(model, open_model(str(folder), model_type=""))
