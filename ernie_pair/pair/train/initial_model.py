"""Where a training run begins: its model before the first step."""

from dataclasses import replace
from pathlib import Path
from typing import Mapping, NamedTuple

from ernie_pair.model_files.labels import parse_label_map
from ernie_pair.model_files.source import NAME_FAMILY, ModelSource, open_model, refuse_no_family
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.model.classifier import PairClassifier, build_classifier
from ernie_pair.pair.model.classifier_weights import load_initial_weights
from ernie_pair.pair.model.kernel_path import choose_path
from ernie_pair.pair.model.model_class import trusted_class
from ernie_pair.pair.step.freezing import num_frozen_layers


class InitialModel(NamedTuple):
    """The model that a run begins with; ``beginning`` says in words what its weights are.

    ``facts``: {what: value}, which the model card tells besides.
    """

    model: PairClassifier
    source: ModelSource
    beginning: str
    facts: Mapping[str, str] = {}


def open_initial_model(config: PairConfig, name_or_path: str) -> InitialModel:
    """Open the model that ``name_or_path`` names, with its initial weights.

    Raises InputError when the flags and the model do not fit, CheckpointError when the weights do not.
    """
    source = open_model(name_or_path, model_type=config.model_type or "", from_scratch=config.from_scratch)
    refuse_no_family(source, NAME_FAMILY)
    if config.label_map:
        source = replace(source, spec=source.spec.with_labels(parse_label_map(config.label_map)))
    own = trusted_class(source, config.model_class, PairClassifier, is_trained=False)
    model = build_classifier(source, config.seed, config.dropout, config.pooling, own)
    num_frozen_layers(config, len(model.layers()))  # refused before any data are read
    choose_path(model, config, config.device)  # the same
    return InitialModel(model, source, load_initial_weights(model, source))


def wrap_model(model: PairClassifier, vocab_file: Path) -> InitialModel:
    """Return a start from a model that is in memory already; it keeps its labels and its own dropout."""
    return InitialModel(
        model, ModelSource("the model", model.spec, vocab_file, None), "start from the model as given"
    )
