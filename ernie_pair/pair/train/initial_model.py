"""The model of a training run before its first step."""

from dataclasses import replace
from pathlib import Path
from typing import Literal, Mapping, NamedTuple, TypeVar, Union

from data_tools.base.errors import InputError
from ernie_pair.model_files.labels import RANKING
from ernie_pair.model_files.source import NAME_FAMILY, ModelSource, open_model, refuse_no_family
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.config.target_flags import chosen_labels, refuse_unfit_flags
from ernie_pair.pair.model.classifier import PairClassifier, build_classifier
from ernie_pair.pair.model.classifier_weights import load_initial_weights
from ernie_pair.pair.model.kernel_path import choose_path
from ernie_pair.pair.model.model_class import trusted_class
from ernie_pair.pair.model.plain_model import PlainModel
from ernie_pair.pair.step.freezing import num_frozen_layers
from ernie_pair.pair.targets.target_metrics import chosen_metric, refuse_other_metric


class InitialModel(NamedTuple):
    """The model that a run begins with; ``beginning`` says in words what its weights are.

    ``facts``: {what: value}, which the model card tells besides.
    """

    model: Union[PairClassifier, PlainModel]
    source: ModelSource
    beginning: str
    facts: Mapping[str, str] = {}


def open_initial_model(config: PairConfig, name_or_path: str) -> InitialModel:
    """Open the model that ``name_or_path`` names, with its initial weights.

    Raises InputError when the flags and the model do not fit, CheckpointError when the weights do not.
    """
    source = open_model(name_or_path, model_type=config.model_type or "", from_scratch=config.from_scratch)
    refuse_no_family(source, NAME_FAMILY)
    labels, before = chosen_labels(config, source.spec), source.spec
    refuse_unfit_flags(config, labels)
    if config.label_map or labels != before.labels:
        source = replace(source, spec=before.with_labels(labels))
    own = trusted_class(source, config.model_class, PairClassifier, is_trained=False)
    model = build_classifier(source, config.seed, config.dropout, config.pooling, own)
    num_frozen_layers(config, len(model.layers()))  # refused before any data are read
    choose_path(model, config, config.device)  # the same
    # The one output of a published reranker orders candidates already.
    is_other_task = labels.target != before.target and not (
        labels.target == RANKING and before.labels.activation
    )
    return InitialModel(model, source, load_initial_weights(model, source, is_other_task))


Config = TypeVar("Config", bound=PairConfig)


def with_best_metric(config: Config, start: InitialModel, has_own: bool = False) -> Config:
    """Return ``config`` with the metric that chooses the best model, of which auto is that of the target.

    Raises InputError for a metric that models of this target do not have, unless a function of the user's
    own, ``has_own``, may return it.
    """
    target = start.model.spec.target
    metric = chosen_metric(config.best_metric, target)
    if not has_own:
        refuse_other_metric(metric, target)
    return replace(config, best_metric=metric)


def wrap_model(model: PairClassifier, vocab_file: Path, config: PairConfig) -> InitialModel:
    """Return a start from a model that is in memory already; it keeps its labels and its own dropout.

    What the caller froze, by ``stop_gradient``, stays frozen.

    Raises InputError when ``config`` asks for another target, or for what this one has no use of.
    """
    labels, model.keeps_frozen = model.spec.labels, True
    if config.target not in ("auto", labels.target):
        raise InputError(f"--target {config.target}: the model is one for {labels.target}; leave it out")
    refuse_unfit_flags(config, labels)
    return InitialModel(
        model, ModelSource("the model", model.spec, vocab_file, None), "start from the model as given"
    )


def config_of_model(config: PairConfig, model: PairClassifier) -> PairConfig:
    """Return ``config`` with the family, class, pooling and dropout that ``model`` has already."""
    dropout = config.dropout if model.spec.hidden_dropout is None else model.spec.hidden_dropout
    pooling: Literal["cls", "mean"] = "mean" if model.pooling == "mean" else "cls"
    own = model.spec.model_class
    return replace(config, model_type=model.family, pooling=pooling, dropout=dropout, model_class=own)
