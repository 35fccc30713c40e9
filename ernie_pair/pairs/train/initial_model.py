"""The model of a training run before its first step."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Literal, Mapping, NamedTuple, Optional, TypeVar, Union, cast

import paddle
from paddle import nn

from data_tools.text.folder_tokenizer import (
    AnyTokenizer,
    cuts_by_own_rule,
    find_tokenizer,
    is_their_config,
    open_folder_tokenizer,
)
from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.cli.options import check_unset, defaults_of
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.json_file import read_json_object
from ernie_pair.models.labels import RANKING, Labels, parse_label_map
from ernie_pair.models.networks.classifier import (
    PairClassifier,
    build_classifier,
    classifier_around,
    find_layer_family,
    load_initial_weights,
    read_layer_spec,
    trusted_class,
)
from ernie_pair.models.networks.custom_model import (
    CustomModel,
    custom_settings,
    load_custom_weights,
    measure_width,
)
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.models.source import ModelSource, open_layer_folder, open_model, open_start, with_match
from ernie_pair.models.spec import (
    VOCAB,
    ModelSpec,
    TokenizerSettings,
    find_config,
    parse_spec,
    read_tokenizer_settings,
)
from ernie_pair.models.temperature import CALIBRATION
from ernie_pair.pairs.config.pair_config import PairConfig, chosen_labels, refuse_unfit_flags
from ernie_pair.pairs.targets.metrics import check_metric_of_target, choose_metric
from ernie_pair.training.recompute import num_frozen_layers


class InitialModel(NamedTuple):
    """The model that a run begins with; ``beginning`` says in words what its weights are.

    ``facts``: {what: value}, which the model card tells besides. ``label_map``: the classes that the words of
    the training pairs are, '' where the flags or the model say.
    """

    model: Union[PairClassifier, CustomModel]
    source: ModelSource
    beginning: str
    facts: Mapping[str, str] = {}
    label_map: str = ""


def open_initial_model(
    config: PairConfig, name_or_path: str, words: Callable[[Labels], str] = lambda labels: ""
) -> InitialModel:
    """Open the model that ``name_or_path`` names, with its initial weights.

    ``words`` is asked for the label map of the flags, or of the words of the training pairs.
    Raises InputError when the flags and the model do not fit, CheckpointError when the weights do not.
    """
    source = open_start(config, name_or_path)
    labels, before = chosen_labels(config, source.spec), source.spec
    refuse_unfit_flags(config, labels)  # before any data are read
    label_map = words(labels) if labels.has_classes else ""
    if label_map:
        labels = parse_label_map(label_map)
        refuse_unfit_flags(config, labels)
    if config.label_map or labels != before.labels:
        source = replace(source, spec=before.with_labels(labels))
    own = trusted_class(source, config.model_class, PairClassifier, is_trained=False)
    asked = match_asked(config, config.pooling, labels)
    if asked == "auto" and config.save_format != "paddle":  # no class of transformers has them
        asked = source.spec.has_match
    source = with_match(source, asked)
    model = build_classifier(source, config.seed, config.dropout, config.pooling, own)
    num_frozen_layers(config, len(model.layers()))  # refused before any data are read
    choose_path(model, config, config.device)  # the same
    # The one output of a published reranker orders candidates already.
    is_other_task = labels.target != before.target and not (
        labels.target == RANKING and before.labels.activation
    )
    beginning = load_initial_weights(model, source, is_other_task)
    if source.weights is not None and (source.vocab_file.parent / CALIBRATION).is_file():
        beginning += f"; its {CALIBRATION} is not taken over: choose temperature and threshold again"
    return InitialModel(model, source, beginning, label_map=label_map)


Config = TypeVar("Config", bound=PairConfig)


def with_best_metric(config: Config, start: InitialModel, has_own: bool = False) -> Config:
    """Return ``config`` with the classes and the metric of a run, of which auto is that of the target.

    Raises InputError for a metric that models of this target do not have, unless a function of the user's
    own, ``has_own``, may return it.
    """
    target = start.model.spec.target
    metric = choose_metric(config.best_metric, target)
    if not has_own:
        check_metric_of_target(metric, target)
    return replace(config, best_metric=metric, label_map=config.label_map or start.label_map)


def wrap_model(model: PairClassifier, vocab_file: Path, config: PairConfig) -> InitialModel:
    """Return a start from a model that is in memory already; it keeps its labels and its own dropout.

    What the caller froze, by ``stop_gradient``, stays frozen. Raises InputError when ``config`` asks for
    another target, or for what this one has no use of.
    """
    labels, model.keeps_frozen = model.spec.labels, True
    if config.target not in ("auto", labels.target):
        raise InputError(f"--target {config.target}: the model is one for {labels.target}; leave it out")
    refuse_unfit_flags(config, labels)
    source = ModelSource("the model", model.spec, vocab_file, None)
    return InitialModel(model, source, "start from the model as given")


def match_asked(config: PairConfig, pooling: str, labels: Labels) -> Union[bool, str]:
    """Return --match_embeddings, and False under ``pooling`` cosine, where each text is read alone.

    Raises InputError where that or --symmetric is asked for all the same, and for more than two classes.
    """
    if pooling != "cosine":
        return config.match_embeddings
    if config.symmetric != "none":
        raise InputError(
            f"--symmetric {config.symmetric} brings two orders together, and --pooling cosine reads each "
            "text alone; leave one of them out"
        )
    if config.match_embeddings is True:
        raise InputError(
            "--match_embeddings true tells each text of the other, and --pooling cosine reads it alone; "
            "leave one of them out"
        )
    if len(labels.names) > 2:
        raise InputError(
            f"--pooling cosine tells two classes apart, or gives scores, and there are {len(labels.names)} "
            "classes; use --pooling mean"
        )
    return False


def config_of_model(config: PairConfig, model: PairClassifier) -> PairConfig:
    """Return ``config`` with the family, class, pooling and dropout that ``model`` has already."""
    dropout = config.dropout if model.spec.hidden_dropout is None else model.spec.hidden_dropout
    own, pooling = model.spec.model_class, cast(Literal["cls", "mean", "cosine"], model.pooling or "cls")
    config = replace(config, match_embeddings=model.spec.has_match)
    return replace(config, model_type=model.family, pooling=pooling, dropout=dropout, model_class=own)


GivenModel = Union[str, Path, PairClassifier, nn.Layer]


def open_given_model(
    model: GivenModel,
    config: PairConfig,
    vocab_file: Union[str, Path, None],
    weights: Union[str, Path, None] = None,
    words: Callable[[Labels], str] = lambda labels: "",
) -> InitialModel:
    """Open what PairTrainer is given as a model; ``weights``: the folder of an earlier `CustomModel`.

    ``words``: see `open_initial_model`. Raises InputError when the flags and the model do not fit, or a layer
    comes without its vocabulary.
    """
    is_own = (
        isinstance(model, nn.Layer) and not isinstance(model, PairClassifier) and not find_layer_family(model)
    )
    if weights is not None and not is_own:
        raise InputError("weights is for a layer of your own; give the folder as the model")
    if not isinstance(model, nn.Layer):
        return open_initial_model(config, str(model), words)
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
    vocab_file = find_tokenizer(vocab_file) if vocab_file.is_dir() else vocab_file
    name, family = type(layer).__name__, find_layer_family(layer)
    if isinstance(layer, paddle.DataParallel):
        raise InputError("PairTrainer averages gradients itself; give it the layer without DataParallel")
    fault = f": {name} is made already, and keeps what it has; leave it out"
    check_unset(config, defaults_of(config, "new weights"), fault)
    tokenizer, settings = _open_vocabulary(vocab_file)
    if family:
        spec, width = read_layer_spec(layer, family, settings), layer.config.num_labels
        known = spec.labels if width > 1 else Labels.numbered(2)
        model = classifier_around(layer, _with_labels(spec, known, config, width, name))
        if model is not None:
            return wrap_model(model, vocab_file, config)
    inside = defaults_of(config, "encoder")
    if config.to_static is False:
        del inside["to_static"]
    check_unset(config, inside, f": {name} is a layer of your own, whose encoder is unknown; leave it out")
    settings_of_layer = custom_settings(layer, tokenizer.vocab_size, tokenizer.pad_id)
    spec = replace(parse_spec(settings_of_layer), tokenizer=settings)
    width = measure_width(layer, spec, vocab_file, config.max_seq_len)
    is_known = source is not None and source.spec.num_labels == width
    known = source.spec.labels if source is not None and is_known else Labels.numbered(max(width, 2))
    plain = CustomModel(layer, _with_labels(spec, known, config, width, name))
    refuse_unfit_flags(config, plain.spec.labels)
    choose_path(plain, config, config.device)  # refused before any data are read
    beginning = "start from the model as given"
    if source is not None:
        load_custom_weights(plain, source)
        beginning = f"start from the weights {source.weights}"
    return InitialModel(plain, ModelSource("the model", plain.spec, vocab_file, None), beginning)


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


def _open_vocabulary(vocab_file: Path) -> tuple[AnyTokenizer, TokenizerSettings]:
    """Open the tokenizer of a file; a vocab.txt cuts by ERNIE's rule, unless its folder says otherwise."""
    config = find_config(vocab_file.parent)
    found: Mapping[str, Any] = {} if config is None else read_json_object(config, "correct it")
    is_own = vocab_file.suffix == ".txt"
    if vocab_file.name == VOCAB:
        is_own = cuts_by_own_rule(vocab_file.parent, found, is_their_config(found))
    settings = read_tokenizer_settings(vocab_file.parent, found, uses_hf_tokenizer=not is_own)
    if is_own:
        return WordPiece.from_file(vocab_file, settings.lower_case), settings
    return open_folder_tokenizer(vocab_file), settings


def load_best(model: Union[PairClassifier, CustomModel], folder: Path) -> None:
    """Give ``model`` the weights of a best model of its own run. Raises CheckpointError."""
    if isinstance(model, CustomModel):
        load_custom_weights(model, open_layer_folder(folder, model.family))
    else:
        load_initial_weights(model, open_model(str(folder), model_type=""))
